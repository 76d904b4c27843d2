// Plans from the user's tensors; also registered as ops.
#pragma once

#include <string_view>
#include <tuple>

#include "product/calls.h"
#include "product/plan_fields.h"

namespace lacewing::products {

/// The plan of the fields of an info, and its numbers; `unary` is for sparse scale, `op` is whom errors name.
std::tuple<at::Tensor, std::vector<std::int64_t>> product_plan(
    std::optional<std::int64_t> entries, const OptionalTensor& index1, const OptionalTensor& index2,
    const OptionalTensor& seg_out, const OptionalTensor& gather_index, const OptionalTensor& index_out,
    std::optional<std::int64_t> out_size, bool unary, std::string_view op);

/// The plans of triples, fwd, bwd1 and bwd2 (fwd alone with `forward_only`, no bwd2 with `unary`): their arrays, and
/// their numbers one after the other. entries < 0: not known.
std::tuple<std::vector<at::Tensor>, std::vector<std::int64_t>> sorted_plans(
    const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& index, std::int64_t entries,
    std::optional<std::int64_t> out_size, std::optional<std::int64_t> in1_size, std::optional<std::int64_t> in2_size,
    bool unary, bool forward_only, std::string_view op);

}  // namespace lacewing::products
