// Whole steps by kernels of this module: ready cells over sparse connections on the CPU, in memory that is used again.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "etp/learning.h"
#include "etp/ops.h"

namespace lacewing::etp {

/// Tensors that are handed out again once nobody else holds them: fresh pages cost more than what is written to them.
class Buffers {
 public:
  /// Keeps the latest so many.
  explicit Buffers(std::size_t most) : most_(most) {}
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options);
  void clear() { kept_.clear(); }

 private:
  std::size_t most_;
  std::vector<at::Tensor> kept_;
};

/// Whether every connection is sparse, and dtype, device and backend are those of the kernels.
bool runs_fused(const std::vector<Part>& parts, const at::Tensor& like);

/// Values may have been replaced since the executor was made: throws where the kernels could not take them.
void check_values(const char* op, const std::vector<Part>& parts, const at::Tensor& like);

/// The arrays of one step; those that are undefined are not written.
struct FusedStep {
  std::vector<at::Tensor> x;  ///< (I, B) of each part, contiguous
  at::Tensor h;               ///< (O, S, B), contiguous
  at::Tensor betas;           ///< (O): see betas_of
  at::Tensor next;            ///< (O, S, B)
  at::Tensor y;               ///< (O, B): what the parts add up to
  at::Tensor z;               ///< (O, B): spikes of the new state
  at::Tensor ef;              ///< (O, S, B), updated with alpha
  double alpha = 0;
};

/// The strengths of adaptation that the neurons have of their own, in the dtype of `like`; undefined where there are
/// none.
at::Tensor betas_of(const CellOptions& options, const at::Tensor& like);

/// Products of all parts and the cell, neuron by neuron in one kernel.
void step_fused(const CellOptions& options, const std::vector<Part>& parts, const FusedStep& step);

/// g (O, S, B) <- the gradient of a state h (O, S, B), from that of its spikes, (O, B) with any strides.
void spike_gradient_fused(const CellOptions& options, const at::Tensor& h, const at::Tensor& gz, const at::Tensor& g);

/// Successive steps of a trace as update_trace takes it, some of them of fused kernels, with their contractions into
/// grad where that is given, in one pass. `columns` is null for a bias; `part` is the place among the x of a step.
void absorb_fused(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const SharedRows& shared,
                  std::span<const Taken> steps, std::size_t part, const OptionalTensor& grad);

/// Adds the gradients of pp-prop's factors: x (I, B) of each part, ef (O, S, B).
void contract_fused(const std::vector<Part>& parts, const std::vector<at::Tensor>& x, const at::Tensor& ef,
                    const Gradient& g, double factor, double bias_factor);

}  // namespace lacewing::etp
