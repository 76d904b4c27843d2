// From the tensors of a call to the arguments of a kernel.
#pragma once

#include "product/form_call.h"

namespace lacewing::products {

/// The arguments of a call whose tensors, in their roles, have the dtype of `out`; all of them must outlive them.
kernels::FormArgs form_arguments(const FormCall& call, const std::vector<at::Tensor>& tensors, at::TensorList plan,
                                 const at::Tensor& out);

/// Whether nothing is summed: the result is zero.
bool is_empty_sum(const kernels::FormArgs& args);

}  // namespace lacewing::products
