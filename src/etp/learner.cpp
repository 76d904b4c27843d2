#include <utility>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/scalar_tensor.h>

#include <lacewing/etp/learner.h>

#include "etp/learning.h"

namespace lacewing::etp {
namespace {

constexpr const char* kLearner = "etp.Learner";

std::vector<at::Tensor> values_of(const Connection& input, const std::optional<Connection>& recurrent) {
  std::vector<at::Tensor> out;
  for (const auto& [key, tensor] : input.trainable) {
    out.push_back(tensor);
  }
  if (recurrent) {
    for (const auto& [key, tensor] : recurrent->trainable) {
      out.push_back(tensor);
    }
  }
  return out;
}

ExecutorOptions with_algorithm(ExecutorOptions options, Algorithm algorithm) {
  options.algorithm = algorithm;
  return options;
}

}  // namespace

Learner::Learner(std::shared_ptr<Cell> cell, Algorithm algorithm, Connection input, const OptimizerFactory& optimizer,
                 LearnerOptions options, std::optional<Connection> recurrent, ExecutorOptions executor_options)
    : Learner(
          std::make_shared<Executor>(std::move(cell), input, recurrent, with_algorithm(executor_options, algorithm)),
          optimizer ? optimizer(values_of(input, recurrent)) : Optimizer{}, std::move(options)) {}

Learner::Learner(std::shared_ptr<Executor> executor, Optimizer optimizer, LearnerOptions options)
    : executor_(std::move(executor)), optimizer_(std::move(optimizer)), options_(std::move(options)) {
  TORCH_CHECK(executor_ != nullptr, "[lacewing.", kLearner, "] an executor is needed");
  TORCH_CHECK(optimizer_.step && optimizer_.zero_grad, "[lacewing.", kLearner,
              "] the optimizer must have step and zero_grad");
  TORCH_CHECK(options_.update_every >= 0, "[lacewing.", kLearner, "] update_every must not be negative, not ",
              options_.update_every);
  if (!options_.readout) {
    options_.readout = [executor = executor_](const at::Tensor& h) { return executor->output(h); };
  }
  if (!options_.loss) {
    options_.loss = [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); };
  }
}

Learner::Step Learner::step(const at::Tensor& x, const std::optional<at::Tensor>& target) {
  const auto turn = executor_->hold();
  const at::Tensor output = options_.readout(executor_->step(x));
  if (!target) {
    return {output.detach(), {}};
  }
  const at::Tensor loss = options_.loss(output, *target);
  executor_->backward(loss);
  ++losses_;
  if (options_.update_every > 0 && losses_ % options_.update_every == 0) {
    update();
  }
  return {output.detach(), loss.detach()};
}

void Learner::update() {
  const auto turn = executor_->hold();
  executor_->flush();
  optimizer_.step();
  optimizer_.zero_grad();
}

void Learner::reset_state() { executor_->reset_state(); }

Values Learner::save() {
  const auto turn = executor_->hold();
  Values out = executor_->save();
  out["losses"] = at::scalar_tensor(losses_, at::kLong);
  return out;
}

void Learner::load(const Values& saved) {
  const auto turn = executor_->hold();
  const auto losses = restored(saved, "losses", at::scalar_tensor(0, at::kLong)).item<std::int64_t>();
  TORCH_CHECK(losses >= 0, "[lacewing.etp.load] losses must not be negative, not ", losses);
  executor_->load(saved);
  losses_ = losses;
}

}  // namespace lacewing::etp
