// cat and stack.
#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "tensor/align.h"
#include "tensor/call.h"

namespace lacewing::tensor {
namespace {

/// Whether all fills are one constant number.
bool same_numbers(const std::vector<Components>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Components& c) {
    return c.fill.kind == FillKind::scalar && !needs_grad(c.fill.value) &&
           (fill_number(c).toComplexDouble() == fill_number(all[0]).toComplexDouble());
  });
}

/// Tensors joined along a sparse dim: the entries of the later ones move on.
Components join_sparse(const std::vector<Components>& all, std::int64_t dim) {
  std::vector<at::Tensor> indices, values;
  std::int64_t offset = 0;
  for (const Components& c : all) {
    at::Tensor moved = c.pattern->indices();
    if (offset > 0) {
      moved = moved.clone();
      moved.select(0, dim).add_(offset);
    }
    indices.push_back(moved);
    values.push_back(c.values);
    offset += c.pattern->sizes()[at(dim)];
  }
  Dims sizes = all[0].pattern->sizes();
  sizes[at(dim)] = offset;
  const bool sorted =
      dim == 0 && std::all_of(all.begin(), all.end(), [](const Components& c) { return c.pattern->known_coalesced(); });
  return {Pattern::make(at::cat(indices, 1), std::move(sizes), sorted), at::cat(values), all[0].fill};
}

/// Few strided elements beside the sparse tensors (a column of ones) become entries, each of them: less than a
/// sixteenth of the result, with the entries. Where the fill is undefined there is no strided result.
std::vector<at::Tensor> with_few_as_entries(std::vector<at::Tensor> tensors) {
  const auto first = std::find_if(tensors.begin(), tensors.end(), is_sparse);
  if (first == tensors.end() || std::all_of(tensors.begin(), tensors.end(), is_sparse)) {
    return tensors;
  }
  const Components like = components(*first);
  double elements = 0;
  double all = 0;
  for (const at::Tensor& t : tensors) {
    elements += static_cast<double>(is_sparse(t) ? components(t).values.numel() : t.numel());
    all += static_cast<double>(t.numel());
  }
  if (like.has_fill() && elements * 16 > all) {
    return tensors;
  }
  for (at::Tensor& t : tensors) {
    if (!is_sparse(t) && t.dim() == like.dim()) {
      const bool fits =
          like.fill.kind != FillKind::array || like.fill.value.sizes() == t.sizes().slice(at(like.sparse_dim()));
      const Fill fill = !like.has_fill() ? Fill::undefined()
                        : fits           ? Fill{like.fill.kind, like.fill.value.to(t.scalar_type())}
                                         : known_fill(0, t);
      t = make_tensor(with_all_entries(t, like.sparse_dim(), fill));
    }
  }
  return tensors;
}

bool cat_tensors(Call& call, const std::vector<at::Tensor>& given, std::int64_t given_dim) {
  const std::vector<at::Tensor> tensors = with_few_as_entries(given);
  std::vector<Components> all;
  for (const at::Tensor& t : tensors) {
    if (t.dim() == 1 && t.numel() == 0) {
      continue;
    }
    if (!is_sparse(t)) {
      return Call::decline();
    }
    all.push_back(components(t));
  }
  if (all.empty() || all[0].dim() == 0) {
    return Call::decline();
  }
  const std::int64_t ndim = all[0].dim();
  const std::int64_t dim = wrap_dim(given_dim, ndim);
  const Dims shape = all[0].shape();
  std::int64_t dense_dims = all[0].dense_dim();
  for (const Components& c : all) {
    Dims own = c.shape();
    if (c.dim() != ndim) {
      return Call::decline();
    }
    own[at(dim)] = shape[at(dim)];
    if (own != shape || c.has_fill() != all[0].has_fill()) {
      return Call::decline();
    }
    dense_dims = std::min(dense_dims, c.dense_dim());
  }
  const at::ScalarType type = at::native::result_type(tensors);
  for (Components& c : all) {
    if (c.values.scalar_type() != type) {
      c = components(make_tensor(c).to(type));
    }
    if (c.dense_dim() > dense_dims) {
      if (c.fill.kind == FillKind::array) {
        return Call::decline();
      }
      c = dense_to_sparse_dims(c, c.dense_dim() - dense_dims);
    }
  }
  if (dim < ndim - dense_dims) {
    if (all[0].has_fill() && !same_numbers(all)) {
      return Call::decline();
    }
    return call.give(join_sparse(all, dim));
  }
  const std::int64_t d = dim - (ndim - dense_dims);
  const Aligned aligned = align(all, Join::all);
  if (!all[0].has_fill()) {
    return call.give({aligned.pattern, at::cat(aligned.values, d + 1), Fill::undefined()});
  }
  std::vector<at::Tensor> blocks;
  for (const Components& c : all) {
    blocks.push_back(fill_block(c));
  }
  const Fill fill = same_numbers(all) ? all[0].fill : Fill{FillKind::array, at::cat(blocks, d)};
  return call.give({aligned.pattern, at::cat(aligned.values, d + 1), fill});
}

bool cat(Call& call) { return cat_tensors(call, call.args[0].toTensorVector(), call.integer("dim")); }

bool stack(Call& call) {
  std::vector<at::Tensor> tensors = call.args[0].toTensorVector();
  if (tensors.empty() || tensors[0].dim() == 0) {
    return Call::decline();
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), tensors[0].dim() + 1);
  const Dims shape = tensors[0].sizes().vec();
  for (at::Tensor& t : tensors) {
    if (!is_sparse(t) || t.sizes() != at::IntArrayRef(shape)) {
      return Call::decline();
    }
    t = t.unsqueeze(dim);
  }
  return cat_tensors(call, tensors, dim);
}

constexpr RuleEntry kRules[] = {
    {"aten::cat", cat},
    {"aten::stack", stack},
};

}  // namespace

std::span<const RuleEntry> join_rules() { return kRules; }

}  // namespace lacewing::tensor
