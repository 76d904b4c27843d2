#include "tensor/align.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/keys.h"
#include "index/merge.h"
#include "tensor/densify.h"

namespace lacewing::tensor {
namespace {

/// positions[into[k]], -1 where into[k] is.
at::Tensor moved(const at::Tensor& positions, const at::Tensor& into) {
  const auto nowhere = at::full({1}, -1, positions.options());
  return at::cat({positions, nowhere}).index_select(0, at::where(into < 0, positions.numel(), into));
}

}  // namespace

Components dense_to_sparse_dims(const Components& c, std::int64_t count) {
  if (count == 0) {
    return c;
  }
  const Dims moved = c.dense_shape().slice(0, static_cast<std::size_t>(count)).vec();
  const std::int64_t block = product_of(moved);
  const std::int64_t nse = c.pattern->nse();
  const auto inner = index::unravel_keys(at::arange(block, c.pattern->indices().options()), moved);
  const auto outer = c.pattern->indices();
  const auto indices =
      at::cat({outer.unsqueeze(2).expand({outer.size(0), nse, block}).reshape({outer.size(0), nse * block}),
               inner.unsqueeze(1).expand({count, nse, block}).reshape({count, nse * block})});
  Dims sizes = c.pattern->sizes();
  sizes.insert(sizes.end(), moved.begin(), moved.end());
  Dims value_shape{nse * block};
  const auto rest = c.dense_shape().slice(static_cast<std::size_t>(count));
  value_shape.insert(value_shape.end(), rest.begin(), rest.end());
  return {Pattern::make(indices, std::move(sizes), c.pattern->known_coalesced()), c.values.reshape(value_shape),
          c.fill};
}

Components with_all_entries(const at::Tensor& dense, std::int64_t sparse_dims, Fill fill) {
  const auto sizes = dense.sizes().slice(0, at(sparse_dims));
  Dims rows{product_of(sizes)};
  rows.insert(rows.end(), dense.sizes().begin() + sparse_dims, dense.sizes().end());
  const auto keys = at::arange(rows[0], at::dtype(at::kLong).device(dense.device()));
  return {Pattern::of_keys(keys, sizes.vec()), dense.reshape(rows), std::move(fill)};
}

Components expand_sparse(const Components& c, at::IntArrayRef sparse_sizes) {
  if (at::IntArrayRef(c.pattern->sizes()) == sparse_sizes) {
    return c;
  }
  const auto missing = static_cast<std::int64_t>(sparse_sizes.size()) - c.sparse_dim();
  Dims repeated_dims, repeated_sizes;
  for (std::size_t d = 0; d < sparse_sizes.size(); ++d) {
    const std::int64_t own = static_cast<std::int64_t>(d) - missing;
    if (own < 0 || c.pattern->sizes()[static_cast<std::size_t>(own)] != sparse_sizes[d]) {
      repeated_dims.push_back(static_cast<std::int64_t>(d));
      repeated_sizes.push_back(sparse_sizes[d]);
    }
  }
  const std::int64_t copies = product_of(repeated_sizes);
  const std::int64_t nse = c.pattern->nse();
  check_dense_result("repeating entries along a dim", {copies, nse, c.sparse_dim() + 1}, at::kLong);
  const auto copy = index::unravel_keys(at::arange(copies, c.pattern->indices().options()), repeated_sizes);
  // Copies outermost: where only leading dims repeat, the entries stay sorted.
  std::vector<at::Tensor> rows;
  std::size_t next = 0;
  for (std::size_t d = 0; d < sparse_sizes.size(); ++d) {
    if (next < repeated_dims.size() && repeated_dims[next] == static_cast<std::int64_t>(d)) {
      rows.push_back(copy.select(0, static_cast<std::int64_t>(next++)).unsqueeze(1).expand({copies, nse}).reshape(-1));
    } else {
      const std::int64_t own = static_cast<std::int64_t>(d) - missing;
      rows.push_back(c.pattern->indices().select(0, own).unsqueeze(0).expand({copies, nse}).reshape(-1));
    }
  }
  Dims repeats(static_cast<std::size_t>(c.values.dim()), 1);
  repeats[0] = copies;
  const auto indices = index_rows(rows, nse * copies, c.pattern->indices());
  return {Pattern::make(indices, sparse_sizes.vec()), c.values.repeat(repeats), c.fill};
}

std::optional<std::vector<Components>> same_shape(const std::vector<Components>& operands, at::IntArrayRef out_shape,
                                                  std::int64_t dense_dims) {
  const auto sparse_sizes = out_shape.slice(0, out_shape.size() - static_cast<std::size_t>(dense_dims));
  std::vector<Components> result;
  for (const Components& given : operands) {
    const std::int64_t extra = given.dense_dim() - dense_dims;
    if (extra > 0 && given.fill.kind == FillKind::array) {
      return std::nullopt;
    }
    result.push_back(expand_sparse(coalesced(dense_to_sparse_dims(given, extra)), sparse_sizes));
  }
  return result;
}

at::Tensor pick_rows(const Components& c, const at::Tensor& positions) {
  Dims one = c.values.sizes().vec();
  one[0] = 1;
  const auto row = fill_row(c).expand(one);
  const auto place = at::where(positions < 0, c.pattern->nse(), positions);
  return at::cat({c.values, row}).index_select(0, place);
}

namespace {

/// Whether entries are numbers that no derivative is wanted of: keys and elements are merged in one pass.
bool mergeable(const std::vector<Components>& all) {
  const auto fits = [&](const Components& c) {
    return c.dense_dim() == 0 && c.fill.kind == FillKind::scalar && is_plain(c.values) && is_plain(c.fill.value) &&
           c.fill.value.scalar_type() == c.values.scalar_type() && c.fill.value.device() == c.values.device();
  };
  return all.size() == 2 && fits(all[0]) && fits(all[1]) && all[0].values.device() == all[1].values.device();
}

/// Two mergeable operands, merged.
struct MergedPair {
  at::Tensor a_values, b_values;
  kernels::Elements a, b;
  index::SetMerge merge;

  MergedPair(const std::vector<Components>& all, Join join)
      : a_values(all[0].values.contiguous()),
        b_values(all[1].values.contiguous()),
        a{a_values.const_data_ptr(), all[0].fill.value.const_data_ptr()},
        b{b_values.const_data_ptr(), all[1].fill.value.const_data_ptr()},
        merge(all[0].pattern->keys(), all[1].pattern->keys(),
              join == Join::both ? index::Kept::common : index::Kept::all) {}

  at::Tensor values_like(const Components& c) const {
    return empty_result({merge.count()}, c.values.options().requires_grad(false));
  }
};

std::optional<Aligned> merged_elements(const std::vector<Components>& all, Join join) {
  if (!mergeable(all) || all[0].values.element_size() != all[1].values.element_size()) {
    return std::nullopt;
  }
  const MergedPair pair(all, join);
  Aligned result;
  for (const Components& c : all) {
    result.values.push_back(pair.values_like(c));
  }
  const at::Tensor keys = pair.merge.write(pair.a, pair.b, result.values[0], result.values[1]);
  result.pattern = Pattern::of_keys(keys, all[0].pattern->sizes());
  return result;
}

}  // namespace

Aligned align(const std::vector<Components>& operands, Join join) {
  const bool one_set = std::all_of(operands.begin(), operands.end(), [&](const Components& c) {
    return c.pattern == operands.front().pattern && c.pattern->known_distinct();
  });
  std::vector<Components> all;
  for (const Components& c : operands) {
    all.push_back(one_set ? c : coalesced(c));
  }
  const auto first = all.front().pattern;
  const bool same = std::all_of(all.begin(), all.end(), [&](const Components& c) {
    return c.pattern == first || c.pattern->keys().is_same(first->keys());
  });
  Aligned result;
  if (same) {
    result.pattern = first;
    for (const Components& c : all) {
      result.values.push_back(c.values);
    }
    return result;
  }
  // Operands without a fill decide the index set by themselves; those with one follow.
  const bool undefined = std::any_of(all.begin(), all.end(), [](const Components& c) { return !c.has_fill(); });
  const bool intersect = undefined || join == Join::both;
  if (!undefined) {
    if (auto merged = merged_elements(all, join)) {
      return *std::move(merged);
    }
  }
  const auto leads = [&](const Components& c) { return join == Join::both || !undefined || !c.has_fill(); };
  at::Tensor keys;
  std::vector<at::Tensor> positions(all.size());
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (!leads(all[k])) {
      continue;
    }
    const at::Tensor& own = all[k].pattern->keys();
    if (!keys.defined()) {
      keys = own;
      positions[k] = at::arange(own.numel(), own.options());
      continue;
    }
    const index::Merged merged = intersect ? index::intersection_of(keys, own) : index::union_of(keys, own);
    for (std::size_t before = 0; before < k; ++before) {
      if (positions[before].defined()) {
        positions[before] = moved(positions[before], merged.in_a);
      }
    }
    positions[k] = merged.in_b;
    keys = merged.keys;
  }
  result.pattern = Pattern::of_keys(keys.contiguous(), first->sizes());
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Components& c = all[k];
    if (!leads(c)) {
      positions[k] = index::find_keys(c.pattern->keys(), keys);
    }
    const bool everywhere = (intersect && leads(c)) || (!intersect && keys.numel() == c.pattern->nse());
    result.values.push_back(everywhere ? c.values.index_select(0, positions[k]) : pick_rows(c, positions[k]));
  }
  return result;
}

std::optional<Aligned> combine(const std::vector<Components>& operands, Join join, kernels::Combine with) {
  const bool numbers = std::all_of(operands.begin(), operands.end(), [&](const Components& c) {
    const at::ScalarType type = c.values.scalar_type();
    return type == operands.front().values.scalar_type() && (type == at::kFloat || type == at::kDouble);
  });
  if (!numbers || !mergeable(operands)) {
    return std::nullopt;
  }
  const std::vector<Components> all{coalesced(operands[0]), coalesced(operands[1])};
  if (all[0].pattern == all[1].pattern || all[0].pattern->keys().is_same(all[1].pattern->keys())) {
    return std::nullopt;
  }
  const MergedPair pair(all, join);
  at::Tensor values = pair.values_like(all[0]);
  const at::Tensor keys = pair.merge.write(pair.a, pair.b, with, values);
  return Aligned{Pattern::of_keys(keys, all[0].pattern->sizes()), {values}};
}

}  // namespace lacewing::tensor
