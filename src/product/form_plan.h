// Plans and edges of the formula from the user's tensors; also registered as ops.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lacewing::products {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

/// The array, sizes and text of a plan. `index` are those of the operands and of the output; rows that are not given
/// are -1; `layout` is empty or offset, extent and stride of each role; `entries` is the length of scale, or -1. `op`
/// is whom errors name.
std::tuple<at::Tensor, std::vector<std::int64_t>, std::string> plan_terms(
    std::string_view form, const OptionalTensors& index, at::IntArrayRef rows, const OptionalTensors& layout,
    std::string_view letters, at::IntArrayRef extents, std::int64_t entries, std::string_view op);

/// The array and sizes of edges. `lists` are those of the operands and of the output, `maps` their kinds; sizes that
/// are not given are -1.
std::tuple<at::Tensor, std::vector<std::int64_t>> plan_edges(const OptionalTensors& lists, std::string_view maps,
                                                             std::int64_t edges, at::IntArrayRef batch, bool sorted,
                                                             std::string_view op);

}  // namespace lacewing::products
