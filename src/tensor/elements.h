// Elements by their places: one index tensor for each sparse dim.
#pragma once

#include "tensor/call.h"

namespace lacewing::tensor {

/// All places of a box: the index of dim d varies along dim d, and has size 1 along the others.
std::vector<at::Tensor> box_places(at::IntArrayRef sizes, const at::Tensor& like);

/// A tensor of the host where the values are: torch takes index tensors of the host for a tensor anywhere.
at::Tensor beside(const Components& c, const at::Tensor& from_host);

/// Throws torch's error for index tensors and masks of S[...] that are of another type than torch takes.
void check_index_type(const at::Tensor& index);

/// Index tensors that a user gave, with negative ones wrapped; throws torch's error where one is out of bounds.
at::Tensor wrapped_places(const at::Tensor& index, std::int64_t dim, std::int64_t size);

/// The elements at the places (broadcast against each other): strided, their shape and the dense dims. Needs a fill.
at::Tensor elements_at(const Components& c, const std::vector<at::Tensor>& places);

/// The tensor with elements at the places overwritten, or added to; entries are made where there are none.
/// Adding needs a fill; `values` expand to the places' shape and the dense dims.
Components written_at(const Components& c, const std::vector<at::Tensor>& places, const at::Tensor& values,
                      bool accumulate);

}  // namespace lacewing::tensor
