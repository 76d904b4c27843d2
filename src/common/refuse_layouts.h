// Tensors that are not strided memory (sparse, quantized, nested, of oneDNN): one sentence in place of a missing
// kernel.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

namespace lacewing {

/// Defines an op that takes dense tensors only. The refusals are kernels of their own, in front of those of a device
/// and of CompositeExplicitAutograd; an op that is composed at every key (defined with its function) is to call
/// check_dense.
void define_dense_op(torch::Library& m, const std::string& schema, const std::vector<at::Tag>& tags = {});

/// For ops composed at every key: throws "[lacewing.<op>] <argument> must be a dense tensor, not ...".
void check_dense(const char* op, std::initializer_list<std::pair<const char*, at::Tensor>> arguments);

}  // namespace lacewing
