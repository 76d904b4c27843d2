// Tensors from few numbers: random places, diagonals, strides.
#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <c10/util/safe_numerics.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "index/keys.h"
#include "structure/strides.h"
#include "tensor/construct.h"

namespace lacewing {

using tensor::Dims;
using tensor::Pattern;

at::Tensor random_indices(at::IntArrayRef size, std::int64_t nse, at::Device device,
                          std::optional<at::Generator> generator) {
  const char* const op = "random_indices";
  const Dims sizes = size.vec();
  TORCH_CHECK(std::all_of(sizes.begin(), sizes.end(), [](std::int64_t s) { return s >= 0; }), "[lacewing.", op,
              "] size ", shape_text(size), " has a negative entry");
  tensor::check_numel(op, sizes);
  const std::int64_t numel = tensor::product_of(sizes);
  TORCH_CHECK(nse >= 0 && nse <= numel, "[lacewing.", op, "] nse must lie between 0 and the ", numel, " places, not ",
              nse);
  const auto options = at::dtype(at::kLong).device(device);
  const auto some_of = [&](std::int64_t count) {
    return std::get<0>(at::randperm(count, generator, options).slice(0, 0, nse).sort());
  };
  if (numel / 4 <= nse) {
    return index::unravel_keys(some_of(numel), sizes);
  }
  // Most draws are distinct. What is drawn too many times is drawn anew, and what is too much is left out by chance.
  at::Tensor keys = at::empty({0}, options);
  while (keys.numel() < nse) {
    const std::int64_t lacking = nse - keys.numel();
    const auto drawn = at::cat({keys, at::randint(numel, {lacking + lacking / 4 + 16}, generator, options)});
    keys = Pattern::make(drawn.unsqueeze(0), {numel})->coalesced()->keys();
  }
  return index::unravel_keys(keys.index_select(0, some_of(keys.numel())), sizes);
}

at::Tensor diags(at::TensorList diagonals, at::IntArrayRef offsets, at::OptionalIntArrayRef size) {
  const char* const op = "diags";
  TORCH_CHECK(diagonals.size() == offsets.size() && !diagonals.empty(), "[lacewing.", op, "] ", diagonals.size(),
              " diagonals need as many offsets, not ", offsets.size(), ", and there must be one at least");
  Dims shape = size ? size->vec() : Dims{0, 0};
  TORCH_CHECK(shape.size() == 2 && shape[0] >= 0 && shape[1] >= 0, "[lacewing.", op, "] size must be two numbers, not ",
              shape_text(at::IntArrayRef(shape)));
  for (std::size_t k = 0; k < diagonals.size(); ++k) {
    TORCH_CHECK(diagonals[k].dim() <= 1 && !tensor::is_sparse(diagonals[k]), "[lacewing.", op, "] diagonal ", k,
                " must be a vector, not of shape ", shape_text(diagonals[k].sizes()));
    if (!size) {
      shape[0] = shape[1] = std::max(shape[0], diagonals[k].numel() + std::abs(offsets[k]));
    }
  }
  std::vector<at::Tensor> rows, columns, values;
  for (std::size_t k = 0; k < diagonals.size(); ++k) {
    const std::int64_t down = std::max<std::int64_t>(-offsets[k], 0);
    const std::int64_t right = std::max<std::int64_t>(offsets[k], 0);
    const std::int64_t length = std::max<std::int64_t>(std::min(shape[0] - down, shape[1] - right), 0);
    TORCH_CHECK(diagonals[k].numel() == length || diagonals[k].numel() == 1, "[lacewing.", op, "] diagonal ", k,
                " has ", diagonals[k].numel(), " elements, but offset ", offsets[k], " of a matrix of shape ",
                shape_text(at::IntArrayRef(shape)), " has ", length);
    const auto along = at::arange(length, diagonals[k].options().dtype(at::kLong).requires_grad(false));
    rows.push_back(along + down);
    columns.push_back(along + right);
    values.push_back(diagonals[k].reshape(-1).expand({length}));
  }
  return lacewing::sparse_coo_tensor(at::stack({at::cat(rows), at::cat(columns)}), at::cat(values), shape);
}

at::Tensor strided(at::IntArrayRef strides, const at::Tensor& values, at::IntArrayRef shape) {
  const char* const op = "strided";
  check_dense(op, {{"values", values}});
  TORCH_CHECK(!tensor::is_sparse(values), "[lacewing.", op, "] values must be a strided tensor, not a sparse one");
  TORCH_CHECK(shape.size() == strides.size(), "[lacewing.", op, "] a shape ", shape_text(shape),
              " needs as many strides, not ", shape_text(strides));
  const bool vector = values.dim() == 1;
  TORCH_CHECK(vector || values.is_contiguous(), "[lacewing.", op,
              "] values must be contiguous or a vector, not of shape ", shape_text(values.sizes()), " with strides ",
              shape_text(values.strides()));
  std::int64_t last = 0;
  bool none = false;
  bool fits = true;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    TORCH_CHECK(shape[d] >= 0 && strides[d] >= 0, "[lacewing.", op, "] shape ", shape_text(shape), " and strides ",
                shape_text(strides), " must not be negative");
    std::int64_t reach = 0;
    none = none || shape[d] == 0;
    fits = fits && !c10::mul_overflows(shape[d] - 1, strides[d], &reach) && !c10::add_overflows(last, reach, &last);
  }
  TORCH_CHECK(none || (fits && last < values.numel()), "[lacewing.", op, "] shape ", shape_text(shape),
              " with strides ", shape_text(strides), " has an element ",
              fits ? "at " + std::to_string(last) : std::string("beyond int64"), ", but values have ", values.numel(),
              " elements");
  std::vector<std::int64_t> steps = strides.vec();
  for (std::size_t d = 0; d < steps.size(); ++d) {
    steps[d] = vector && !none && shape[d] > 1 ? steps[d] * values.stride(0) : steps[d];
  }
  return values.as_strided(shape, steps);
}

std::optional<std::vector<std::int64_t>> contiguous_order(at::IntArrayRef shape, at::IntArrayRef strides) {
  TORCH_CHECK(shape.size() == strides.size(), "[lacewing.contiguous_order] a shape ", shape_text(shape),
              " needs as many strides, not ", shape_text(strides));
  return structure::contiguous_order({shape.data(), shape.size()}, {strides.data(), strides.size()});
}

namespace {

/// Of sizes that torch.compile keeps symbolic, on which it guards.
at::Tensor strided_op(c10::SymIntArrayRef strides, const at::Tensor& values, c10::SymIntArrayRef shape) {
  const auto known_strides = c10::asIntArrayRefSlowOpt(strides);
  const auto known_shape = c10::asIntArrayRefSlowOpt(shape);
  if (known_strides && known_shape && !values.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return strided(*known_strides, values, *known_shape);
  }
  TORCH_CHECK(shape.size() == strides.size() && (values.dim() == 1 || values.is_contiguous()),
              "[lacewing.strided] a shape needs as many strides, of values that are contiguous or a vector");
  c10::SymInt last = 0;
  bool none = false;
  std::vector<c10::SymInt> steps;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    none = none || shape[d] == 0;
    last += (shape[d] - 1) * strides[d];
    steps.push_back(values.dim() == 1 ? strides[d] * values.sym_stride(0) : strides[d]);
  }
  TORCH_CHECK(none || last < values.sym_numel(), "[lacewing.strided] an element lies outside of the values");
  return values.as_strided_symint(shape, steps);
}

at::Tensor random_indices_op(at::IntArrayRef size, std::int64_t nse, std::optional<at::Device> device,
                             std::optional<at::Generator> generator) {
  return random_indices(size, nse, device.value_or(at::kCPU), std::move(generator));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("random_indices(int[] size, int nse, Device? device, Generator? generator) -> Tensor", random_indices_op);
  m.def("strided(SymInt[] strides, Tensor(a) values, SymInt[] shape) -> Tensor(a)", strided_op);
  m.def("contiguous_order(int[] shape, int[] strides) -> int[]?", contiguous_order);
  m.def("sparse_diags(Tensor[] diagonals, int[] offsets, int[]? size) -> Tensor", diags);
}

}  // namespace lacewing
