// A training loop around an executor: readout, loss and optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/executor.h>
#include <lacewing/export.h>

namespace lacewing::etp {

/// What a learner asks of an optimizer.
struct Optimizer {
  std::function<void()> step;
  std::function<void()> zero_grad;
};

/// From anything with step() and zero_grad(), such as a std::shared_ptr<torch::optim::Adam>.
template <typename T>
Optimizer optimizer_of(std::shared_ptr<T> optimizer) {
  return {[optimizer] { optimizer->step(); }, [optimizer] { optimizer->zero_grad(); }};
}

struct LearnerOptions {
  /// The output from the state (B, O, S); where there is none, what the cell shows.
  std::function<at::Tensor(const at::Tensor& h)> readout;
  /// A single number; the mean squared error where there is none.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  /// The optimizer steps after so many losses; 0 leaves it to update().
  std::int64_t update_every = 0;
};

/// Trains a network step by step.
///
///     Learner learner(cell, Algorithm::d_rtrl, input, [](std::vector<at::Tensor> parameters) {
///       return optimizer_of(std::make_shared<torch::optim::Adam>(parameters, 1e-3));
///     });
///     for (...) learner.step(x, target);
///
/// A readout's own parameters belong to the optimizer's factory. Steps and updates of several threads take turns.
/// Copies share the executor; moving is copying, so that no learner is ever empty.
class LACEWING_API Learner {
 public:
  /// Makes an optimizer for the values of the connections.
  using OptimizerFactory = std::function<Optimizer(std::vector<at::Tensor> parameters)>;

  Learner(std::shared_ptr<Cell> cell, Algorithm algorithm, Connection input, const OptimizerFactory& optimizer,
          LearnerOptions options = {}, std::optional<Connection> recurrent = std::nullopt,
          ExecutorOptions executor_options = {});
  Learner(std::shared_ptr<Executor> executor, Optimizer optimizer, LearnerOptions options = {});

  Learner(const Learner&) = default;
  Learner& operator=(const Learner&) = default;

  struct Step {
    at::Tensor output;  ///< detached
    at::Tensor loss;    ///< detached; undefined where there was no target
  };

  /// One step of the network; with a target, its gradients as well, and an update where one is due.
  Step step(const at::Tensor& x, const std::optional<at::Tensor>& target = std::nullopt);

  /// The optimizer's step with the gradients that have added up, which are zeroed afterwards.
  void update();

  /// Before a new sequence.
  void reset_state();

  /// What the executor saves, and how many losses there were. The optimizer and the readout save themselves.
  Values save();
  void load(const Values& saved);

  Executor& executor() { return *executor_; }

 private:
  std::shared_ptr<Executor> executor_;
  Optimizer optimizer_;
  LearnerOptions options_;
  std::int64_t losses_ = 0;
};

}  // namespace lacewing::etp
