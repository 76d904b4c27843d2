// Ready cells: one step of all neurons with its Jacobian by position, as every backend takes it. Torch-free.
//
//   h'[o, a, b] = f_a(y[o, b], h[o, :, b]),   df[o, a, b] = dh'_a/dy,   D[o, a, c, b] = dh'_a/dh_c
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

enum class CellKind : std::uint8_t { leaky, lif, alif, gated };
enum class Surrogate : std::uint8_t { triangle, fast_sigmoid, arctan, gaussian, boxcar };
enum class Reset : std::uint8_t { subtract, to_zero, none };

/// The constants of a cell; each kind uses some of them.
struct CellParams {
  CellKind kind = CellKind::leaky;
  Surrogate surrogate = Surrogate::triangle;
  Reset reset = Reset::subtract;
  bool reset_gradient = true;  ///< whether derivatives flow through the reset
  bool filtered = false;       ///< a last state that filters the spikes
  double membrane = 0;         ///< decay of the membrane per step
  double adaptation = 0;       ///< decay of the adaptation
  double filter = 0;           ///< decay of the spike filter
  double threshold = 1;
  double beta = 0;   ///< strength of the adaptation, where the neurons have none of their own
  double gain = 1;   ///< the surrogate's derivative at the threshold
  double width = 1;  ///< and how far it reaches
  double gate_input = 1;
  double gate_state = 0;
  double gate_bias = 0;
  double candidate_state = 0;
};

constexpr std::int64_t states_of(const CellParams& params) {
  const std::int64_t own = params.kind == CellKind::alif ? 2 : 1;
  const bool spikes = params.kind == CellKind::lif || params.kind == CellKind::alif;
  return own + (spikes && params.filtered ? 1 : 0);
}

/// All arrays are contiguous and of one type, f32 or f64.
struct CellArgs {
  CellParams params;
  ScalarType type = ScalarType::f32;
  std::int64_t neurons = 0;
  std::int64_t batch = 1;
  const void* y = nullptr;     ///< (neurons, batch)
  const void* h = nullptr;     ///< (neurons, states, batch)
  const void* beta = nullptr;  ///< (neurons); null: params.beta
  void* next = nullptr;        ///< (neurons, states, batch)
  void* df = nullptr;          ///< (neurons, states, batch); null: no derivatives are written
  void* decay = nullptr;       ///< (neurons, states, states, batch)
  void* ef = nullptr;          ///< (neurons, states, batch); else ef <- alpha D ef + (1 - alpha) df, without df and D
  double alpha = 0;
};

/// What spiking neurons show of a state: z[o, b] = [v > threshold + beta * a].
struct CellOutputArgs {
  CellParams params;
  ScalarType type = ScalarType::f32;
  std::int64_t neurons = 0;
  std::int64_t batch = 1;
  const void* h = nullptr;     ///< (neurons, states, batch)
  const void* beta = nullptr;  ///< (neurons); null: params.beta
  void* z = nullptr;           ///< (neurons, batch)
};

namespace cpu {
void cell_step(const CellArgs& args, const CpuExecutor& executor);
void cell_output(const CellOutputArgs& args, const CpuExecutor& executor);
}  // namespace cpu

namespace cuda {
void cell_step(const CellArgs& args, const CudaExecutor& executor);
}  // namespace cuda

}  // namespace lacewing::kernels
