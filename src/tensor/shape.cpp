// Ops that move elements without changing them: the entries move, the fill stays.
#include <algorithm>
#include <numeric>

#include <ATen/InferSize.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "index/keys.h"
#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/construct.h"
#include "tensor/densify.h"

namespace lacewing::tensor {
namespace {

/// All dims sparse, where the fill allows it.
std::optional<Components> all_sparse(const Components& c, std::int64_t sparse_dims) {
  const std::int64_t more = sparse_dims - c.sparse_dim();
  if (more <= 0) {
    return c;
  }
  if (c.fill.kind == FillKind::array) {
    return std::nullopt;
  }
  return dense_to_sparse_dims(c, more);
}

/// Whether dims change their order, those of one element apart: then elements would lie in another order.
bool moves_elements(const Dims& order, const Dims& shape) {
  Dims longer;
  std::copy_if(order.begin(), order.end(), std::back_inserter(longer),
               [&](std::int64_t d) { return shape[at(d)] > 1; });
  return !std::is_sorted(longer.begin(), longer.end());
}

bool permute_to(Call& call, const Dims& order) {
  const Components& given = call.sparse();
  const std::int64_t sparse = given.sparse_dim();
  // Sparse dims stay in front: how many leading ones does the result have, if dense dims that move forward turn sparse?
  std::int64_t last_sparse = -1;
  for (std::int64_t d = 0; d < given.dim(); ++d) {
    if (order[at(d)] < sparse) {
      last_sparse = d;
    }
  }
  const bool mixes = last_sparse >= sparse;
  if (mixes && sparse == 1 && given.has_fill()) {
    // One sparse dim behind dense ones: every block is cut, and the result is strided (the seed's example).
    return call.give(densified_for(call.schema().name(), call.tensor(0)).permute(order));
  }
  std::optional<Components> c = given;
  if (mixes) {
    c = all_sparse(given, given.dim());
    if (!c) {
      return Call::decline();
    }
  }
  Dims sparse_order, dense_order{0};
  for (const std::int64_t d : order) {
    if (d < c->sparse_dim()) {
      sparse_order.push_back(d);
    } else {
      dense_order.push_back(d - c->sparse_dim() + 1);
    }
  }
  const auto block_order = [&] {
    Dims dims;
    for (std::size_t k = 1; k < dense_order.size(); ++k) {
      dims.push_back(dense_order[k] - 1);
    }
    return dims;
  }();
  const bool same = sparse_order == all_dims(c->sparse_dim());
  const PatternPtr pattern = same ? c->pattern : c->pattern->permuted(sparse_order);
  const at::Tensor result = make_tensor({pattern, c->values.permute(dense_order),
                                         fill_for(*c, [&](const at::Tensor& t) { return t.permute(block_order); })});
  if (moves_elements(order, c->shape())) {
    mark_permuted(result);
  }
  return call.give(result);
}

bool permute(Call& call) {
  Dims order = call.arg("dims").toIntVector();
  const std::int64_t ndim = call.sparse().dim();
  TORCH_CHECK(static_cast<std::int64_t>(order.size()) == ndim, "permute needs ", ndim, " dims, not ", order.size());
  std::vector<bool> seen(order.size(), false);
  for (std::int64_t& d : order) {
    d = wrap_dim(d, ndim);
    TORCH_CHECK(!seen[at(d)], "permute(): duplicate dims are not allowed.");
    seen[at(d)] = true;
  }
  return permute_to(call, order);
}

bool swapped(Call& call, std::int64_t a, std::int64_t b) {
  const std::int64_t ndim = call.sparse().dim();
  if (ndim == 0) {
    return call.give(call.tensor(0));
  }
  Dims order = all_dims(ndim);
  std::swap(order[at(wrap_dim(a, ndim))], order[at(wrap_dim(b, ndim))]);
  return permute_to(call, order);
}

bool transpose(Call& call) { return swapped(call, call.integer("dim0"), call.integer("dim1")); }
bool t(Call& call) {
  const std::int64_t ndim = call.sparse().dim();
  TORCH_CHECK(ndim <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", ndim, "D");
  return ndim < 2 ? call.give(call.tensor(0)) : swapped(call, 0, 1);
}

/// No elements in another shape, whose last `kept` dims are dense dims as before.
bool reshape_nothing(Call& call, const Components& given, const Dims& shape, std::int64_t kept) {
  if (given.fill.kind == FillKind::array && kept < given.dense_dim()) {
    return Call::decline();
  }
  const Dims sizes(shape.begin(), shape.end() - kept);
  Dims rows{0};
  rows.insert(rows.end(), shape.end() - kept, shape.end());
  const auto no_keys = at::empty({0}, at::dtype(at::kLong).device(given.values.device()));
  return call.give({Pattern::of_keys(no_keys, sizes), given.values.narrow(0, 0, 0).reshape(rows), given.fill});
}

/// Another shape of the same elements in row-major order. Stays sparse: the dense dims that a boundary cuts turn
/// sparse.
bool reshape_to(Call& call, const Components& given, Dims shape) {
  // The dense dims that can stay: a common suffix of both shapes.
  const Dims from = given.shape();
  std::int64_t kept = 0;
  while (kept < given.dense_dim() && kept < static_cast<std::int64_t>(shape.size()) &&
         from[from.size() - 1 - at(kept)] == shape[shape.size() - 1 - at(kept)]) {
    ++kept;
  }
  if (product_of(from) == 0) {
    return reshape_nothing(call, given, shape, kept);
  }
  const auto moved_out = given.dense_dim() - kept;
  // Dense dims that merge or split among themselves may stay dense: the values are reshaped.
  const std::int64_t dense_numel = product_of(given.dense_shape());
  std::int64_t tail = 1;
  std::int64_t dense_out = 0;
  while (dense_out < static_cast<std::int64_t>(shape.size()) && tail < dense_numel) {
    tail *= shape[shape.size() - 1 - at(dense_out++)];
  }
  std::optional<Components> c = given;
  if (given.dense_dim() > 0 && tail == dense_numel && dense_out < static_cast<std::int64_t>(shape.size())) {
    Dims rows{given.pattern->nse()};
    const Dims block(shape.end() - dense_out, shape.end());
    rows.insert(rows.end(), block.begin(), block.end());
    c = Components{given.pattern, given.values.reshape(rows),
                   fill_for(given, [&](const at::Tensor& b) { return b.reshape(block); })};
  } else {
    if (moved_out > 0) {
      c = all_sparse(given, given.sparse_dim() + moved_out);
    }
    dense_out = kept;
    if (dense_out == static_cast<std::int64_t>(shape.size()) && given.dim() > 0) {
      c = std::nullopt;
    }
  }
  if (!c) {
    return Call::decline();
  }
  const Dims sparse_sizes(shape.begin(), shape.end() - dense_out);
  // Row-major keys are the same in both shapes, and so is their order.
  const auto pattern =
      Pattern::make(index::unravel_keys(c->pattern->keys(), sparse_sizes), sparse_sizes, c->pattern->known_coalesced());
  return call.give({pattern, c->values, c->fill});
}

bool view(Call& call) {
  Dims shape = call.arg(call.has("size") ? "size" : "shape").toIntVector();
  return reshape_to(call, call.sparse(), at::infer_size(shape, product_of(call.sparse().shape())));
}

bool unsqueeze(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim() + 1);
  if (dim > c.sparse_dim() || (dim == c.sparse_dim() && c.dense_dim() > 0)) {
    const std::int64_t d = dim - c.sparse_dim();
    return call.give(
        {c.pattern, c.values.unsqueeze(d + 1), fill_for(c, [&](const at::Tensor& b) { return b.unsqueeze(d); })});
  }
  Dims sizes = c.pattern->sizes();
  sizes.insert(sizes.begin() + dim, 1);
  const auto& indices = c.pattern->indices();
  const auto zeros = at::zeros({1, c.pattern->nse()}, indices.options());
  const auto joined = at::cat({indices.narrow(0, 0, dim), zeros, indices.narrow(0, dim, c.sparse_dim() - dim)});
  return call.give({Pattern::make(joined, std::move(sizes), c.pattern->known_coalesced()), c.values, c.fill});
}

bool squeeze_dims(Call& call, const Dims& dims) {
  const Components& c = call.sparse();
  const Dims shape = c.shape();
  Dims rows, kept, sizes, block;
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    const bool gone = shape[at(d)] == 1 && std::find(dims.begin(), dims.end(), d) != dims.end();
    if (gone) {
      continue;
    }
    if (d < c.sparse_dim()) {
      kept.push_back(d);
      sizes.push_back(shape[at(d)]);
    } else {
      block.push_back(shape[at(d)]);
    }
  }
  rows = block;
  rows.insert(rows.begin(), c.pattern->nse());
  const auto pattern = Pattern::make(
      c.pattern->indices().index_select(0, at::tensor(at::IntArrayRef(kept), c.pattern->indices().options())),
      std::move(sizes), c.pattern->known_coalesced());
  return call.give(
      {pattern, c.values.reshape(rows), fill_for(c, [&](const at::Tensor& b) { return b.reshape(block); })});
}

bool squeeze(Call& call) {
  const std::int64_t ndim = call.sparse().dim();
  if (ndim == 0) {
    return call.give(call.tensor(0));
  }
  if (!call.has("dim")) {
    return squeeze_dims(call, all_dims(ndim));
  }
  Dims dims = call.arg("dim").isInt() ? Dims{call.integer("dim")} : call.arg("dim").toIntVector();
  for (std::int64_t& d : dims) {
    d = wrap_dim(d, ndim);
  }
  return squeeze_dims(call, dims);
}

bool expand(Call& call) {
  const Components& c = call.sparse();
  Dims shape = call.arg("size").toIntVector();
  const auto missing = static_cast<std::int64_t>(shape.size()) - c.dim();
  if (missing < 0 || c.dim() == 0) {
    return Call::decline();
  }
  const Dims own = c.shape();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t k = static_cast<std::int64_t>(d) - missing;
    if (shape[d] == -1 && k >= 0) {
      shape[d] = own[at(k)];
    }
    const bool fits = shape[d] >= 0 && (k < 0 || own[at(k)] == shape[d] || own[at(k)] == 1);
    if (!fits) {
      return Call::decline();
    }
  }
  const Dims sparse_sizes(shape.begin(), shape.end() - c.dense_dim());
  const Dims block(shape.end() - c.dense_dim(), shape.end());
  Components wide = expand_sparse(c, sparse_sizes);
  Dims rows = block;
  rows.insert(rows.begin(), wide.pattern->nse());
  return call.give(
      {wide.pattern, wide.values.expand(rows), fill_for(c, [&](const at::Tensor& b) { return b.expand(block); })});
}

bool repeat(Call& call) {
  const Dims repeats = call.arg("repeats").toIntVector();
  const Components& given = call.sparse();
  const auto missing = static_cast<std::int64_t>(repeats.size()) - given.dim();
  const bool negative = std::any_of(repeats.begin(), repeats.end(), [](std::int64_t count) { return count < 0; });
  if (missing < 0 || given.dim() == 0 || negative) {
    return Call::decline();
  }
  const std::int64_t dense = given.dense_dim();
  Dims outer, block_repeats(repeats.end() - dense, repeats.end());
  const std::int64_t sparse_out = static_cast<std::int64_t>(repeats.size()) - dense;
  outer.assign(repeats.begin(), repeats.begin() + sparse_out);
  Dims sizes = given.shape();
  sizes.insert(sizes.begin(), at(missing), 1);
  sizes = multiplied("repeat", sizes, repeats);
  sizes.resize(at(sparse_out));
  const std::int64_t copies = product_of(outer);
  const std::int64_t nse = given.pattern->nse();
  const auto& indices = given.pattern->indices();
  const auto copy = index::unravel_keys(at::arange(copies, indices.options()), outer);
  std::vector<at::Tensor> rows;
  for (std::int64_t d = 0; d < sparse_out; ++d) {
    const std::int64_t k = d - missing;
    const std::int64_t size = k < 0 ? 1 : given.pattern->sizes()[at(k)];
    auto index = (copy.select(0, d) * size).unsqueeze(1);
    index = k < 0 ? index.expand({copies, nse}) : index + indices.select(0, k).unsqueeze(0);
    rows.push_back(index.reshape(-1));
  }
  Dims value_repeats = block_repeats;
  value_repeats.insert(value_repeats.begin(), copies);
  return call.give({Pattern::make(index_rows(rows, copies * nse, indices), std::move(sizes)),
                    given.values.repeat(value_repeats),
                    fill_for(given, [&](const at::Tensor& b) { return b.repeat(block_repeats); })});
}

/// Indices of some sparse dims replaced by a function of them.
template <typename F>
Components reindexed(const Components& c, const Dims& dims, const F& f) {
  at::Tensor indices = c.pattern->indices().clone();
  for (std::size_t k = 0; k < dims.size(); ++k) {
    if (dims[k] < c.sparse_dim()) {
      const at::Tensor row = indices.select(0, dims[k]);
      row.copy_(f(row.clone(), c.pattern->sizes()[at(dims[k])], k));
    }
  }
  return {Pattern::make(indices, c.pattern->sizes()), c.values, c.fill};
}

Dims wrapped(const Dims& dims, std::int64_t ndim) {
  Dims result;
  for (const std::int64_t d : dims) {
    result.push_back(wrap_dim(d, ndim));
  }
  return result;
}

bool flip(Call& call) {
  const Components& c = call.sparse();
  if (c.dim() == 0) {
    return Call::decline();
  }
  const Dims dims = wrapped(call.arg("dims").toIntVector(), c.dim());
  Components out = reindexed(c, dims, [](const at::Tensor& i, std::int64_t size, std::size_t) { return size - 1 - i; });
  Dims block, rows;
  for (const std::int64_t d : dims) {
    if (d >= c.sparse_dim()) {
      block.push_back(d - c.sparse_dim());
      rows.push_back(d - c.sparse_dim() + 1);
    }
  }
  if (!block.empty()) {
    out.values = out.values.flip(rows);
    out.fill = fill_for(c, [&](const at::Tensor& b) { return b.flip(block); });
  }
  return call.give(std::move(out));
}

bool roll(Call& call) {
  const Components& c = call.sparse();
  const Dims shifts = call.arg("shifts").toIntVector();
  const Dims given = call.arg("dims").toIntVector();
  if (c.dim() == 0) {
    return Call::decline();
  }
  if (product_of(c.shape()) == 0) {
    return call.give(call.tensor(0).clone());
  }
  if (given.empty() && shifts.size() == 1) {
    const at::Tensor flat = call.tensor(0).reshape({-1}).roll(shifts[0], 0);
    return call.give(flat.reshape(call.tensor(0).sizes()));
  }
  if (given.size() != shifts.size()) {
    return Call::decline();
  }
  const Dims dims = wrapped(given, c.dim());
  Components out = reindexed(c, dims, [&](const at::Tensor& i, std::int64_t size, std::size_t k) {
    return at::remainder(i + shifts[k], size);
  });
  for (std::size_t k = 0; k < dims.size(); ++k) {
    if (dims[k] >= c.sparse_dim()) {
      const std::int64_t d = dims[k] - c.sparse_dim();
      out.values = out.values.roll(shifts[k], d + 1);
      out.fill = fill_for(out, [&](const at::Tensor& b) { return b.roll(shifts[k], d); });
    }
  }
  return call.give(std::move(out));
}

/// tril and triu: entries on the other side become 0, which stays sparse with the fill 0.
bool triangle(Call& call) {
  const Components& c = call.sparse();
  const std::int64_t diagonal = call.integer("diagonal");
  const bool lower = call.schema().name() == "aten::tril";
  if (c.dim() < 2 || !zero_fill(c) || (c.dense_dim() == 1)) {
    return Call::decline();
  }
  if (c.dense_dim() >= 2) {
    return call.give({c.pattern, lower ? c.values.tril(diagonal) : c.values.triu(diagonal), c.fill});
  }
  const auto& indices = c.pattern->indices();
  const auto offset = indices.select(0, -1) - indices.select(0, -2);
  const auto kept = at::nonzero(lower ? offset <= diagonal : offset >= diagonal).squeeze(1);
  return call.give({Pattern::make(indices.index_select(1, kept), c.pattern->sizes(), c.pattern->known_coalesced()),
                    c.values.index_select(0, kept), c.fill});
}

bool constant_pad(Call& call) {
  const Components& given = call.sparse();
  const Dims pad = call.arg("pad").toIntVector();
  const auto pairs = static_cast<std::int64_t>(pad.size()) / 2;
  if (pad.size() % 2 != 0 || pairs > given.dim() || given.fill.kind != FillKind::scalar ||
      needs_grad(given.fill.value) ||
      fill_number(given).toComplexDouble() != call.arg("value").toScalar().toComplexDouble()) {
    return Call::decline();
  }
  // Entries of one index add, and so would what is padded.
  const auto c = all_sparse(without_duplicates(given), pairs > given.dense_dim() ? given.dim() : given.sparse_dim());
  at::Tensor values = c->values;
  at::Tensor indices = c->pattern->indices().clone();
  Dims sizes = c->pattern->sizes();
  at::Tensor kept;
  Dims block_pad;
  for (std::int64_t k = 0; k < pairs; ++k) {
    const std::int64_t d = c->dim() - 1 - k;
    const std::int64_t before = pad[at(2 * k)];
    const std::int64_t after = pad[at(2 * k + 1)];
    if (d >= c->sparse_dim()) {
      block_pad.push_back(before);
      block_pad.push_back(after);
      continue;
    }
    sizes[at(d)] += before + after;
    if (sizes[at(d)] < 0) {
      return Call::decline();
    }
    const at::Tensor row = indices.select(0, d);
    row.add_(before);
    const auto inside = at::logical_and(row >= 0, row < sizes[at(d)]);
    kept = kept.defined() ? at::logical_and(kept, inside) : inside;
  }
  if (!block_pad.empty()) {
    values = at::constant_pad_nd(values, block_pad, call.arg("value").toScalar());
  }
  if (kept.defined()) {
    const auto places = at::nonzero(kept).squeeze(1);
    indices = indices.index_select(1, places);
    values = values.index_select(0, places);
  }
  return call.give({Pattern::make(indices, std::move(sizes)), values, c->fill});
}

constexpr RuleEntry kRules[] = {
    {"aten::permute", permute},
    {"aten::permute_copy", permute},
    {"aten::transpose.int", transpose},
    {"aten::transpose_copy.int", transpose},
    {"aten::t", t},
    {"aten::t_copy", t},
    {"aten::view", view},
    {"aten::view_copy", view},
    {"aten::reshape", view},
    {"aten::_reshape_alias", view},
    {"aten::_unsafe_view", view},
    {"aten::unsqueeze", unsqueeze},
    {"aten::unsqueeze_copy", unsqueeze},
    {"aten::squeeze", squeeze},
    {"aten::squeeze.dim", squeeze},
    {"aten::squeeze.dims", squeeze},
    {"aten::squeeze_copy", squeeze},
    {"aten::squeeze_copy.dim", squeeze},
    {"aten::squeeze_copy.dims", squeeze},
    {"aten::expand", expand},
    {"aten::expand_copy", expand},
    {"aten::repeat", repeat},
    {"aten::flip", flip},
    {"aten::roll", roll},
    {"aten::tril", triangle},
    {"aten::triu", triangle},
    {"aten::constant_pad_nd", constant_pad},
};

}  // namespace

std::span<const RuleEntry> shape_rules() { return kRules; }

}  // namespace lacewing::tensor
