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
  bool reset_gradient = false;  ///< whether derivatives flow through the reset
  bool filtered = false;        ///< a last state that filters the spikes
  double membrane = 0;          ///< decay of the membrane per step
  double adaptation = 0;        ///< decay of the adaptation
  double filter = 0;            ///< decay of the spike filter
  double threshold = 1;
  double beta = 0;   ///< strength of the adaptation, where the neurons have none of their own
  double gain = 1;   ///< the surrogate's derivative at the threshold
  double width = 1;  ///< and how far it reaches
  double gate_input = 1;
  double gate_state = 0;
  double gate_bias = 0;
  double candidate_state = 0;
};

constexpr bool spikes(const CellParams& params) {
  return params.kind == CellKind::lif || params.kind == CellKind::alif;
}

constexpr std::int64_t states_of(const CellParams& params) {
  const std::int64_t own = params.kind == CellKind::alif ? 2 : 1;
  return own + (spikes(params) && params.filtered ? 1 : 0);
}

/// Whether the membrane obeys v' = membrane * v + y + (terms without a derivative).
constexpr bool linear_membrane(const CellParams& params) {
  const bool detached = params.reset == Reset::none || (params.reset == Reset::subtract && !params.reset_gradient);
  return params.kind == CellKind::leaky || (spikes(params) && detached);
}

/// Whether y decides about the derivatives of a step, or the state that it begins with does alone.
constexpr bool derivatives_need_input(const CellParams& params) {
  return params.kind == CellKind::gated || (spikes(params) && params.filtered);
}

/// Sparse weights whose product adds to y, entries sorted by column as a trace's:
///   y[o, b] += sum over entries p of column o of weight[order p] * x[row p, b]   (+ bias[o])
struct CellInput {
  const std::int64_t* segments = nullptr;  ///< (neurons + 1)
  const std::int32_t* row = nullptr;       ///< (entries)
  const std::int64_t* order = nullptr;     ///< (entries): place in weight; null: the identity
  const void* weight = nullptr;            ///< (entries)
  const void* bias = nullptr;              ///< (neurons) or null
  const void* x = nullptr;                 ///< (rows, batch)
};

/// All arrays are contiguous and of one type, f32 or f64.
struct CellArgs {
  CellParams params;
  ScalarType type = ScalarType::f32;
  std::int64_t neurons = 0;
  std::int64_t batch = 1;
  const void* y = nullptr;  ///< (neurons, batch); null: zero
  CellInput inputs[2];      ///< on the CPU
  int input_count = 0;
  const void* h = nullptr;     ///< (neurons, states, batch)
  const void* beta = nullptr;  ///< (neurons); null: params.beta
  void* next = nullptr;        ///< (neurons, states, batch); null, on the CPU: not written
  void* sum = nullptr;         ///< (neurons, batch): y with what the inputs add to it, on the CPU; null: not written
  void* z = nullptr;           ///< (neurons, batch): spikes of the new state, on the CPU; null: not written
  void* df = nullptr;          ///< (neurons, states, batch); null: no derivatives are written
  void* decay = nullptr;       ///< (neurons, states, states, batch)
  void* ef = nullptr;          ///< (neurons, states, batch); else ef <- alpha D ef + (1 - alpha) df, without df and D
  double alpha = 0;
  std::int64_t first = 0;  ///< the neuron of the first row of df and decay, on the CPU
};

/// What a gradient of the spikes of a state means for that state: g = dz/dh * gz, with the surrogate's derivative.
struct SpikeGradientArgs {
  CellParams params;
  ScalarType type = ScalarType::f32;
  std::int64_t neurons = 0;
  std::int64_t batch = 1;
  const void* h = nullptr;     ///< (neurons, states, batch)
  const void* beta = nullptr;  ///< (neurons); null: params.beta
  const void* gz = nullptr;    ///< (neurons, batch) with the strides below
  std::int64_t gz_neuron = 0;
  std::int64_t gz_batch = 0;
  void* g = nullptr;       ///< (neurons, states, batch)
  std::int64_t first = 0;  ///< the neuron of its first row
};

namespace cpu {
void cell_step(const CellArgs& args, const CpuExecutor& executor);
void spike_gradient(const SpikeGradientArgs& args, const CpuExecutor& executor);
}  // namespace cpu

namespace cuda {
void cell_step(const CellArgs& args, const CudaExecutor& executor);
}  // namespace cuda

}  // namespace lacewing::kernels
