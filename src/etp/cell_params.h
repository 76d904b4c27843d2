// The options of a ready cell as the kernels take them, and as plain numbers for the registered ops.
#pragma once

#include <vector>

#include <lacewing/etp/cell.h>

#include "kernels/cell.h"

namespace lacewing::etp {

/// Checks every option but `by_neuron`.
kernels::CellParams to_params(const CellOptions& options);
void check_by_neuron(const CellOptions& options);

kernels::Surrogate surrogate_named(const char* op, std::string_view name);

/// kind, surrogate, reset, reset_gradient, filtered; and the other fields in the order of CellParams.
std::vector<std::int64_t> flags_of(const kernels::CellParams& params);
std::vector<double> numbers_of(const kernels::CellParams& params);
kernels::CellParams params_from(at::IntArrayRef flags, at::ArrayRef<double> numbers);

}  // namespace lacewing::etp
