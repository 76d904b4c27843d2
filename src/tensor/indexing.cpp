// Selecting and writing elements by index.
#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIndexing.h>

#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/densify.h"

namespace lacewing::tensor {
namespace {

/// The pattern without dim d, of the entries kept.
PatternPtr without_dim(const Pattern& pattern, std::int64_t d, const at::Tensor& kept) {
  const auto indices = pattern.indices().index_select(1, kept);
  Dims sizes = pattern.sizes();
  sizes.erase(sizes.begin() + d);
  return Pattern::make(at::cat({indices.narrow(0, 0, d), indices.narrow(0, d + 1, pattern.dim() - d - 1)}),
                       std::move(sizes), pattern.known_coalesced());
}

/// A tensor of no sparse dims is one block: strided.
at::Tensor settled(Components c) {
  return c.sparse_dim() == 0 && c.has_fill() ? densified(c) : make_tensor(std::move(c));
}

Components selected(const Components& c, std::int64_t dim, std::int64_t index) {
  if (dim >= c.sparse_dim()) {
    const std::int64_t d = dim - c.sparse_dim();
    return {c.pattern, c.values.select(d + 1, index),
            fill_for(c, [&](const at::Tensor& b) { return b.select(d, index); })};
  }
  const auto kept = at::nonzero(c.pattern->indices().select(0, dim) == index).squeeze(1);
  return {without_dim(*c.pattern, dim, kept), c.values.index_select(0, kept), c.fill};
}

bool select(Call& call) {
  const Components& c = call.sparse();
  TORCH_CHECK_INDEX(c.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const std::int64_t size = c.shape()[at(dim)];
  std::int64_t index = call.integer("index");
  TORCH_CHECK_INDEX(index >= -size && index < size, "select(): index ", index, " out of range for tensor of size ",
                    c10::IntArrayRef(c.shape()), " at dimension ", dim);
  index = index < 0 ? index + size : index;
  return call.give(settled(selected(c, dim, index)));
}

Components sliced(const Components& c, std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  if (dim >= c.sparse_dim()) {
    const std::int64_t d = dim - c.sparse_dim();
    return {c.pattern, c.values.slice(d + 1, start, end, step),
            fill_for(c, [&](const at::Tensor& b) { return b.slice(d, start, end, step); })};
  }
  Dims sizes = c.pattern->sizes();
  const std::int64_t size = sizes[at(dim)];
  sizes[at(dim)] = (end - start + step - 1) / step;
  if (start == 0 && end == size && step == 1) {
    return c;
  }
  const auto offset = c.pattern->indices().select(0, dim) - start;
  auto inside = at::logical_and(offset >= 0, offset < end - start);
  if (step != 1) {
    inside = at::logical_and(inside, at::remainder(offset, step) == 0);
  }
  const auto kept = at::nonzero(inside).squeeze(1);
  at::Tensor indices = c.pattern->indices().index_select(1, kept);
  indices.select(0, dim).copy_(at::div(offset.index_select(0, kept), step, "floor"));
  return {Pattern::make(indices, std::move(sizes), c.pattern->known_coalesced()), c.values.index_select(0, kept),
          c.fill};
}

bool slice(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const std::int64_t size = c.shape()[at(dim)];
  const std::int64_t step = call.integer("step");
  TORCH_CHECK(step > 0, "slice step must be positive");
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    const c10::IValue& given = call.arg(name);
    const std::int64_t value = given.isNone() ? otherwise : given.toInt();
    return std::clamp<std::int64_t>(value < 0 ? value + size : value, 0, size);
  };
  const std::int64_t start = bound("start", 0);
  const std::int64_t end = std::max(bound("end", size), start);
  return call.give(sliced(c, dim, start, end, step));
}

bool give_pieces(Call& call, const Components& c, std::int64_t dim, const Dims& lengths) {
  c10::List<at::Tensor> pieces;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    pieces.push_back(make_tensor(sliced(c, dim, start, start + length, 1)));
    start += length;
  }
  return call.give({c10::IValue(pieces)});
}

bool split(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t dim = c.dim() == 0 ? 0 : wrap_dim(call.integer("dim"), c.dim());
  if (c.dim() == 0) {
    return Call::decline();
  }
  const std::int64_t size = c.shape()[at(dim)];
  const c10::IValue& given = call.args[1];
  if (!given.isInt()) {
    Dims lengths = given.toIntVector();
    std::int64_t total = 0;
    bool negative = false;
    for (const std::int64_t length : lengths) {
      total += length;
      negative = negative || length < 0;
    }
    return total != size || negative ? Call::decline() : give_pieces(call, c, dim, lengths);
  }
  const std::int64_t length = given.toInt();
  if (length <= 0) {
    return Call::decline();
  }
  Dims lengths;
  for (std::int64_t start = 0; start < size; start += length) {
    lengths.push_back(std::min(length, size - start));
  }
  return give_pieces(call, c, dim, lengths.empty() ? Dims{0} : lengths);
}

bool unbind(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  c10::List<at::Tensor> pieces;
  for (std::int64_t index = 0; index < c.shape()[at(dim)]; ++index) {
    pieces.push_back(settled(selected(c, dim, index)));
  }
  return call.give({c10::IValue(pieces)});
}

/// Entries at the wanted positions of a dim, in their order; a position may repeat. Pairs (entry, place in `wanted`).
Components taken(const Components& given, std::int64_t dim, const at::Tensor& wanted) {
  const Components c = coalesced(given);
  const std::int64_t size = c.pattern->sizes()[at(dim)];
  // Entries sorted by the dim: where each position's run begins.
  const auto column = c.pattern->indices().select(0, dim).contiguous();
  const auto order = at::argsort(column, /*stable=*/true, 0, false);
  const auto runs = at::searchsorted(column.index_select(0, order), at::arange(size + 1, column.options()));
  const auto begin = runs.index_select(0, wanted);
  const auto count = runs.index_select(0, wanted + 1) - begin;
  const auto place = at::repeat_interleave(count);
  const auto first = count.cumsum(0) - count;
  const auto inside = at::arange(place.numel(), place.options()) - first.index_select(0, place);
  const auto entry = order.index_select(0, begin.index_select(0, place) + inside);
  at::Tensor indices = c.pattern->indices().index_select(1, entry);
  indices.select(0, dim).copy_(place);
  Dims sizes = c.pattern->sizes();
  sizes[at(dim)] = wanted.numel();
  return {Pattern::make(indices, std::move(sizes)), c.values.index_select(0, entry), c.fill};
}

bool index_select(Call& call) {
  if (!call.is_sparse_at(0) || is_sparse(call.arg("index").toTensor())) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  if (c.dim() == 0) {
    return Call::decline();
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const at::Tensor index = call.arg("index").toTensor();
  if (index.dim() > 1 || !at::isIntegralType(index.scalar_type(), false)) {
    return Call::decline();
  }
  const auto flat = index.reshape(-1).to(at::kLong);
  if (dim >= c.sparse_dim()) {
    const std::int64_t d = dim - c.sparse_dim();
    return call.give({c.pattern, c.values.index_select(d + 1, flat),
                      fill_for(c, [&](const at::Tensor& b) { return b.index_select(d, flat); })});
  }
  const std::int64_t size = c.shape()[at(dim)];
  if (flat.numel() > 0) {
    TORCH_CHECK_INDEX(flat.min().item<std::int64_t>() >= 0 && flat.max().item<std::int64_t>() < size,
                      "index out of range in self: dim ", dim, " has ", size, " entries");
  }
  return call.give(taken(c, dim, flat));
}

/// S[i], S[:, j], S[mask], S[i, j]: index tensors and masks on leading dims or one dim; others are left to the next
/// rule.
bool index(Call& call) {
  if (!call.is_sparse_at(0)) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  std::vector<std::pair<std::int64_t, at::Tensor>> given;
  std::int64_t dim = 0;
  for (const std::optional<at::Tensor> t : call.args[1].toOptionalTensorList()) {
    if (t && t->defined()) {
      if (is_sparse(*t)) {
        return Call::decline();
      }
      if (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte) {
        for (const at::Tensor& part : t->nonzero().unbind(1)) {
          given.emplace_back(dim++, part);
        }
        if (t->dim() == 0) {
          return Call::decline();
        }
        continue;
      }
      given.emplace_back(dim, t->to(at::kLong));
    }
    ++dim;
  }
  if (given.empty() || dim > c.dim()) {
    return Call::decline();
  }
  for (auto& [d, t] : given) {
    const std::int64_t size = c.shape()[at(d)];
    if (t.numel() > 0) {
      const auto low = t.min().item<std::int64_t>();
      const auto high = t.max().item<std::int64_t>();
      TORCH_CHECK_INDEX(low >= -size && high < size, "index ", low < -size ? low : high,
                        " is out of bounds for dimension ", d, " with size ", size);
    }
    t = at::where(t < 0, t + size, t);
  }
  if (given.size() == 1 && given[0].first < c.sparse_dim() && given[0].second.dim() == 1) {
    return call.give(taken(c, given[0].first, given[0].second));
  }
  // All sparse dims at once: elements, looked up one by one.
  if (static_cast<std::int64_t>(given.size()) == c.sparse_dim() && c.has_fill()) {
    std::vector<at::Tensor> parts;
    for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
      if (given[at(d)].first != d) {
        return Call::decline();
      }
      parts.push_back(given[at(d)].second);
    }
    parts = at::broadcast_tensors(parts);
    const Dims shape = parts[0].sizes().vec();
    for (at::Tensor& part : parts) {
      part = part.reshape(-1);
    }
    const Components whole = coalesced(c);
    const auto keys = linear_keys(at::stack(parts), c.pattern->sizes());
    const auto rows = pick_rows(whole, find_keys(whole.pattern->keys(), keys));
    Dims out = shape;
    out.insert(out.end(), c.dense_shape().begin(), c.dense_shape().end());
    return call.give(rows.reshape(out));
  }
  return Call::decline();
}

/// Writing elements by index tensors: entries are added where there are none.
bool index_put(Call& call) {
  if (!call.is_sparse_at(0) || is_sparse(call.arg("values").toTensor())) {
    return Call::decline();
  }
  const Components c = coalesced(call.sparse());
  std::vector<at::Tensor> parts;
  for (const std::optional<at::Tensor> t : call.args[1].toOptionalTensorList()) {
    if (!t || !t->defined() || is_sparse(*t)) {
      return Call::decline();
    }
    if (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte) {
      for (const at::Tensor& part : t->nonzero().unbind(1)) {
        parts.push_back(part);
      }
    } else {
      parts.push_back(t->to(at::kLong));
    }
  }
  if (static_cast<std::int64_t>(parts.size()) != c.sparse_dim() || parts.empty() || !c.has_fill() ||
      call.arg("values").toTensor().scalar_type() != c.values.scalar_type()) {
    return Call::decline();
  }
  parts = at::broadcast_tensors(parts);
  Dims shape = parts[0].sizes().vec();
  const std::int64_t count = parts[0].numel();
  check_dense_result(call.schema().name(), shape, c.values.scalar_type());
  for (std::size_t d = 0; d < parts.size(); ++d) {
    const std::int64_t size = c.pattern->sizes()[d];
    parts[d] = parts[d].reshape(-1);
    if (count > 0) {
      TORCH_CHECK_INDEX(parts[d].min().item<std::int64_t>() >= -size && parts[d].max().item<std::int64_t>() < size,
                        "an index is out of bounds for dimension ", d, " with size ", size);
    }
    parts[d] = at::where(parts[d] < 0, parts[d] + size, parts[d]);
  }
  shape.insert(shape.end(), c.dense_shape().begin(), c.dense_shape().end());
  Dims rows{count};
  rows.insert(rows.end(), c.dense_shape().begin(), c.dense_shape().end());
  const auto values = call.arg("values").toTensor().expand(shape).reshape(rows);
  const auto keys = linear_keys(at::stack(parts), c.pattern->sizes());
  const auto targets = std::get<0>(at::_unique2(keys));
  const Merged merged = union_of(c.pattern->keys(), targets);
  const auto before = pick_rows(c, merged.in_a);
  const auto places = find_keys(merged.keys, keys);
  const auto after = before.index_put({places}, values, call.flag("accumulate"));
  return call.give({Pattern::of_keys(merged.keys.contiguous(), c.pattern->sizes()), after, c.fill});
}

bool nonzero(Call& call) {
  const Components c = coalesced(call.sparse());
  if (c.dim() == 0 || !zero_fill(c)) {
    return Call::decline();
  }
  const Components flat = c.dense_dim() == 0 ? c : dense_to_sparse_dims(c, c.dense_dim());
  const auto kept = at::nonzero(flat.values).squeeze(1);
  return call.give(flat.pattern->indices().index_select(1, kept).t().contiguous());
}

/// A diagonal of two sparse dims: the entries on it.
bool diagonal(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t offset = call.integer("offset");
  const std::int64_t dim1 = wrap_dim(call.integer("dim1"), c.dim());
  const std::int64_t dim2 = wrap_dim(call.integer("dim2"), c.dim());
  if (dim1 == dim2 || dim1 >= c.sparse_dim() || dim2 >= c.sparse_dim() || c.dense_dim() > 0) {
    return Call::decline();
  }
  const auto& sizes = c.pattern->sizes();
  const std::int64_t length = std::max<std::int64_t>(offset >= 0 ? std::min(sizes[at(dim1)], sizes[at(dim2)] - offset)
                                                                 : std::min(sizes[at(dim1)] + offset, sizes[at(dim2)]),
                                                     0);
  const auto& indices = c.pattern->indices();
  const auto row = indices.select(0, dim1);
  const auto kept = at::nonzero(indices.select(0, dim2) - row == offset).squeeze(1);
  Dims out_sizes;
  std::vector<at::Tensor> rows;
  for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
    if (d != dim1 && d != dim2) {
      out_sizes.push_back(sizes[at(d)]);
      rows.push_back(indices.select(0, d).index_select(0, kept));
    }
  }
  out_sizes.push_back(length);
  rows.push_back(row.index_select(0, kept) + std::min<std::int64_t>(offset, 0));
  return call.give({Pattern::make(at::stack(rows), std::move(out_sizes)), c.values.index_select(0, kept), c.fill});
}

/// diag_embed of a tensor with fill 0.
bool diag_embed(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t dim1 = wrap_dim(call.integer("dim1"), c.dim() + 1);
  const std::int64_t dim2 = wrap_dim(call.integer("dim2"), c.dim() + 1);
  if (!zero_fill(c) || c.dense_dim() > 0 || dim1 == dim2 || c.dim() == 0) {
    return Call::decline();
  }
  const std::int64_t offset = call.integer("offset");
  const std::int64_t size = c.pattern->sizes().back() + std::abs(offset);
  const auto last = c.pattern->indices().select(0, -1);
  const auto row = last - std::min<std::int64_t>(offset, 0);
  const auto column = last + std::max<std::int64_t>(offset, 0);
  std::vector<at::Tensor> rows;
  Dims sizes;
  std::int64_t next = 0;
  for (std::int64_t d = 0; d < c.dim() + 1; ++d) {
    const bool on = d == dim1 || d == dim2;
    rows.push_back(d == dim1 ? row : d == dim2 ? column : c.pattern->indices().select(0, next));
    sizes.push_back(on ? size : c.pattern->sizes()[at(next)]);
    next += on ? 0 : 1;
  }
  return call.give({Pattern::make(at::stack(rows), std::move(sizes)), c.values, c.fill});
}

constexpr RuleEntry kRules[] = {
    {"aten::select.int", select},         {"aten::select_copy.int", select},
    {"aten::slice.Tensor", slice},        {"aten::slice_copy.Tensor", slice},
    {"aten::split.Tensor", split},        {"aten::split_copy.Tensor", split},
    {"aten::split_with_sizes", split},    {"aten::split_with_sizes_copy", split},
    {"aten::unsafe_split.Tensor", split}, {"aten::unsafe_split_with_sizes", split},
    {"aten::unbind.int", unbind},         {"aten::unbind_copy.int", unbind},
    {"aten::index_select", index_select}, {"aten::index.Tensor", index},
    {"aten::index_put", index_put},       {"aten::nonzero", nonzero},
    {"aten::diagonal", diagonal},         {"aten::diagonal_copy", diagonal},
    {"aten::diag_embed", diag_embed},
};

}  // namespace

std::span<const RuleEntry> indexing_rules() { return kRules; }

}  // namespace lacewing::tensor
