#include "tensor/elements.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "index/keys.h"
#include "index/merge.h"
#include "tensor/align.h"

namespace lacewing::tensor {
namespace {

/// Places as linear keys, and the shape that they broadcast to.
struct Places {
  Dims shape;
  at::Tensor keys;

  Places(const Components& c, const std::vector<at::Tensor>& given) {
    const std::vector<at::Tensor> wide = at::broadcast_tensors(given);
    shape = wide[0].sizes().vec();
    std::vector<at::Tensor> rows;
    for (const at::Tensor& place : wide) {
      rows.push_back(place.reshape(-1));
    }
    keys = index::linear_keys(at::stack(rows), c.pattern->sizes());
  }
};

}  // namespace

std::vector<at::Tensor> box_places(at::IntArrayRef sizes, const at::Tensor& like) {
  std::vector<at::Tensor> places;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    Dims shape(sizes.size(), 1);
    shape[d] = sizes[d];
    places.push_back(at::arange(sizes[d], like.options().dtype(at::kLong).requires_grad(false)).view(shape));
  }
  return places;
}

at::Tensor beside(const Components& c, const at::Tensor& from_host) {
  return from_host.is_cpu() ? from_host.to(c.values.device()) : from_host;
}

namespace {

at::ScalarType signed_type(std::size_t bytes) {
  return bytes == 1 ? at::kChar : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
}

constexpr const char* kIndexTypes = "tensors used as indices must be long, int, byte or bool tensors";

}  // namespace

void check_index_type(const at::Tensor& index) {
  const auto type = index.scalar_type();
  TORCH_CHECK_INDEX(type == at::kLong || type == at::kInt || type == at::kByte || type == at::kBool, kIndexTypes);
}

at::Tensor wrapped_places(const at::Tensor& index, std::int64_t dim, std::int64_t size) {
  TORCH_CHECK_INDEX(at::isIntegralType(index.scalar_type(), /*includeBool=*/false), kIndexTypes);
  const at::Tensor t = index.to(at::kLong);
  if (t.numel() > 0) {
    const auto low = t.min().item<std::int64_t>();
    const auto high = t.max().item<std::int64_t>();
    TORCH_CHECK_INDEX(low >= -size && high < size, "index ", low < -size ? low : high,
                      " is out of bounds for dimension ", dim, " with size ", size);
  }
  return at::where(t < 0, t + size, t);
}

at::Tensor elements_at(const Components& given, const std::vector<at::Tensor>& where) {
  const Components c = coalesced(given);
  const Places places(c, where);
  Dims shape = places.shape;
  shape.insert(shape.end(), c.dense_shape().begin(), c.dense_shape().end());
  return pick_rows(c, index::find_keys(c.pattern->keys(), places.keys)).reshape(shape);
}

Components written_at(const Components& given, const std::vector<at::Tensor>& where, const at::Tensor& values,
                      bool accumulate) {
  Components c = coalesced(given);
  const Fill fill = c.fill;
  if (!c.has_fill()) {
    c.fill = known_fill(0, c.values);  // each new entry is written
  }
  // Dtypes that torch cannot index are moved as signed integers of the same bits; unsigned ones add so, too.
  const auto type = c.values.scalar_type();
  const bool as_bits = is_bare(type) && !(accumulate && c10::isFloat8Type(type));
  const auto bits = [&](const at::Tensor& t) { return as_bits ? t.view(signed_type(t.element_size())) : t; };
  c = {c.pattern, bits(c.values), {c.fill.kind, bits(c.fill.value)}};
  const Places places(c, where);
  Dims shape = places.shape;
  shape.insert(shape.end(), c.dense_shape().begin(), c.dense_shape().end());
  Dims rows{places.keys.numel()};
  rows.insert(rows.end(), c.dense_shape().begin(), c.dense_shape().end());
  const auto source = bits(values).expand(shape).reshape(rows);
  const auto targets = Pattern::make(places.keys.unsqueeze(0), {c.pattern->numel()})->coalesced()->keys();
  const index::Merged merged = index::union_of(c.pattern->keys(), targets);
  const auto before = pick_rows(c, merged.in_a);
  const auto after = before.index_put({index::find_keys(merged.keys, places.keys)}, source, accumulate);
  return {Pattern::of_keys(merged.keys.contiguous(), c.pattern->sizes()), as_bits ? after.view(type) : after, fill};
}

}  // namespace lacewing::tensor
