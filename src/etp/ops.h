// This module's registered ops as C++ functions. Arrays have the batch last, as the kernels take them.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/cell.h>
#include <lacewing/etp/pattern.h>

namespace lacewing::etp {

using OptionalTensor = std::optional<at::Tensor>;

/// trace (entries, S, B) is updated with x, df and decay where those are given, and contracted with g into grad where
/// that is given. `columns` is absent for a bias, whose entries are the columns.
void update_trace(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const OptionalTensor& x,
                  const OptionalTensor& df, const OptionalTensor& decay, const OptionalTensor& g,
                  const OptionalTensor& grad);

/// next (O, S, B), df (O, S, B), D (O, S, S, B) of a ready cell.
std::tuple<at::Tensor, at::Tensor, at::Tensor> step_cell(const CellOptions& options, const at::Tensor& y,
                                                         const at::Tensor& h);

/// next; ef (O, S, B) is updated to alpha * D ef + (1 - alpha) * df without df and D in memory.
at::Tensor step_cell_factor(const CellOptions& options, const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef,
                            double alpha);

/// The spikes (O, B) of a state (O, S, B) of a spiking cell, on the CPU.
at::Tensor output_of_cell(const CellOptions& options, const at::Tensor& h);

/// A function that Python registered under this number.
std::vector<at::Tensor> call_back(std::int64_t id, const char* what, at::TensorList args);

}  // namespace lacewing::etp
