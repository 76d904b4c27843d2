// Executors: D-RTRL and pp-prop, one step at a time, with memory that does not grow with time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/cell.h>
#include <lacewing/etp/primitive.h>
#include <lacewing/export.h>

namespace lacewing::etp {

enum class Algorithm : std::uint8_t { d_rtrl, pp_prop };

struct ExecutorOptions {
  Algorithm algorithm = Algorithm::d_rtrl;
  double alpha = 0.9;              ///< pp-prop: the decay of its traces, in [0, 1)
  bool allow_approximate = false;  ///< go on with a cell that mixes positions; its derivatives are then approximate
  bool check_finite = false;       ///< throw at the first state that is not finite, with the step and the neuron
  /// D-RTRL: the trace takes so many steps, 1 to 8, in one pass over it. Beyond 1 their derivatives are kept meanwhile,
  /// and .grad() is complete after every so many steps and after flush(). The gradients have the same bits.
  std::int64_t absorb_every = 1;
};

/// alpha of pp-prop for an integer rank r >= 1: (r - 1) / (r + 1).
LACEWING_API double alpha_of_rank(std::int64_t rank);

enum class Exactness : std::uint8_t { exact, approximate, refused };

/// What an algorithm makes of a cell, and why.
struct Analysis {
  Exactness exactness = Exactness::exact;
  std::string reason;
};

/// Whether the gradients are those of back-propagation through time. A cell that is not known to be position-wise is
/// run on random states, and its Jacobian from an all-ones cotangent is compared with one from random signs and powers
/// of two, to the last bits. `recurrent`: there are recurrent weights between neurons. An executor also knows those
/// that lead from every neuron to itself alone, which are exact, and holds the rules of a user's primitive against
/// torch's derivatives before its first step.
LACEWING_API Analysis analyze(const Cell& cell, std::int64_t neurons, bool recurrent, Algorithm algorithm,
                              at::TensorOptions options);

/// Trains y(t) = input(x(t)) + recurrent(output(h(t-1))), h(t) = cell(y(t), h(t-1)) online.
///
///     auto h = executor.step(x);                       // (B, O, S)
///     executor.backward(loss_of(readout(cell->output(h))));
///
/// Gradients are added to .grad() of the connections' values that require one; every other leaf that the loss reaches
/// (a readout, a parameter of the cell, what x was made from) gets its ordinary same-step gradient. The trace is never
/// part of the autograd graph. Calls of several threads take turns, one after the other; hold() makes one turn of
/// several calls. One that was moved from refuses every call.
class LACEWING_API Executor {
 public:
  /// Throws c10::Error with one sentence where the values do not fit or the analysis refuses the cell.
  Executor(std::shared_ptr<Cell> cell, Connection input, std::optional<Connection> recurrent = std::nullopt,
           ExecutorOptions options = {});
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  const Analysis& analysis() const;

  /// Other threads wait until what this returns is gone.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> hold() const;

  /// h(t): (B, O, S) for x (B, I), or (O, S) for x (I,). The first step after a reset settles the batch. The trace is
  /// rolled by the following backward(), in one pass with its contraction, or by the next step. h shares its memory
  /// with the state: it must not be changed in place. That memory is used again once the caller has let h go.
  /// Without gradients enabled the network runs alone, which is faster: as in autograd, no gradient flows back across
  /// such a step, and the traces begin anew with the next one.
  at::Tensor step(const at::Tensor& x);

  /// The S states of the last step one by one, (B, O) each, for losses that reach only some of them: slicing h gives
  /// the same gradients through zeros for all others.
  std::vector<at::Tensor> states() const;

  /// h of k steps, (k, B, O, S), for x (k, B, I): ordinary autograd inside the window, and the trace for what lies
  /// before it. Call backward() (or step() or window(), where there is no loss) before the next.
  at::Tensor window(const at::Tensor& x);

  /// Adds the gradients of a loss on what the last step() or window() returned. Throws c10::Error where the loss
  /// reaches an earlier one, or nothing of it. A loss that is differentiated in any other way makes the next call
  /// throw, since the values would have learned nothing from it.
  void backward(const at::Tensor& loss);

  /// With absorb_every > 1: the gradients of all losses so far are in .grad() afterwards.
  void flush();

  /// What readouts and other neurons see of a state.
  at::Tensor output(const at::Tensor& h) const;

  /// Forgets the state and zeroes the trace.
  void reset_state();

  /// The last state, detached; undefined before the first step.
  at::Tensor state() const;
  /// D-RTRL: "input.weight", ... of shapes (B, nse, S). pp-prop: "input.x" (B, I), ..., "f" (B, O, S). Copies.
  Values traces();
  std::int64_t steps() const;

  /// Values, state, traces and counters as tensors. Restoring them goes on with the same bits; what does not fit is
  /// refused, leaves the values as they were and the executor reset. What was saved without values keeps those at hand.
  Values save();
  void load(const Values& saved);

  /// Elements that the traces hold.
  std::int64_t trace_elements() const;

 private:
  struct Impl;
  /// Throws where the executor was moved from.
  Impl& impl() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace lacewing::etp
