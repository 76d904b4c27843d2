// Products: sparse times dense by the product engine, sparse times sparse over the pairs that meet.
//
// With fills a and b over K: A = A' + a, B = B' + b with fill 0, and A B = A' B' + a 1 (1^T B') + (A' 1) b 1^T + a b K.
// A row with few elements to fill would lose its digits in A' = A - a: there the elements are multiplied as they are.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

#include "common/sum_type.h"
#include "index/keys.h"
#include "index/merge.h"
#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/densify.h"
#include "tensor/reduction.h"
#include "tensor/sparse_product.h"

namespace lacewing::tensor {
namespace {

/// What the engine takes: numbers as entries, floating point.
bool multiplies(const Components& c) {
  const auto type = c.values.scalar_type();
  return c.dense_dim() == 0 && c.fill.kind == FillKind::scalar &&
         (at::isFloatingType(type) || at::isComplexType(type)) && type != at::kComplexHalf && !is_bare(type) &&
         c.dim() > 0;
}

/// Values with the fill taken away.
at::Tensor above_fill(const Components& c, bool zero) { return zero ? c.values : c.values - c.fill.value; }

at::Tensor plus(const at::Tensor& a, const at::Tensor& b) { return b.defined() ? a + b : a; }

/// The type that a product with a fill is made in: what is added for the fill is taken away again where there are
/// entries, and their digits must survive it.
at::ScalarType filled_type(at::ScalarType type) {
  return at::isFloatingType(type) ? at::kDouble : at::isComplexType(type) ? at::kComplexDouble : sum_type(type);
}

/// Whether all elements are finite: a fill times an infinity cannot be taken away again.
bool is_finite(const at::Tensor& t) {
  if (!is_sparse(t)) {
    return all_finite(t);
  }
  const Components& c = components(t);
  return c.has_fill() ? all_finite({c.values, c.fill.value}) : all_finite(c.values);
}

/// Rows of a matrix of which more than half is specified, of coalesced components.
struct MostlyFull {
  std::int64_t length;  ///< elements of a row
  at::Tensor keys;      ///< (rows found,): the row of each
  bool lack = false;    ///< whether any of them has an element without an entry

  MostlyFull(const Components& c, const Dims& rows) : length(1) {
    for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
      length *= std::find(rows.begin(), rows.end(), d) == rows.end() ? c.pattern->sizes()[at(d)] : 1;
    }
    const Grouping& grouping = c.pattern->grouping(rows);
    const Pattern& groups = grouping.pattern ? *grouping.pattern : *c.pattern;
    const at::Tensor counts =
        grouping.distinct() ? at::ones({groups.nse()}, groups.keys().options()) : grouping.counts();
    const at::Tensor found = at::nonzero(counts * 2 > length).squeeze(1);
    keys = groups.keys().index_select(0, found);
    lack = (counts.index_select(0, found) < length).any().item<bool>();
  }
  bool any() const { return keys.numel() > 0; }
};

/// The same with entries for all elements of some rows: at most as many again.
Components completed(const Components& c, const Dims& rows, const MostlyFull& full) {
  Dims order = rows;
  for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
    if (std::find(rows.begin(), rows.end(), d) == rows.end()) {
      order.push_back(d);
    }
  }
  const auto inside = at::arange(full.length, full.keys.options());
  const auto places = (full.keys.unsqueeze(1) * full.length + inside).reshape(-1);
  const auto turned = index::unravel_keys(places, sizes_at(c.pattern->sizes(), order));
  std::vector<at::Tensor> indices(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    indices[at(order[k])] = turned.select(0, static_cast<std::int64_t>(k));
  }
  const auto wanted = Pattern::make(at::stack(indices), c.pattern->sizes())->coalesced()->keys();
  const index::Merged merged = index::union_of(c.pattern->keys(), wanted);
  return {Pattern::of_keys(merged.keys.contiguous(), c.pattern->sizes()), pick_rows(c, merged.in_a), c.fill};
}

/// A sparse tensor with fill 0 times x, of which nearly all rows are empty: a strided result would be larger by far
/// than what it is made of, so it is sparse, of shape (*rows, n), the last dim dense.
at::Tensor rows_with_entries(const Components& c, const Dims& rows, const Dims& columns, const at::Tensor& x) {
  const Grouping& grouping = c.pattern->grouping(rows);
  const PatternPtr& groups = grouping.pattern ? grouping.pattern : c.pattern;
  const auto info = sparse_product_info(std::nullopt, c.pattern->reduced(columns), grouping.group().to(at::kLong),
                                        std::nullopt, groups->nse());
  return make_tensor({groups, sparse_scavec(c.values, x, info), known_fill(0, c.values)});
}

/// Whether a sparse tensor has so few entries for its rows that a strided product with x would be larger by far.
bool is_mostly_empty(const Components& c, const Dims& rows, const at::Tensor& x) {
  return product_of(sizes_at(c.pattern->sizes(), rows)) / 16 > c.pattern->nse() + x.numel();
}

/// A sparse tensor as a matrix (rows, columns) times x (columns, n), where the columns of a batch are x's in turn:
/// summed() is the sum of x over the columns, in a form that broadcasts against (rows, n). The gradients are SDDMM and
/// the transpose's product.
at::Tensor times_dense(const Components& given, const Dims& rows, const Dims& columns, const at::Tensor& x,
                       const std::function<at::Tensor()>& summed) {
  const Dims sizes = sizes_at(given.pattern->sizes(), rows);
  const bool mostly_empty = is_mostly_empty(given, rows, x);
  if (zero_fill(given)) {
    return mostly_empty ? rows_with_entries(given, rows, columns, x)
                        : sparse_scavec(given.values, x, given.pattern->matrix_info(rows, columns));
  }
  if (mostly_empty) {
    Dims shape = sizes;
    shape.push_back(x.size(1));
    check_dense_result("a product", shape, x.scalar_type());
  }
  Components c = coalesced(given);
  const MostlyFull full(c, rows);
  at::Tensor values = c.values;
  at::Tensor filled = c.fill.value;
  if (full.any()) {
    c = full.lack ? completed(c, rows, full) : c;
    // By row: whether the fill is in its sum.
    const auto by_row = at::ones({product_of(sizes)}, c.values.options().dtype(at::kBool).requires_grad(false))
                            .index_fill(0, full.keys, 0);
    const auto fills = at::where(by_row, c.fill.value, at::zeros({}, c.fill.value.options()));
    values = c.values - fills.index_select(0, c.pattern->reduced(rows));
    filled = fills.unsqueeze(1);
  } else {
    values = c.values - c.fill.value;
  }
  const at::Tensor product = sparse_scavec(values, x, c.pattern->matrix_info(rows, columns));
  return product + filled * summed();
}

void check_types(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", a.scalar_type(), " != ", b.scalar_type());
}

/// Matrices, or batches of them: `batch` leading dims in both.
bool matrices(Call& call, std::size_t left, std::size_t right, std::int64_t batch) {
  const at::Tensor a = call.tensor(left);
  const at::Tensor b = call.tensor(right);
  const std::int64_t dims = batch + 2;
  TORCH_CHECK(a.dim() == dims && b.dim() == dims, call.schema().name(), " needs tensors of ", dims, " dims, not ",
              shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  TORCH_CHECK(a.size(-1) == b.size(-2) && (batch == 0 || a.size(0) == b.size(0)),
              "mat1 and mat2 shapes cannot be multiplied: ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  check_types(a, b);
  bool filled = false;
  for (const at::Tensor& t : {a, b}) {
    if (is_sparse(t)) {
      if (!multiplies(components(t))) {
        return Call::decline();
      }
      filled = filled || !zero_fill(components(t));
    }
  }
  if (filled && !(is_finite(a) && is_finite(b))) {
    return Call::decline();
  }
  const auto wide = filled_type(a.scalar_type());
  if (filled && wide != a.scalar_type()) {
    const at::Tensor product = batch == 0 ? at::mm(a.to(wide), b.to(wide)) : at::bmm(a.to(wide), b.to(wide));
    return call.give(product.to(a.scalar_type()));
  }
  const Dims lead = all_dims(batch);
  const auto with = [&](std::int64_t dim) {
    Dims result = lead;
    result.push_back(dim);
    return result;
  };
  Dims shape(a.sizes().begin(), a.sizes().end());
  shape.back() = b.size(-1);
  if (is_sparse(a) && is_sparse(b)) {
    const Components x = coalesced(components(a));
    const Components y = coalesced(components(b));
    const bool x_zero = zero_fill(x);
    const bool y_zero = zero_fill(y);
    if ((!x_zero && MostlyFull(x, with(batch)).any()) || (!y_zero && MostlyFull(y, with(batch + 1)).any())) {
      return Call::decline();
    }
    const auto product = make_tensor(times_sparse(x, above_fill(x, x_zero), with(batch), with(batch + 1), y,
                                                  above_fill(y, y_zero), with(batch), {batch + 1}));
    if (x_zero && y_zero) {
      return call.give(product);
    }
    check_dense_result(call.schema().name(), shape, a.scalar_type());
    const auto rest = [](const Components& c, bool zero) {
      return make_tensor({c.pattern, above_fill(c, zero), known_fill(0, c.values)});
    };
    const auto dense = [](const at::Tensor& t) { return is_sparse(t) ? densified(components(t)) : t; };
    at::Tensor result = dense(product);
    result = plus(result, x_zero ? at::Tensor() : x.fill.value * dense(rest(y, y_zero).sum(-2, /*keepdim=*/true)));
    result = plus(result, y_zero ? at::Tensor() : y.fill.value * dense(rest(x, x_zero).sum(-1, /*keepdim=*/true)));
    return call.give(result + x.fill.value * y.fill.value * static_cast<double>(a.size(-1)));
  }
  if (is_sparse(a)) {
    const Components& c = components(a);
    const auto x = b.reshape({product_of(b.sizes().slice(0, static_cast<std::size_t>(batch + 1))), b.size(-1)});
    // (batches * rows, n): each batch's sums for all of its rows
    const auto summed = [&] {
      const at::Tensor sums = b.sum(-2, /*keepdim=*/true);
      return batch == 0 ? sums : sums.expand({-1, a.size(-2), -1}).reshape({a.size(0) * a.size(-2), b.size(-1)});
    };
    return call.give(times_dense(c, with(batch), with(batch + 1), x, summed).view(shape));
  }
  const Components& c = components(b);
  const auto x = a.transpose(-1, -2).reshape(
      {product_of(a.sizes().slice(0, static_cast<std::size_t>(batch))) * a.size(-1), a.size(-2)});
  Dims turned = shape;
  std::swap(turned[static_cast<std::size_t>(batch)], turned[static_cast<std::size_t>(batch) + 1]);
  const auto summed = [&] {
    const at::Tensor sums = a.sum(-1).unsqueeze(-2);
    return batch == 0 ? sums : sums.expand({-1, b.size(-1), -1}).reshape({b.size(0) * b.size(-1), a.size(-2)});
  };
  return call.give(times_dense(c, with(batch + 1), with(batch), x, summed).view(turned).transpose(-1, -2));
}

bool mm(Call& call) { return matrices(call, 0, 1, 0); }
bool bmm(Call& call) { return matrices(call, 0, 1, 1); }

bool mv(Call& call) { return call.give(at::mm(call.tensor(0), call.tensor(1).unsqueeze(1)).squeeze(1)); }

bool dot(Call& call) {
  const at::Tensor a = call.tensor(0);
  const at::Tensor b = call.tensor(1);
  TORCH_CHECK(a.dim() == 1 && b.dim() == 1 && a.size(0) == b.size(0), "dot needs two vectors of one length, not ",
              shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  check_types(a, b);
  return call.give((call.schema().name() == "aten::vdot" ? a.conj() : a).mul(b).sum(a.scalar_type()));
}

/// beta * self + alpha * product, where beta = 0 ignores self.
bool accumulate(Call& call, const at::Tensor& product) {
  const at::Scalar beta = call.arg("beta").toScalar();
  const at::Scalar alpha = call.arg("alpha").toScalar();
  const bool one = alpha.toComplexDouble() == c10::complex<double>(1);
  const at::Tensor scaled = one ? product : product * alpha;
  if (beta.toComplexDouble() == c10::complex<double>(0)) {
    return call.give(scaled.expand(at::infer_size(call.tensor(0).sizes(), scaled.sizes())));
  }
  const at::Tensor self = call.tensor(0);
  return call.give((beta.toComplexDouble() == c10::complex<double>(1) ? self : self * beta) + scaled);
}

bool addmm(Call& call) { return accumulate(call, at::mm(call.tensor(1), call.tensor(2))); }
bool addmv(Call& call) { return accumulate(call, at::mv(call.tensor(1), call.tensor(2))); }
bool baddbmm(Call& call) { return accumulate(call, at::bmm(call.tensor(1), call.tensor(2))); }
bool addbmm(Call& call) {
  return accumulate(call, at::bmm(call.tensor(1), call.tensor(2)).sum(0, false, call.tensor(1).scalar_type()));
}
bool addr(Call& call) { return accumulate(call, call.tensor(1).unsqueeze(1).mul(call.tensor(2).unsqueeze(0))); }

/// The dims of a tensor that are not contracted.
Dims other_dims(const at::Tensor& t, const Dims& contracted) {
  Dims rest;
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    if (std::find(contracted.begin(), contracted.end(), d) == contracted.end()) {
      rest.push_back(d);
    }
  }
  return rest;
}

/// Whether a sparse tensor times a strided one can be made in their own dtype with the fill taken apart.
bool multiplies_as_it_is(const at::Tensor& sparse, const at::Tensor& dense) {
  const Components& c = components(sparse);
  return multiplies(c) && (zero_fill(c) || (filled_type(sparse.scalar_type()) == sparse.scalar_type() &&
                                            is_finite(sparse) && is_finite(dense)));
}

/// Such a tensor over `columns`, a strided one over `shared`, of the same sizes: the other dims of both. One product of
/// a matrix, without moving an index.
at::Tensor contracted(const at::Tensor& sparse, const Dims& columns, const at::Tensor& dense, const Dims& shared) {
  const Dims rows = other_dims(sparse, columns);
  const Dims rest = other_dims(dense, shared);
  Dims order = shared;
  order.insert(order.end(), rest.begin(), rest.end());
  const Dims rest_sizes = sizes_at(dense.sizes(), rest);
  const auto x = dense.permute(order).reshape({product_of(sizes_at(dense.sizes(), shared)), product_of(rest_sizes)});
  const auto product = times_dense(components(sparse), rows, columns, x, [&] { return x.sum(0, /*keepdim=*/true); });
  Dims shape = sizes_at(sparse.sizes(), rows);
  shape.insert(shape.end(), rest_sizes.begin(), rest_sizes.end());
  return product.view(shape);
}

/// A batch of matrices times one matrix, or one times a batch; (batch, rows, n).
bool batch_and_matrix(Call& call) {
  const bool first = call.is_sparse_at(0);
  if (first == call.is_sparse_at(1)) {
    return Call::decline();
  }
  const at::Tensor& a = call.tensor(0);
  const at::Tensor& b = call.tensor(1);
  const at::Tensor& sparse = first ? a : b;
  const at::Tensor& dense = first ? b : a;
  if (a.size(-1) != b.size(-2) || a.scalar_type() != b.scalar_type() || !multiplies_as_it_is(sparse, dense)) {
    return Call::decline();
  }
  const Dims columns{first ? a.dim() - 1 : b.dim() - 2};
  const Dims shared{first ? b.dim() - 2 : a.dim() - 1};
  if (is_mostly_empty(components(sparse), other_dims(sparse, columns), dense)) {
    return Call::decline();  // a sparse result, whose dims do not change places with the dense ones
  }
  const at::Tensor product = contracted(sparse, columns, dense, shared);
  if (first) {
    return call.give(a.dim() == 3 ? product : product.transpose(0, 1));
  }
  return call.give(b.dim() == 3 ? product.transpose(1, 2) : product.permute({1, 2, 0}));
}

/// Matrices, batches of them and a vector times a matrix; the rest is torch's own composition, which would come back
/// here for each of these, and drops a dim of a vector in place.
bool matmul(Call& call) {
  const at::Tensor& a = call.tensor(0);
  const at::Tensor& b = call.tensor(1);
  if (a.dim() == 1 && b.dim() == 2) {
    return call.give(at::mm(a.unsqueeze(0), b).squeeze(0));
  }
  if (a.dim() == 2 && b.dim() == 2) {
    return matrices(call, 0, 1, 0);
  }
  if (a.dim() == 3 && b.dim() == 3) {
    return a.size(0) == b.size(0) ? matrices(call, 0, 1, 1) : Call::decline();
  }
  const bool of_matrices = std::min(a.dim(), b.dim()) == 2 && std::max(a.dim(), b.dim()) == 3;
  return of_matrices ? batch_and_matrix(call) : Call::decline();
}

/// A sparse tensor with a strided one: one product of a matrix, without moving an index.
bool tensordot(Call& call) {
  const bool first = call.is_sparse_at(0);
  if (first == call.is_sparse_at(1)) {
    return Call::decline();
  }
  const at::Tensor sparse = call.tensor(first ? 0 : 1);
  const at::Tensor dense = call.tensor(first ? 1 : 0);
  if (autocast_key(sparse)) {
    return Call::decline();  // it casts the matrices that torch makes of them
  }
  Dims columns = call.arg(first ? "dims_self" : "dims_other").toIntVector();
  Dims shared = call.arg(first ? "dims_other" : "dims_self").toIntVector();
  if (columns.size() != shared.size() || columns.empty() || sparse.scalar_type() != dense.scalar_type()) {
    return Call::decline();
  }
  for (std::size_t k = 0; k < columns.size(); ++k) {
    columns[k] = wrap_dim(columns[k], sparse.dim());
    shared[k] = wrap_dim(shared[k], dense.dim());
    if (sparse.size(columns[k]) != dense.size(shared[k])) {
      return Call::decline();  // torch repeats a dim of size 1, and has the sentence for others
    }
  }
  const std::size_t rows = other_dims(sparse, columns).size();
  if (rows + columns.size() != at(sparse.dim()) ||
      other_dims(dense, shared).size() + shared.size() != at(dense.dim())) {
    return Call::decline();  // a dim twice
  }
  if (!multiplies_as_it_is(sparse, dense)) {
    return Call::decline();
  }
  const at::Tensor result = contracted(sparse, columns, dense, shared);
  if (first) {
    return call.give(result);
  }
  Dims turned;
  for (std::size_t k = 0; k < at(result.dim()); ++k) {
    turned.push_back(static_cast<std::int64_t>((k + rows) % at(result.dim())));
  }
  return call.give(result.permute(turned));
}

/// Rows of a sparse table.
bool embedding(Call& call) {
  const at::Tensor weight = call.tensor(0);
  const at::Tensor index = call.tensor(1);
  if (!is_sparse(weight) || is_sparse(index) || weight.dim() != 2) {
    return Call::decline();
  }
  if (call.integer("padding_idx") >= 0 || call.flag("scale_grad_by_freq")) {
    // Gradients of their own kind; not as torch's sparse tensors, which the way back to the values does not take.
    const at::Tensor dense = densified_for(call.schema().name(), weight);
    return call.give(at::embedding(dense, index, call.integer("padding_idx"), call.flag("scale_grad_by_freq")));
  }
  Dims shape = index.sizes().vec();
  shape.push_back(weight.size(1));
  return call.give(weight.index_select(0, index.reshape(-1)).reshape(shape));
}

constexpr RuleEntry kRules[] = {
    {"aten::mm", mm},
    {"aten::bmm", bmm},
    {"aten::mv", mv},
    {"aten::matmul", matmul},
    {"aten::dot", dot},
    {"aten::vdot", dot},
    {"aten::addmm", addmm},
    {"aten::addmv", addmv},
    {"aten::baddbmm", baddbmm},
    {"aten::addbmm", addbmm},
    {"aten::addr", addr},
    {"aten::embedding", embedding},
    {"aten::tensordot", tensordot},
};

}  // namespace

std::span<const RuleEntry> matmul_rules() { return kRules; }

}  // namespace lacewing::tensor
