// Cells: the step of a hidden group, position by position.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>

namespace lacewing::etp {

struct CellOptions;

/// A step at one point: the new state and its derivatives by position.
struct Linearization {
  at::Tensor next;   ///< (B, O, S)
  at::Tensor df;     ///< (B, O, S): dh_a/dy
  at::Tensor decay;  ///< (B, O, S, S): dh_a(t)/dh_c(t-1)
};

/// The step of a hidden group: S states of one shape, stacked on the last dim.
class LACEWING_API Cell {
 public:
  virtual ~Cell() = default;

  virtual std::int64_t states() const = 0;
  /// h(t) from y (B, O) and h(t-1) (B, O, S): (B, O, S), differentiable by autograd.
  virtual at::Tensor forward(const at::Tensor& y, const at::Tensor& h) const = 0;
  /// What other neurons and readouts see of a state: (B, O, S) -> (B, O). The first state, unless overridden.
  virtual at::Tensor output(const at::Tensor& h) const;
  /// The step with its derivatives. Derived from forward() by autograd, S backward passes with an all-ones cotangent,
  /// unless overridden: right only where positions do not mix. next keeps its history for the parameters of the cell.
  virtual Linearization linearize(const at::Tensor& y, const at::Tensor& h) const;
  /// The step alone, with ef <- alpha * D ef + (1 - alpha) * df in place; ef is (O, S, B), contiguous.
  virtual at::Tensor advance(const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef, double alpha) const;
  /// Known not to mix positions, so that analysis needs no probe.
  virtual bool position_wise() const { return false; }
  /// What a ready cell was made from: executors run those by kernels of their own. Null for every other.
  virtual const CellOptions* ready() const { return nullptr; }
  /// m, where the first state obeys h_0' = m h_0 + y + (terms without a derivative): dh_0/dy = 1 and dh_0/dh = (m, 0,
  /// ..., 0) for all neurons, so that its trace depends on the input alone. D-RTRL then keeps that trace once for each
  /// input of a sparse connection instead of once for each weight. Checked at random states, except where
  /// position_wise() spares the probe.
  virtual std::optional<double> shared_decay() const { return std::nullopt; }
  /// Throws c10::Error where the cell has no room for so many neurons.
  virtual void check_neurons(std::int64_t /*neurons*/) const {}
};

/// A cell from a function; it may have parameters of its own, which get their same-step gradient.
LACEWING_API std::shared_ptr<Cell> make_cell(
    std::int64_t states, std::function<at::Tensor(const at::Tensor& y, const at::Tensor& h)> forward,
    std::function<at::Tensor(const at::Tensor& h)> output = {});

/// A ready cell.
///
/// "leaky":  v' = membrane * v + y
/// "lif":    v' = membrane * v + y - threshold * z,  z = [v > threshold]
/// "alif":   the same with z = [v > threshold + beta * a],  a' = adaptation * a + z
/// "gated":  h' = h + sigmoid(gate_input * y + gate_state * h + gate_bias) * (tanh(y + candidate_state * h) - h)
///
/// With `filtered`, spiking cells have a last state r' = filter * r + (1 - filter) * z(h').
/// `reset`: "subtract" as above, "to_zero" (v' = membrane * v * (1 - z) + y), or "none".
/// `surrogate`, the derivative that stands for that of z at u = (v - threshold - beta * a) / width: "triangle"
/// gain * max(0, 1 - |u|), "fast_sigmoid" gain / (1 + |u|)^2, "arctan" gain / (1 + u^2), "gaussian"
/// gain * exp(-u^2 / 2), "boxcar" gain * [|u| < 1].
struct CellOptions {
  std::string kind = "leaky";
  std::string surrogate = "triangle";
  std::string reset = "subtract";
  bool reset_gradient = false;  ///< whether derivatives flow through the reset; without, see Cell::shared_decay
  bool filtered = false;
  double membrane = 0.9;
  double adaptation = 0.99;
  double filter = 0.9;
  double threshold = 1.0;
  double beta = 0.1;
  std::optional<at::Tensor> betas;  ///< (O,): one for each neuron instead
  double gain = 0.3;
  double width = 1.0;
  double gate_input = 1.0;
  double gate_state = 1.0;
  double gate_bias = 0.0;
  double candidate_state = 1.0;
  /// In place of the number of that name, one for each neuron, (O,), or one for all that learns, (): "membrane",
  /// "adaptation", "filter", "threshold", or one of the gated cell's. Those that require grad get their same-step
  /// gradient. Such a cell is composed of torch's ops.
  std::map<std::string, at::Tensor> by_neuron = {};
};

/// Checks the options; throws c10::Error with one sentence. The step with its Jacobian is one fused kernel.
LACEWING_API std::shared_ptr<Cell> make_cell(const CellOptions& options);

/// [x > 0] with a surrogate derivative; see CellOptions. Differentiable to any order, where the surrogate is.
LACEWING_API at::Tensor spike(const at::Tensor& x, const std::string& surrogate = "triangle", double gain = 0.3,
                              double width = 1.0);

}  // namespace lacewing::etp
