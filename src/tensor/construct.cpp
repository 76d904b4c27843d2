// Making sparse tensors and taking them apart: the public functions, their registered ops, and the rules of the torch
// ops that do the same.
#include "tensor/construct.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/tensor.h>

#include "common/refuse_layouts.h"
#include "index/keys.h"
#include "structure/index_set.h"
#include "tensor/call.h"

namespace lacewing {

using tensor::checked;
using tensor::checked_fill;
using tensor::components;
using tensor::Components;
using tensor::Dims;
using tensor::Pattern;

namespace {

std::string shape_of(const Dims& shape) { return shape_text(at::IntArrayRef(shape)); }

}  // namespace

namespace tensor {

void check_sparse(const char* op, const at::Tensor& sparse) {
  TORCH_CHECK(tensor::is_sparse(sparse), "[lacewing.", op,
              "] the tensor must be a sparse tensor, not a strided one of ",
              sparse.defined() ? "shape " + shape_text(sparse.sizes()) : "no shape");
}

const Components& checked(const char* op, const at::Tensor& sparse) {
  check_sparse(op, sparse);
  return components(sparse);
}

void check_numel(const char* op, const Dims& shape) {
  // Sizes of 0 do not help: torch multiplies the others.
  Dims counted = shape;
  std::erase(counted, 0);
  std::int64_t product = 0;
  TORCH_CHECK(structure::checked_product(counted, product), "[lacewing.", op, "] size ", shape_of(shape),
              " has more elements than int64 can count");
}

Dims multiplied(const char* op, const Dims& sizes, const Dims& factors) {
  Dims made = sizes;
  bool fits = true;
  for (std::size_t d = 0; d < made.size(); ++d) {
    fits = !c10::mul_overflows(sizes[d], factors[d], &made[d]) && fits;
  }
  TORCH_CHECK(fits, "[lacewing.", op, "] size ", shape_of(sizes), " times ", shape_of(factors),
              " has more elements than int64 can count");
  check_numel(op, made);
  return made;
}

structure::EntryScan checked_range(const char* op, const at::Tensor& indices, const Dims& sizes, const Dims& shape) {
  structure::EntryScan scan = index::scan_entries(indices, sizes);
  const std::int64_t entry = scan.first_outside;
  if (entry < indices.size(1)) {
    for (std::int64_t d = 0; d < indices.size(0); ++d) {
      const auto index = indices.select(0, d).select(0, entry).item<std::int64_t>();
      TORCH_CHECK(index >= 0 && index < sizes[static_cast<std::size_t>(d)], "[lacewing.", op, "] indices[", d, ", ",
                  entry, "] = ", index, " is out of range for size ", shape_of(shape), ": dim ", d, " has ",
                  sizes[static_cast<std::size_t>(d)], " entries");
    }
  }
  return scan;
}

/// A number, or the first few of several.
std::string fill_text(const at::Tensor& fill) {
  if (fill.dim() == 0) {
    return fill.scalar_type() == at::kUInt64 ? std::to_string(fill.item().toUInt64()) : c10::str(fill.item());
  }
  constexpr std::int64_t kMost = 8;
  const at::Tensor numbers = fill.detach().reshape({-1});
  std::string text;
  for (std::int64_t i = 0; i < std::min(numbers.numel(), kMost); ++i) {
    text += (i == 0 ? "[" : ", ") + fill_text(numbers[i]);
  }
  return text + (numbers.numel() > kMost ? ", ...]" : "]");
}

at::Tensor fitted(const char* op, const at::Tensor& fill, at::ScalarType type) {
  TORCH_CHECK_TYPE(at::canCast(fill.scalar_type(), type), "[lacewing.", op, "] a fill of type ", fill.scalar_type(),
                   " cannot be cast to the values' ", type);
  const at::Tensor cast = fill.to(type);
  if (fill.scalar_type() == type) {
    return cast;
  }
  // Integers stay the same, with their sign; floats may be rounded, but not to an infinity.
  const auto wide = [](const at::Tensor& t) {
    return t.detach().to(t.is_complex() ? at::kComplexDouble : at::kDouble);
  };
  const bool fits = at::isIntegralType(type, /*includeBool=*/true)
                        ? cast.to(fill.scalar_type()).equal(fill) && wide(cast).lt(0).equal(wide(fill).lt(0))
                        : wide(cast).isfinite().equal(wide(fill).isfinite());
  TORCH_CHECK_TYPE(fits, "[lacewing.", op, "] the fill ", fill_text(fill), " does not fit into the values' ", type);
  return cast;
}

Fill checked_fill(const char* op, const Fill& fill, const at::Tensor& values) {
  if (fill.kind == FillKind::undefined) {
    return Fill::undefined();
  }
  TORCH_CHECK(fill.kind == FillKind::scalar || (fill.kind == FillKind::array && fill.value.defined()), "[lacewing.", op,
              "] a fill is a number, undefined, or an array of numbers");
  if (!fill.value.defined()) {
    return known_fill(0, values);
  }
  TORCH_CHECK(!tensor::is_sparse(fill.value) && fill.value.layout() == at::kStrided, "[lacewing.", op,
              "] the fill must be a strided tensor");
  if (fill.value.unsafeGetTensorImpl()->is_wrapped_number()) {
    const at::Scalar number = fitted(op, fill.value, values.scalar_type()).item();
    return known_fill(number, values);
  }
  TORCH_CHECK_TYPE(fill.value.scalar_type() == values.scalar_type() && fill.value.device() == values.device(),
                   "[lacewing.", op, "] the fill is ", fill.value.scalar_type(), " on ", fill.value.device(),
                   ", but values are ", values.scalar_type(), " on ", values.device());
  if (fill.kind == FillKind::scalar) {
    TORCH_CHECK(fill.value.dim() == 0, "[lacewing.", op, "] a scalar fill must have no dims, not shape ",
                shape_text(fill.value.sizes()));
    return fill;
  }
  TORCH_CHECK(fill.value.sizes() == values.sizes().slice(1), "[lacewing.", op,
              "] an array fill must have the dense shape ", shape_text(values.sizes().slice(1)), ", not ",
              shape_text(fill.value.sizes()));
  return fill.value.dim() == 0 ? Fill{FillKind::scalar, fill.value} : fill;
}

Fill fill_of(const char* op, std::int64_t kind, const std::optional<at::Tensor>& value, at::ScalarType type) {
  TORCH_CHECK(kind >= 0 && kind <= 4 && (kind < 2 || value), "[lacewing.SparseTensor] there is no kind of fill ", kind);
  if (kind == 3) {
    return Fill::of(value->item());
  }
  if (kind == 4) {
    return {FillKind::array, fitted(op, *value, type)};
  }
  return {static_cast<FillKind>(kind), value.value_or(at::Tensor())};
}

}  // namespace tensor

namespace {

at::Tensor checked_indices(const char* op, const at::Tensor& indices, const at::Tensor& values) {
  TORCH_CHECK(at::isIntegralType(indices.scalar_type(), /*includeBool=*/false), "[lacewing.", op,
              "] indices must be integers, not ", indices.scalar_type());
  TORCH_CHECK(indices.dim() == 2, "[lacewing.", op, "] indices must have shape (sparse dims, nse), not ",
              shape_text(indices.sizes()));
  TORCH_CHECK(values.dim() >= 1, "[lacewing.", op, "] values must have shape (nse, *dense shape), not ",
              shape_text(values.sizes()));
  TORCH_CHECK(indices.size(1) == values.size(0), "[lacewing.", op, "] indices of shape ", shape_text(indices.sizes()),
              " name ", indices.size(1), " entries, but values of shape ", shape_text(values.sizes()), " have ",
              values.size(0));
  TORCH_CHECK(indices.device() == values.device(), "[lacewing.", op, "] indices are on ", indices.device(),
              ", but values are on ", values.device());
  const at::Tensor index = indices.to(at::kLong);
  if (indices.scalar_type() == at::kUInt64) {
    const at::Tensor bad = at::nonzero(index < 0);
    TORCH_CHECK(bad.size(0) == 0, "[lacewing.", op, "] indices have a number of uint64 that int64 cannot hold, ",
                static_cast<std::uint64_t>(bad.size(0) == 0 ? 0 : index[bad[0][0]][bad[0][1]].item<std::int64_t>()));
  }
  return index;
}

Dims sizes_from(const at::Tensor& indices) {
  Dims sizes(static_cast<std::size_t>(indices.size(0)), 0);
  if (indices.size(1) > 0) {
    const at::Tensor largest = std::get<0>(indices.max(1)).cpu();
    const std::int64_t* const data = largest.const_data_ptr<std::int64_t>();
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      TORCH_CHECK(data[d] < std::numeric_limits<std::int64_t>::max(), "[lacewing.sparse_coo_tensor] indices have ",
                  data[d], " in dim ", d, ": int64 cannot hold a size above it");
      sizes[d] = std::max<std::int64_t>(data[d] + 1, 0);
    }
  }
  return sizes;
}

/// Where a block differs from the fill: (blocks,), over blocks (blocks, *dense).
at::Tensor differs(const at::Tensor& blocks, const Fill& fill) {
  at::Tensor different;
  if (fill.kind == FillKind::undefined) {
    different = blocks != 0;
  } else {
    const at::Tensor& value = fill.value;
    different = at::logical_and(blocks != value, at::logical_not(at::logical_and(blocks != blocks, value != value)));
  }
  return blocks.dim() == 1 ? different
                           : different.reshape({blocks.size(0), tensor::product_of(blocks.sizes().slice(1))}).any(1);
}

}  // namespace

Fill Fill::of(at::Tensor value) { return {value.dim() == 0 ? FillKind::scalar : FillKind::array, std::move(value)}; }

Fill Fill::of(const at::Scalar& value) {
  at::Tensor number = at::scalar_tensor(value, at::dtype(value.type()));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return {FillKind::scalar, std::move(number)};
}

at::Tensor sparse_coo_tensor(const at::Tensor& indices, const at::Tensor& values, at::OptionalIntArrayRef size,
                             const Fill& fill) {
  const char* const op = "sparse_coo_tensor";
  TORCH_CHECK(!tensor::is_sparse(indices) && !tensor::is_sparse(values) && indices.layout() == at::kStrided &&
                  values.layout() == at::kStrided,
              "[lacewing.", op, "] indices and values must be strided tensors");
  tensor::refuse_transforms("indices", indices);
  tensor::refuse_transforms("values", values);
  const at::Tensor index = checked_indices(op, indices, values);
  Dims shape;
  Dims sparse_sizes;
  const auto dense_shape = values.sizes().slice(1);
  if (size) {
    shape = size->vec();
    TORCH_CHECK(static_cast<std::int64_t>(shape.size()) == index.size(0) + values.dim() - 1, "[lacewing.", op,
                "] size ", shape_of(shape), " must have the ", index.size(0), " sparse dims of indices and the ",
                values.dim() - 1, " dense dims of values");
    for (const std::int64_t s : shape) {
      TORCH_CHECK(s >= 0, "[lacewing.", op, "] size ", shape_of(shape), " has a negative entry");
    }
    sparse_sizes.assign(shape.begin(), shape.begin() + index.size(0));
    TORCH_CHECK(std::equal(dense_shape.begin(), dense_shape.end(), shape.begin() + index.size(0)), "[lacewing.", op,
                "] size ", shape_of(shape), " must end with the dense shape of values, ", shape_text(dense_shape));
  } else {
    sparse_sizes = sizes_from(index);
    shape = sparse_sizes;
    shape.insert(shape.end(), dense_shape.begin(), dense_shape.end());
  }
  tensor::check_numel(op, shape);
  structure::EntryScan scan = tensor::checked_range(op, index, sparse_sizes, shape);
  Fill whole = checked_fill(op, fill, values);
  return tensor::make_tensor(
      {Pattern::make_scanned(index, std::move(sparse_sizes), std::move(scan)), values, std::move(whole)});
}

at::Tensor to_sparse(const at::Tensor& dense, std::optional<std::int64_t> sparse_dims, const Fill& given) {
  const char* const op = "to_sparse";
  TORCH_CHECK(!tensor::is_sparse(dense), "[lacewing.", op, "] the tensor is sparse already");
  TORCH_CHECK(dense.layout() == at::kStrided, "[lacewing.", op, "] the tensor must be strided, not ", dense.layout(),
              ": use from_torch(...)");
  tensor::refuse_transforms("elements", dense);
  tensor::check_elements(op, "dense", dense);
  const std::int64_t count = sparse_dims.value_or(dense.dim());
  TORCH_CHECK(count >= 0 && count <= dense.dim(), "[lacewing.", op, "] sparse_dims must lie between 0 and ",
              dense.dim(), ", not ", count);
  const Dims sparse_sizes = dense.sizes().slice(0, static_cast<std::size_t>(count)).vec();
  Dims rows{tensor::product_of(sparse_sizes)};
  for (const std::int64_t size : dense.sizes().slice(static_cast<std::size_t>(count))) {
    rows.push_back(size);
  }
  const at::Tensor blocks = dense.reshape(rows);
  const Fill fill = checked_fill(op, given, blocks);
  const at::Tensor keys = at::nonzero(differs(blocks.detach(), fill)).squeeze(1);
  return tensor::make_tensor({Pattern::of_keys(keys, sparse_sizes), tensor::take_rows(blocks, keys), fill});
}

at::Tensor to_dense(const at::Tensor& sparse, const std::optional<at::Tensor>& fill) {
  Components c = checked("to_dense", sparse);
  if (fill) {
    TORCH_CHECK(!c.has_fill(), "[lacewing.to_dense] fill= stands for an undefined fill, but this tensor has one");
    tensor::refuse_transforms("fill", *fill);
    const at::Tensor beside = tensor::fitted("to_dense", *fill, c.values.scalar_type()).to(c.values.device());
    c.fill = checked_fill("to_dense", Fill::of(beside), c.values);
  }
  const at::Tensor dense = tensor::densified(c);
  return dense.is_alias_of(c.values) ? dense.clone() : dense;
}

bool is_sparse_tensor(const at::Tensor& t) { return tensor::is_sparse(t); }
at::Tensor indices(const at::Tensor& t) { return checked("indices", t).pattern->indices(); }
at::Tensor values(const at::Tensor& t) { return checked("values", t).values; }
Fill fill_value(const at::Tensor& t) { return checked("fill_value", t).fill; }
std::int64_t nse(const at::Tensor& t) { return checked("nse", t).pattern->nse(); }
std::int64_t sparse_dim(const at::Tensor& t) { return checked("sparse_dim", t).sparse_dim(); }
std::int64_t dense_dim(const at::Tensor& t) { return checked("dense_dim", t).dense_dim(); }

at::Tensor coalesce(const at::Tensor& t) {
  const Components& c = checked("coalesce", t);
  if (is_coalesced(t)) {
    return t;
  }
  const tensor::Layout* const layout = c.pattern->layout();
  return tensor::make_tensor(layout == nullptr ? tensor::coalesced(c) : tensor::arranged(c, *layout));
}

bool is_coalesced(const at::Tensor& t) {
  const Pattern& pattern = *checked("is_coalesced", t).pattern;
  if (pattern.layout() == nullptr || pattern.known_distinct()) {
    return pattern.layout() != nullptr || !pattern.coalescing().pattern;
  }
  const tensor::Grouping& grouping = pattern.grouping(pattern.layout()->order());
  return grouping.distinct() && !grouping.order.defined();
}

at::Tensor prune(const at::Tensor& t) {
  const Components c = tensor::coalesced(checked("prune", t));
  if (!c.has_fill()) {
    return t;
  }
  const at::Tensor kept = at::nonzero(differs(c.values.detach(), {c.fill.kind, c.fill.value.detach()})).squeeze(1);
  return tensor::make_tensor(
      tensor::in_layout({Pattern::of_keys(c.pattern->keys().index_select(0, kept), c.pattern->sizes()),
                         tensor::take_rows(c.values, kept), c.fill},
                        components(t).pattern->layout()));
}

at::Tensor with_fill(const at::Tensor& t, const Fill& fill) {
  const Components& c = checked("with_fill", t);
  return tensor::make_tensor({c.pattern, c.values, checked_fill("with_fill", fill, c.values)});
}

at::Tensor with_values(const at::Tensor& t, const at::Tensor& values) {
  const char* const op = "with_values";
  const Components& c = checked(op, t);
  check_dense(op, {{"values", values}});
  TORCH_CHECK(!tensor::is_sparse(values) && values.dim() >= 1 && values.size(0) == c.pattern->nse(), "[lacewing.", op,
              "] values must be a strided tensor of shape (", c.pattern->nse(), ", *dense shape), not ",
              tensor::is_sparse(values) ? "a sparse one of shape " : "", shape_text(values.sizes()));
  TORCH_CHECK(values.device() == c.values.device(), "[lacewing.", op, "] values are on ", values.device(),
              ", but indices are on ", c.values.device());
  tensor::refuse_transforms("values", values);
  const bool cast = c.has_fill() && values.scalar_type() != c.values.scalar_type();
  Fill fill = cast ? Fill{c.fill.kind, tensor::fitted(op, c.fill.value, values.scalar_type())} : c.fill;
  return tensor::make_tensor({c.pattern, values, checked_fill(op, fill, values)});
}

std::pair<at::Tensor, at::Tensor> to_additive(const at::Tensor& t) {
  const Components c = tensor::without_duplicates(checked("to_additive", t));
  TORCH_CHECK(c.has_fill(), "[lacewing.to_additive] the fill is undefined: give one by with_fill(...)");
  return {c.fill.value,
          tensor::make_tensor({c.pattern, c.values - tensor::fill_row(c), checked_fill("", {}, c.values)})};
}

at::Tensor from_additive(const at::Tensor& additive, const at::Tensor& t) {
  const Components c = tensor::without_duplicates(checked("from_additive", t));
  TORCH_CHECK(tensor::zero_fill(c), "[lacewing.from_additive] the sparse part must have the fill 0");
  return tensor::make_tensor(
      {c.pattern, c.values + additive.unsqueeze(0), checked_fill("from_additive", Fill::of(additive), c.values)});
}

namespace tensor {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor make_op(const at::Tensor& indices, const at::Tensor& values, at::OptionalIntArrayRef size, std::int64_t kind,
                   const OptionalTensor& fill) {
  return sparse_coo_tensor(indices, values, size, fill_of("sparse_coo_tensor", kind, fill, values.scalar_type()));
}
at::Tensor to_sparse_op(const at::Tensor& dense, std::optional<std::int64_t> sparse_dims, std::int64_t kind,
                        const OptionalTensor& fill) {
  return to_sparse(dense, sparse_dims, fill_of("to_sparse", kind, fill, dense.scalar_type()));
}
at::Tensor with_fill_op(const at::Tensor& t, std::int64_t kind, const OptionalTensor& fill) {
  return with_fill(t, fill_of("with_fill", kind, fill, t.scalar_type()));
}
at::Tensor indices_op(const at::Tensor& t) { return indices(t); }
at::Tensor values_op(const at::Tensor& t) { return values(t); }
std::int64_t fill_kind_op(const at::Tensor& t) { return static_cast<std::int64_t>(fill_value(t).kind); }
OptionalTensor fill_op(const at::Tensor& t) {
  const Fill fill = fill_value(t);
  return fill.kind == FillKind::undefined ? std::nullopt : OptionalTensor(fill.value);
}
std::tuple<at::Tensor, at::Tensor> to_additive_op(const at::Tensor& t) {
  const auto [additive, sparse] = to_additive(t);
  return {additive, sparse};
}

void watch_copy_op(const at::Tensor& sparse, const at::Tensor& copy) {
  check_sparse("watch_copy", sparse);
  mark_view("indexing", copy, sparse);
}
void forget_copy_op(const at::Tensor& sparse, const at::Tensor& copy) {
  check_sparse("forget_copy", sparse);
  forget_copy(sparse, copy);
}
bool is_view_op(const at::Tensor& t) {
  check_sparse("is_view", t);
  return is_view(t) && !reshaped_from(t).defined();
}

/// Whether .data = other is possible; torch refuses it otherwise.
bool same_kind(Call& call) { return call.give({c10::IValue(call.is_sparse_at(0) == call.is_sparse_at(1))}); }

bool give_values(Call& call) { return call.give(call.sparse().values); }
bool give_indices(Call& call) { return call.give(call.sparse().pattern->indices()); }
bool give_coalesced(Call& call) { return call.give(coalesce(call.tensor(0))); }
bool give_is_coalesced(Call& call) { return call.give({c10::IValue(is_coalesced(call.tensor(0)))}); }
bool give_nse(Call& call) { return call.give({c10::IValue(nse(call.tensor(0)))}); }
bool give_sparse_dim(Call& call) { return call.give({c10::IValue(sparse_dim(call.tensor(0)))}); }
bool give_dense_dim(Call& call) { return call.give({c10::IValue(dense_dim(call.tensor(0)))}); }
bool give_dense(Call& call) {
  // A masked gradient is one of the entries alone.
  const c10::IValue& masked = call.arg("masked_grad");
  const Components& c = call.sparse();
  const bool aside = !masked.isNone() && masked.toBool() && c.has_fill() && needs_grad(c.fill.value);
  const at::Tensor dense =
      to_dense(aside ? make_tensor(c.with(c.values, without_gradient(c.fill.value))) : call.tensor(0));
  const c10::IValue& dtype = call.arg("dtype");
  return call.give(dtype.isNone() ? dense : dense.to(dtype.toScalarType()));
}

constexpr RuleEntry kRules[] = {
    {"aten::_has_compatible_shallow_copy_type", same_kind},
    {"aten::values", give_values},
    {"aten::_values", give_values},
    {"aten::indices", give_indices},
    {"aten::_indices", give_indices},
    {"aten::coalesce", give_coalesced},
    {"aten::_coalesce", give_coalesced},
    {"aten::is_coalesced", give_is_coalesced},
    {"aten::_nnz", give_nse},
    {"aten::sparse_dim", give_sparse_dim},
    {"aten::dense_dim", give_dense_dim},
    {"aten::to_dense", give_dense},
    {"aten::_to_dense", give_dense},
};

}  // namespace

std::span<const RuleEntry> access_rules() { return kRules; }

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("make_sparse_tensor(Tensor indices, Tensor values, int[]? size, int fill_kind, Tensor? fill) -> Tensor",
        make_op);
  m.def("tensor_from_dense(Tensor dense, int? sparse_dims, int fill_kind, Tensor? fill) -> Tensor", to_sparse_op);
  m.def("tensor_to_dense(Tensor sparse, Tensor? fill) -> Tensor", to_dense);
  m.def("tensor_with_fill(Tensor sparse, int fill_kind, Tensor? fill) -> Tensor", with_fill_op);
  m.def("tensor_indices(Tensor sparse) -> Tensor", indices_op);
  m.def("tensor_values(Tensor sparse) -> Tensor", values_op);
  m.def("tensor_fill_kind(Tensor sparse) -> int", fill_kind_op);
  m.def("tensor_fill(Tensor sparse) -> Tensor?", fill_op);
  m.def("tensor_nse(Tensor sparse) -> int", nse);
  m.def("tensor_sparse_dim(Tensor sparse) -> int", sparse_dim);
  m.def("tensor_with_values(Tensor sparse, Tensor values) -> Tensor", with_values);
  m.def("tensor_coalesce(Tensor sparse) -> Tensor", coalesce);
  m.def("tensor_is_coalesced(Tensor sparse) -> bool", is_coalesced);
  m.def("tensor_forget_copy(Tensor sparse, Tensor copy) -> ()");
  m.def("tensor_watch_copy(Tensor sparse, Tensor copy) -> ()", watch_copy_op);
  m.def("tensor_is_view(Tensor sparse) -> bool", is_view_op);
  m.def("tensor_slice(Tensor(a) sparse, int[] starts, int[] ends, int[] steps) -> Tensor(a)");
  m.def("tensor_prune(Tensor sparse) -> Tensor", prune);
  m.def("tensor_to_additive(Tensor sparse) -> (Tensor, Tensor)", to_additive_op);
  m.def("tensor_from_additive(Tensor additive, Tensor sparse) -> Tensor", from_additive);
  m.def("is_sparse_tensor(Tensor tensor) -> bool", is_sparse_tensor);
}

// Not by way of the fallback, which looks at the tensor first.
TORCH_LIBRARY_IMPL(lacewing, DeferredInit, m) { m.impl("tensor_forget_copy", forget_copy_op); }

}  // namespace tensor
}  // namespace lacewing
