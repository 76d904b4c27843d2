// This module's registered ops as C++ functions. Arrays have the batch last, as the kernels take them.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/cell.h>
#include <lacewing/etp/pattern.h>

namespace lacewing::etp {

using OptionalTensor = std::optional<at::Tensor>;

/// Successive steps of a trace: an entry of each for every step; x is empty for a bias, df and decay where the trace
/// stays as it is; an undefined g leaves its step out of the gradient.
struct TraceSteps {
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> df;
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> g;
};

/// trace (entries, S, B) is updated and contracted into grad where that is given, for all of the steps in one pass over
/// it. `columns` is absent for a bias, whose entries are the columns.
void update_trace(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const TraceSteps& steps,
                  const OptionalTensor& grad);

/// next (O, S, B), df (O, S, B), D (O, S, S, B) of a ready cell.
std::tuple<at::Tensor, at::Tensor, at::Tensor> step_cell(const CellOptions& options, const at::Tensor& y,
                                                         const at::Tensor& h);

/// next; ef (O, S, B) is updated to alpha * D ef + (1 - alpha) * df without df and D in memory.
at::Tensor step_cell_factor(const CellOptions& options, const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef,
                            double alpha);

/// A function that Python registered under this number.
std::vector<at::Tensor> call_back(std::int64_t id, const char* what, at::TensorList args);

}  // namespace lacewing::etp
