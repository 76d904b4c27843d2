// Checks of what the rules of a primitive give; each failure is a c10::Error that names the rule.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/executor.h>

namespace lacewing::etp {

/// Holds the rules that an algorithm needs against torch's derivatives of forward(), at random x and values. For
/// D-RTRL, whose trace knows one output for each value, also what is wrong with that. Those that ship are known to be
/// right.
std::optional<Analysis> analyze_rules(const Connection& connection, std::int64_t inputs, std::int64_t outputs,
                                      std::int64_t states, Algorithm algorithm, at::TensorOptions options);

/// xy_to_dw gave a gradient for each value, of its shape, dtype and device.
void check_gradients(const Primitive& primitive, const Values& found, const Values& values);
/// A rule gave that for each sample, (B, ...).
void check_each(const Primitive& primitive, const char* rule, const Values& found, const Values& values,
                std::int64_t batch);
/// init_drtrl gave zeros, (B, ..., S).
void check_initial_traces(const Primitive& primitive, const Values& found, const Values& values, std::int64_t batch,
                          std::int64_t states);
/// init_pp gave zeros, (*y.shape, S).
void check_initial_factor(const Primitive& primitive, const at::Tensor& found, const at::Tensor& y,
                          std::int64_t states);

}  // namespace lacewing::etp
