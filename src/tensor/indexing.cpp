// Selecting and writing elements by index.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/keys.h"
#include "index/slice.h"
#include "structure/entry_slice.h"
#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/densify.h"
#include "tensor/elements.h"

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
  if (c.sparse_dim() > 0 || !c.has_fill()) {
    return make_tensor(std::move(c));
  }
  const at::Tensor block = densified(c);
  return block.is_alias_of(c.values) ? block.clone() : block;  // views are copies
}

/// Guards a strided result at places that broadcast beyond the index tensors that are in memory.
void check_places(const Call& call, const std::vector<at::Tensor>& places) {
  Dims shape = places.front().sizes().vec();
  std::int64_t held = 0;
  for (const at::Tensor& place : places) {
    shape = at::infer_size(shape, place.sizes());
    held = std::max(held, static_cast<std::int64_t>(place.storage().nbytes() / place.element_size()));
  }
  if (product_of(shape) > held) {
    const auto block = call.sparse().dense_shape();
    shape.insert(shape.end(), block.begin(), block.end());
    check_dense_result(call.schema().name(), shape, call.sparse().values.scalar_type());
  }
}

Components selected(const Components& c, std::int64_t dim, std::int64_t index) {
  if (dim >= c.sparse_dim()) {
    const std::int64_t d = dim - c.sparse_dim();
    return {c.pattern, c.values.select(d + 1, index),
            fill_for(c, [&](const at::Tensor& b) { return b.select(d, index); })};
  }
  const auto kept = at::nonzero(c.pattern->indices().select(0, dim) == index).squeeze(1);
  return {without_dim(*c.pattern, dim, kept), take_rows(c.values, kept), c.fill};
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

/// Slices of some dims at a time, within the sizes.
Components sliced(const Components& c, const std::vector<structure::Slice>& slices) {
  Components out = c;
  std::vector<structure::Slice> sparse;
  Dims sizes = c.pattern->sizes();
  for (const structure::Slice& s : slices) {
    if (s.dim >= c.sparse_dim()) {
      const std::int64_t d = s.dim - c.sparse_dim();
      out.values = out.values.slice(d + 1, s.start, s.end, s.step);
      out.fill = fill_for(out, [&](const at::Tensor& b) { return b.slice(d, s.start, s.end, s.step); });
    } else if (s.start != 0 || s.end != sizes[at(s.dim)] || s.step != 1) {
      sizes[at(s.dim)] = (s.end - s.start + s.step - 1) / s.step;
      sparse.push_back(s);
    }
  }
  if (sparse.empty()) {
    return out;
  }
  const auto [kept, moved] = index::slice_entries(c.pattern->indices(), sparse, c.pattern->known_coalesced());
  out.pattern = Pattern::make(moved, std::move(sizes), c.pattern->known_coalesced());
  out.values = take_rows(out.values, kept);
  return out;
}

/// The slice of a dim by numbers that may be negative or beyond it, as Python takes them.
structure::Slice slice_of(std::int64_t dim, std::int64_t size, std::int64_t start, std::int64_t end,
                          std::int64_t step) {
  TORCH_CHECK(step > 0, "slice step must be positive");
  const auto bound = [&](std::int64_t value) {
    return std::clamp<std::int64_t>(value < 0 ? value + size : value, 0, size);
  };
  return {dim, bound(start), std::max(bound(end), bound(start)), step};
}

bool slice(Call& call) {
  const Components& c = call.sparse();
  TORCH_CHECK_INDEX(c.dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const std::int64_t size = c.shape()[at(dim)];
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    return call.arg(name).isNone() ? otherwise : call.arg(name).toInt();
  };
  return call.give(sliced(c, {slice_of(dim, size, bound("start", 0), bound("end", size), call.integer("step"))}));
}

/// lacewing::tensor_slice: the leading dims, one slice each.
bool slices(Call& call) {
  const Components& c = call.sparse();
  const Dims starts = call.arg("starts").toIntVector();
  const Dims ends = call.arg("ends").toIntVector();
  const Dims steps = call.arg("steps").toIntVector();
  TORCH_CHECK(starts.size() == ends.size() && starts.size() == steps.size() && starts.size() <= at(c.dim()),
              "[lacewing.tensor_slice] needs a start, an end and a step for each of at most ", c.dim(), " dims");
  std::vector<structure::Slice> all;
  for (std::size_t d = 0; d < starts.size(); ++d) {
    all.push_back(slice_of(static_cast<std::int64_t>(d), c.shape()[d], starts[d], ends[d], steps[d]));
  }
  return call.give(sliced(c, all));
}

bool give_pieces(Call& call, const Components& c, std::int64_t dim, const Dims& lengths) {
  c10::List<at::Tensor> pieces;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    pieces.push_back(make_tensor(sliced(c, {{dim, start, start + length, 1}})));
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
  TORCH_CHECK_INDEX(c.dim() > 0, "Dimension specified as ", call.integer("dim"), " but tensor has no dimensions");
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
  // Entries grouped by the dim: where each position's run begins.
  const Grouping& runs = c.pattern->grouping({dim});
  const Pattern& found = runs.pattern ? *runs.pattern : *c.pattern;
  const auto group = index::find_keys(found.keys(), wanted);
  const auto known = group.clamp_min(0);
  at::Tensor begin = known;
  at::Tensor count = at::ones_like(known);
  if (!runs.distinct()) {
    begin = runs.segments.index_select(0, known).to(at::kLong);
    count = runs.counts().index_select(0, known);
  }
  count = at::where(group < 0, 0, count);
  const auto place = at::repeat_interleave(count);
  const auto first = count.cumsum(0) - count;
  const auto inside = at::arange(place.numel(), place.options()) - first.index_select(0, place);
  at::Tensor entry = begin.index_select(0, place) + inside;
  if (runs.order.defined()) {
    entry = runs.order.index_select(0, entry).to(at::kLong);
  }
  at::Tensor indices = c.pattern->indices().index_select(1, entry);
  indices.select(0, dim).copy_(place);
  Dims sizes = c.pattern->sizes();
  sizes[at(dim)] = wanted.numel();
  return {Pattern::make(indices, std::move(sizes)), take_rows(c.values, entry), c.fill};
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
  for (const std::optional<at::Tensor> item : call.args[1].toOptionalTensorList()) {
    if (item && item->defined()) {
      check_index_type(*item);
      const bool mask = item->scalar_type() == at::kBool || item->scalar_type() == at::kByte;
      if (is_sparse(*item) && !mask) {
        return Call::decline();
      }
      const at::Tensor t = is_sparse(*item) ? *item : beside(c, *item);
      if (mask) {
        if (t.dim() == 0 || dim + t.dim() > c.dim() ||
            t.sizes() != call.tensor(0).sizes().slice(at(dim), at(t.dim()))) {
          return Call::decline();  // torch has the sentence
        }
        for (const at::Tensor& part : t.nonzero().unbind(1)) {
          given.emplace_back(dim++, part);
        }
        continue;
      }
      given.emplace_back(dim, t.to(at::kLong));
    }
    ++dim;
  }
  if (given.empty() || dim > c.dim()) {
    return Call::decline();
  }
  for (auto& [d, t] : given) {
    t = wrapped_places(t, d, c.shape()[at(d)]);
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
    check_places(call, parts);
    return call.give(elements_at(c, parts));
  }
  return Call::decline();
}

/// Elements at places that a strided index names along one dim.
bool gather(Call& call) {
  const at::Tensor index = call.arg("index").toTensor();
  if (!call.is_sparse_at(0) || is_sparse(index)) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  if (!c.has_fill() || c.dense_dim() > 0 || c.dim() == 0 || index.dim() != c.dim()) {
    return Call::decline();
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    if (d != dim && index.size(d) > c.pattern->sizes()[at(d)]) {
      return Call::decline();
    }
  }
  std::vector<at::Tensor> places = box_places(index.sizes(), index);
  places[at(dim)] = index;
  check_places(call, places);
  places[at(dim)] = wrapped_places(index, dim, c.pattern->sizes()[at(dim)]);
  return call.give(elements_at(c, places));
}

/// Torch's own composition, which writes out the broadcast index: guarded first.
bool take_along_dim(Call& call) {
  const at::Tensor index = call.arg("indices").toTensor();
  if (call.is_sparse_at(0) && !call.arg("dim").isNone() && index.dim() == call.tensor(0).dim() && index.dim() > 0) {
    Dims shape = call.sparse().shape();
    const std::int64_t dim = wrap_dim(call.integer("dim"), index.dim());
    for (std::int64_t d = 0; d < index.dim(); ++d) {
      shape[at(d)] = d == dim || shape[at(d)] == 1 ? index.size(d) : shape[at(d)];
    }
    if (product_of(shape) > index.numel()) {
      check_dense_result(call.schema().name(), shape, at::kLong);
    }
  }
  return Call::decline();
}

/// Elements by their number in row-major order.
bool take(Call& call) {
  const at::Tensor index = call.arg("index").toTensor();
  if (!call.is_sparse_at(0) || is_sparse(index)) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  if (!c.has_fill() || c.dense_dim() > 0 || c.dim() == 0) {
    return Call::decline();
  }
  check_places(call, {index});
  const auto flat = wrapped_places(index.reshape(-1), 0, c.pattern->numel());
  return call.give(elements_at(c, index::unravel_keys(flat, c.pattern->sizes()).unbind(0)).reshape(index.sizes()));
}

bool masked_select(Call& call) {
  const at::Tensor mask = call.arg("mask").toTensor();
  if (!call.is_sparse_at(0) || is_sparse(mask) || mask.scalar_type() != at::kBool) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const Dims shape = at::infer_size(call.tensor(0).sizes(), mask.sizes());
  if (!c.has_fill() || c.dense_dim() > 0 || c.dim() == 0) {
    return Call::decline();
  }
  const auto missing = shape.size() - static_cast<std::size_t>(c.dim());
  check_places(call, {mask.expand(shape)});
  std::vector<at::Tensor> places = mask.expand(shape).nonzero().unbind(1);
  places.erase(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(missing));
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    if (c.pattern->sizes()[at(d)] == 1) {
      places[at(d)] = at::zeros_like(places[at(d)]);  // a dim that repeats
    }
  }
  return call.give(elements_at(c, places));
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
  return call.give({Pattern::make(at::stack(rows), std::move(out_sizes)), take_rows(c.values, kept), c.fill});
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
    {"aten::select.int", select},
    {"aten::select_copy.int", select},
    {"aten::slice.Tensor", slice},
    {"aten::slice_copy.Tensor", slice},
    {"lacewing::tensor_slice", slices},
    {"aten::split.Tensor", split},
    {"aten::split_copy.Tensor", split},
    {"aten::split_with_sizes", split},
    {"aten::split_with_sizes_copy", split},
    {"aten::unsafe_split.Tensor", split},
    {"aten::unsafe_split_with_sizes", split},
    {"aten::unbind.int", unbind},
    {"aten::unbind_copy.int", unbind},
    {"aten::index_select", index_select},
    {"aten::index.Tensor", index},
    {"aten::nonzero", nonzero},
    {"aten::gather", gather},
    {"aten::take", take},
    {"aten::take_along_dim", take_along_dim},
    {"aten::masked_select", masked_select},
    {"aten::diagonal", diagonal},
    {"aten::diagonal_copy", diagonal},
    {"aten::diag_embed", diag_embed},
};

}  // namespace

std::span<const RuleEntry> indexing_rules() { return kRules; }

}  // namespace lacewing::tensor
