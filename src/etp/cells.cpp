// Cells: ready ones as compositions of torch's ops beside their fused kernel, and those of the user.
#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/backend.h>
#include <lacewing/etp/cell.h>

#include "etp/cell_params.h"
#include "etp/checks.h"
#include "etp/learning.h"
#include "etp/ops.h"
#include "kernels/trace.h"

namespace lacewing::etp {
namespace {

constexpr const char* kForward = "etp.Cell.forward";

void check_result(const at::Tensor& next, const at::Tensor& h) {
  TORCH_CHECK(next.sizes() == h.sizes() && next.scalar_type() == h.scalar_type() && next.device() == h.device(),
              "[lacewing.", kForward, "] a step from a state of shape ", shape_text(h.sizes()), ", ",
              dtype_text(h.scalar_type()), " must give the same, not ", shape_text(next.sizes()), ", ",
              dtype_text(next.scalar_type()));
}

/// Ready cells, from their options.
class ReadyCell : public Cell {
 public:
  explicit ReadyCell(const CellOptions& options) : options_(options), params_(to_params(options)) {
    TORCH_CHECK(!options.betas || at::isfinite(*options.betas).all().item<bool>(),
                "[lacewing.etp.Cell] betas must be finite");
    check_by_neuron(options);
  }

  std::int64_t states() const override { return kernels::states_of(params_); }
  bool position_wise() const override { return true; }
  const CellOptions* ready() const override { return learns() || !options_.by_neuron.empty() ? nullptr : &options_; }

  std::optional<double> shared_decay() const override {
    const bool one = options_.by_neuron.count("membrane") == 0;
    return one && kernels::linear_membrane(params_) ? std::optional<double>(params_.membrane) : std::nullopt;
  }

  void check_neurons(std::int64_t neurons) const override {
    const auto check = [neurons](const std::string& name, const at::Tensor& values) {
      TORCH_CHECK(values.dim() == 0 || values.size(0) == neurons, "[lacewing.etp.Cell] ", name, " has ", values.size(0),
                  " entries, but there are ", neurons, " neurons");
    };
    if (options_.betas) {
      check("betas", *options_.betas);
    }
    for (const auto& [name, values] : options_.by_neuron) {
      check(name, values);
    }
  }

  at::Tensor forward(const at::Tensor& y, const at::Tensor& h) const override {
    const at::Tensor v = h.select(-1, 0);
    switch (params_.kind) {
      case kernels::CellKind::leaky:
        return with("membrane", params_.membrane, y, [&](const auto& m) { return m * v + y; }).unsqueeze(-1);
      case kernels::CellKind::gated: {
        const at::Tensor from_y = with("gate_input", params_.gate_input, y, [&](const auto& w) { return w * y; });
        const at::Tensor from_v = with("gate_state", params_.gate_state, y, [&](const auto& w) { return w * v; });
        const at::Tensor z = at::sigmoid(
            with("gate_bias", params_.gate_bias, y, [&](const auto& bias) { return from_y + from_v + bias; }));
        const at::Tensor candidate =
            at::tanh(with("candidate_state", params_.candidate_state, y, [&](const auto& w) { return y + w * v; }));
        return (v + z * (candidate - v)).unsqueeze(-1);
      }
      case kernels::CellKind::lif:
      case kernels::CellKind::alif: break;
    }
    const at::Tensor z = output(h);
    const at::Tensor reset = params_.reset_gradient ? z : z.detach();
    at::Tensor kept = v;
    at::Tensor input = y;
    if (params_.reset == kernels::Reset::to_zero) {
      kept = v - v * reset;
    } else if (params_.reset == kernels::Reset::subtract) {
      input = with("threshold", params_.threshold, y, [&](const auto& t) { return y - t * reset; });
    }
    std::vector<at::Tensor> next{
        with("membrane", params_.membrane, y, [&](const auto& m) { return m * kept + input; })};
    if (params_.kind == kernels::CellKind::alif) {
      next.push_back(with("adaptation", params_.adaptation, y, [&](const auto& m) { return m * h.select(-1, 1) + z; }));
    }
    if (params_.filtered) {
      const at::Tensor fresh = output(at::stack(next, -1));
      next.push_back(with("filter", params_.filter, y,
                          [&](const auto& m) { return m * h.select(-1, states() - 1) + (1 - m) * fresh; }));
    }
    return at::stack(next, -1);
  }

  at::Tensor output(const at::Tensor& h) const override {
    if (params_.kind == kernels::CellKind::leaky || params_.kind == kernels::CellKind::gated) {
      return h.select(-1, 0);
    }
    // unbind, whose gradient is one stack (that of select is zeros and a copy for each state), and with the batch last,
    // as the state lies: so the gradient needs no copy on its way to the trace.
    const std::vector<at::Tensor> states = h.movedim(0, -1).unbind(-2);
    const auto threshold = options_.by_neuron.find("threshold");
    at::Tensor over = threshold == options_.by_neuron.end()
                          ? states[0] - params_.threshold
                          : states[0] - threshold->second.to(h.options()).unsqueeze(-1);
    if (params_.kind == kernels::CellKind::alif) {
      over = options_.betas ? over - options_.betas->to(h.options()).unsqueeze(-1) * states[1]
                            : at::sub(over, states[1], params_.beta);
    }
    return spike(over, options_.surrogate, params_.gain, params_.width).movedim(-1, 0);
  }

  Linearization linearize(const at::Tensor& y, const at::Tensor& h) const override {
    if (!fused(y)) {
      Linearization step = Cell::linearize(y, h);
      step.next = learns() ? step.next : step.next.detach();
      return step;
    }
    const auto [next, df, decay] = step_cell(options_, batch_last(y.detach()), batch_last(h.detach()));
    return {batch_first(next), batch_first(df), batch_first(decay)};
  }

  at::Tensor advance(const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef, double alpha) const override {
    if (!fused(y)) {
      const at::Tensor next = Cell::advance(y, h, ef, alpha);
      return learns() ? next : next.detach();
    }
    return batch_first(step_cell_factor(options_, batch_last(y.detach()), batch_last(h.detach()), ef, alpha));
  }

 private:
  /// Whether constants get a gradient, through forward().
  bool learns() const {
    return (options_.betas && options_.betas->requires_grad()) ||
           std::any_of(options_.by_neuron.begin(), options_.by_neuron.end(),
                       [](const auto& each) { return each.second.requires_grad(); });
  }

  /// The reference backend, half precision and constants that are tensors derive the Jacobian from forward().
  bool fused(const at::Tensor& y) const {
    return ready() != nullptr && backend() != Backend::reference &&
           (y.scalar_type() == at::kFloat || y.scalar_type() == at::kDouble);
  }

  /// f of a constant: of a number, or of the tensor that stands in its place, with the dtype and device of `like`.
  template <typename F>
  at::Tensor with(const char* name, double number, const at::Tensor& like, const F& f) const {
    const auto found = options_.by_neuron.find(name);
    return found == options_.by_neuron.end() ? f(number) : f(found->second.to(like.options()));
  }

  CellOptions options_;
  kernels::CellParams params_;
};

class FunctionCell : public Cell {
 public:
  FunctionCell(std::int64_t states, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> forward,
               std::function<at::Tensor(const at::Tensor&)> output)
      : states_(states), forward_(std::move(forward)), output_(std::move(output)) {
    TORCH_CHECK(states >= 1 && states <= kernels::kMaxStates, "[lacewing.etp.Cell] a cell has 1 to ",
                kernels::kMaxStates, " states, not ", states);
    TORCH_CHECK(forward_,
                "[lacewing.etp.Cell] a cell needs a function from y and h to the new state, not an empty one");
  }

  std::int64_t states() const override { return states_; }
  at::Tensor forward(const at::Tensor& y, const at::Tensor& h) const override {
    at::Tensor next = forward_(y, h);
    check_result(next, h);
    return next;
  }
  at::Tensor output(const at::Tensor& h) const override {
    if (!output_) {
      return Cell::output(h);
    }
    at::Tensor seen = output_(h);
    TORCH_CHECK(seen.sizes() == h.sizes().slice(0, 2), "[lacewing.etp.Cell.output] a state of shape ",
                shape_text(h.sizes()), " must give shape ", shape_text(h.sizes().slice(0, 2)), ", not ",
                shape_text(seen.sizes()));
    return seen;
  }

 private:
  std::int64_t states_;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> forward_;
  std::function<at::Tensor(const at::Tensor&)> output_;
};

at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient : at::zeros_like(like);
}

}  // namespace

at::Tensor Cell::output(const at::Tensor& h) const { return h.select(-1, 0); }

Linearization Cell::linearize(const at::Tensor& y, const at::Tensor& h) const {
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor input = y.detach().requires_grad_();
  const at::Tensor state = h.detach().requires_grad_();
  const at::Tensor next = forward(input, state);
  TORCH_CHECK(next.requires_grad(), "[lacewing.", kForward,
              "] the new state does not depend on y or h in a way that autograd sees");
  std::vector<at::Tensor> df;
  std::vector<at::Tensor> decay;
  for (std::int64_t a = 0; a < states(); ++a) {
    const at::Tensor one = next.select(-1, a);
    if (!one.requires_grad()) {
      df.push_back(at::zeros_like(input));
      decay.push_back(at::zeros_like(state));
      continue;
    }
    const auto found = torch::autograd::grad({one}, {input, state}, {at::ones_like(one)}, /*retain_graph=*/true,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    df.push_back(or_zeros(found[0], input));
    decay.push_back(or_zeros(found[1], state));
  }
  return {next, at::stack(df, -1).detach(), at::stack(decay, -2).detach()};
}

at::Tensor Cell::advance(const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef, double alpha) const {
  const Linearization step = linearize(y, h);
  roll_factor(ef, step, alpha);
  return step.next;
}

std::shared_ptr<Cell> make_cell(std::int64_t states,
                                std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> forward,
                                std::function<at::Tensor(const at::Tensor&)> output) {
  return std::make_shared<FunctionCell>(states, std::move(forward), std::move(output));
}

std::shared_ptr<Cell> make_cell(const CellOptions& options) { return std::make_shared<ReadyCell>(options); }

}  // namespace lacewing::etp
