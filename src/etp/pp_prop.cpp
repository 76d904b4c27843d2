// pp-prop (ES-D-RTRL): a factor for the inputs and one for the outputs.
#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include "etp/checks.h"
#include "etp/fused.h"
#include "etp/learning.h"
#include "etp/rules.h"

namespace lacewing::etp {
namespace {

constexpr double kSmallest = 1e-8;

class PpProp : public Learning {
 public:
  PpProp(const std::vector<Part>& parts, double alpha) : parts_(parts), alpha_(alpha) {}

  void start(const std::vector<at::Tensor>& x, std::int64_t neurons, std::int64_t states) override {
    inputs_.clear();
    for (const at::Tensor& each : x) {
      inputs_.push_back(at::zeros_like(each));
    }
    const at::Tensor y = at::empty({x[0].size(1), neurons}, x[0].options());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Connection& connection = parts_[i].connection;
      const at::Tensor factor = connection.primitive->init_pp(batch_first(x[i]), y, connection.trainable, states);
      if (!connection.primitive->one_output_each()) {
        check_initial_factor(*connection.primitive, factor, y, states);
      }
      if (i == 0) {
        outputs_ = own(factor);  // of all parts
      }
    }
    absorbed_ = 0;
  }

  void reset() override {
    for (const at::Tensor& input : inputs_) {
      input.zero_();
    }
    if (outputs_.defined()) {
      outputs_.zero_();
    }
    absorbed_ = 0;
  }

  const at::Tensor* factor() const override { return &outputs_; }
  double alpha() const override { return alpha_; }

  /// The cell has updated the factor of the outputs already.
  void roll(std::span<const Taken> steps) override {
    for (const Taken& step : steps) {
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        at::add_out(inputs_[i], step.x[i], inputs_[i], alpha_);
      }
      ++absorbed_;
    }
  }

  void contract(const Gradient& g) override {
    if (absorbed_ == 0) {
      return;  // nothing lies before the first step
    }
    const double weight = 1 - std::pow(alpha_, static_cast<double>(absorbed_));
    // The input of a bias is the constant 1, whose trace is a geometric sum.
    const double factor = 1 / std::max(weight, kSmallest);
    const double bias_factor = weight / (1 - alpha_) * factor;
    if (runs_fused(parts_, outputs_)) {
      contract_fused(parts_, inputs_, outputs_, g, factor, bias_factor);
      return;
    }
    at::Tensor gy;
    for (std::int64_t a = 0; a < outputs_.size(1); ++a) {
      if (const at::Tensor each = g.state(a); each.defined()) {
        if (gy.defined()) {
          gy.addcmul_(outputs_.select(1, a), each);
        } else {
          gy = at::empty({outputs_.size(0), outputs_.size(2)}, outputs_.options());
          at::mul_out(gy, outputs_.select(1, a), each);
        }
      }
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Connection& connection = parts_[i].connection;
      const Values found =
          connection.primitive->xy_to_dw(batch_first(inputs_[i]), batch_first(gy), detached(connection));
      check_gradients(*connection.primitive, found, connection.trainable);
      for (const auto& [key, gradient] : found) {
        add_gradient(connection.trainable.at(key), gradient, key == "bias" ? bias_factor : factor);
      }
    }
  }

  Values traces() const override {
    Values out;
    if (!outputs_.defined()) {
      return out;
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      out[parts_[i].name + ".x"] = batch_first(inputs_[i].clone());
    }
    out["f"] = batch_first(outputs_.clone());
    out["absorbed"] = at::scalar_tensor(absorbed_, at::kLong);
    return out;
  }

  void load(const Values& saved) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const at::Tensor from = restored(saved, parts_[i].name + ".x", batch_first(inputs_[i]));
      inputs_[i].copy_(batch_last(from));
    }
    outputs_.copy_(batch_last(restored(saved, "f", batch_first(outputs_))));
    absorbed_ = restored(saved, "absorbed", at::scalar_tensor(0, at::kLong)).item<std::int64_t>();
  }

  std::int64_t elements() const override {
    std::int64_t total = outputs_.defined() ? outputs_.numel() : 0;
    for (const at::Tensor& input : inputs_) {
      total += input.numel();
    }
    return total;
  }

 private:
  std::vector<Part> parts_;
  double alpha_;
  std::vector<at::Tensor> inputs_;
  at::Tensor outputs_;
  std::int64_t absorbed_ = 0;
};

}  // namespace

void roll_factor(const at::Tensor& ef, const Linearization& step, double alpha) {
  const c10::NoGradGuard no_grad;
  const at::Tensor decayed = (batch_last(step.decay) * ef.unsqueeze(1)).sum(2);
  ef.copy_(alpha * decayed + (1 - alpha) * batch_last(step.df));
}

double alpha_of_rank(std::int64_t rank) {
  TORCH_CHECK(rank >= 1, "[lacewing.etp.Executor] a rank must be at least 1, not ", rank);
  return static_cast<double>(rank - 1) / static_cast<double>(rank + 1);
}

std::unique_ptr<Learning> make_pp(const std::vector<Part>& parts, double alpha) {
  TORCH_CHECK(alpha >= 0 && alpha < 1, "[lacewing.etp.Executor] alpha must be at least 0 and less than 1, not ", alpha);
  return std::make_unique<PpProp>(parts, alpha);
}

}  // namespace lacewing::etp
