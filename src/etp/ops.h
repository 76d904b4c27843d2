// This module's registered ops as C++ functions. Arrays have the batch last, as the kernels take them.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/cell.h>
#include <lacewing/etp/pattern.h>

#include "kernels/trace.h"

namespace lacewing::etp {

using OptionalTensor = std::optional<at::Tensor>;

/// Null where it is undefined.
template <typename T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

/// The trace of a first state that the entries of a row share (see Cell::shared_decay).
struct SharedRows {
  std::vector<at::Tensor> u;  ///< (I, B) each: before the first of the steps and after each; empty: nothing is shared
  double decay = 0;
};

/// Successive steps of a trace: an entry of each for every step; x is empty for a bias and where shared rows stand for
/// it, df and decay where the trace stays as it is; an undefined g leaves its step out of the gradient.
struct TraceSteps {
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> df;
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> g;
};

/// What successive steps of a trace have in common and what they share, as the kernels take it: x, df, decay and g are
/// the caller's to add. Undefined arrays are null; nothing is checked.
std::vector<kernels::TraceArgs> trace_args(const char* op, std::size_t steps, const at::Tensor& trace,
                                           const SparsePattern::ByColumn& columns, const SharedRows& shared,
                                           const OptionalTensor& grad);

/// trace (entries, S, B), or (entries, S - 1, B) where rows share the first state's, is updated and contracted into
/// grad where that is given, for all of the steps in one pass over it. `columns` is absent for a bias, whose entries
/// are the columns.
void update_trace(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const TraceSteps& steps,
                  const SharedRows& shared, const OptionalTensor& grad);

/// next (O, S, B), df (O, S, B), D (O, S, S, B) of a ready cell.
std::tuple<at::Tensor, at::Tensor, at::Tensor> step_cell(const CellOptions& options, const at::Tensor& y,
                                                         const at::Tensor& h);

/// next; ef (O, S, B) is updated to alpha * D ef + (1 - alpha) * df without df and D in memory.
at::Tensor step_cell_factor(const CellOptions& options, const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef,
                            double alpha);

/// A function that Python registered under this number.
std::vector<at::Tensor> call_back(std::int64_t id, const char* what, at::TensorList args);

}  // namespace lacewing::etp
