// From the tensors of a product to its kernels' arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include "product/shape.h"

namespace lacewing::products {

/// A tensor of dims ([N], M, [a], [b]) as the kernels see it; nothing where it is undefined.
kernels::Operand operand(const at::Tensor& tensor, bool batched, Channels channels);

/// Whether the device's kernels for sums and dots of rows want a copy of an operand, whose channels lie side by side.
bool has_channels_apart(Kind kind, const at::Tensor& tensor, Channels channels);
/// That copy, or the operand as it is.
at::Tensor channels_together(Kind kind, const at::Tensor& tensor, Channels channels);

/// The arguments of a product but for scale and z. The tensors must outlive them.
kernels::ProductArgs arguments(Kind kind, const ProductShape& shape, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& plan, bool accumulated);

/// So many bytes beside `like`, or nothing.
at::Tensor workspace(std::int64_t bytes, const at::Tensor& like);
void* data_of(const at::Tensor& workspace);

}  // namespace lacewing::products
