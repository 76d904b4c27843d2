// Checks that all constructors of sparse tensors share.
#pragma once

#include <optional>

#include "structure/entry_scan.h"
#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The components of a sparse tensor; throws where it is none.
const Components& checked(const char* op, const at::Tensor& sparse);

/// Throws where a shape, or a part of it, has more elements than int64 can count.
void check_numel(const char* op, const Dims& shape);

/// Sizes times factors, one by one; throws where the shape that they are has more elements than int64 can count.
Dims multiplied(const char* op, const Dims& sizes, const Dims& factors);

/// A reading of indices (dims, nse); throws where one lies outside of the shape, whose sparse dims have the sizes.
structure::EntryScan checked_range(const char* op, const at::Tensor& indices, const Dims& sizes, const Dims& shape);

/// Throws where starts (rows + 1,) are not 0, ..., nse without decreasing. Users hold the tensor and may write to it,
/// so kernels look again before they trust it.
void check_starts(const char* op, const at::Tensor& starts, std::int64_t nse);

/// A fill in the type of the values; throws where it cannot be cast, or does not fit.
at::Tensor fitted(const char* op, const at::Tensor& fill, at::ScalarType type);

/// The fill beside such values, checked: its value is defined unless the kind is undefined.
Fill checked_fill(const char* op, const Fill& fill, const at::Tensor& values);

/// A fill as registered ops take it, beside values of such a type: 0 scalar, 1 undefined, 2 array; of numbers without a
/// type of their own, 3 one on the host, 4 an array.
Fill fill_of(const char* op, std::int64_t kind, const std::optional<at::Tensor>& value, at::ScalarType type);

}  // namespace lacewing::tensor
