// The executor: runs the network, remembers what the traces have yet to absorb, and turns losses into gradients.
#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/etp/executor.h>

#include "autograd/node.h"
#include "etp/checks.h"
#include "etp/learning.h"

namespace lacewing::etp {
namespace {

constexpr const char* kExecutor = "etp.Executor";
constexpr const char* kStep = "etp.step";

/// Stands behind the state that a step returns and keeps the gradient that arrives there: a leaf would copy it into the
/// layout of the state first.
struct StateGradient : torch::autograd::Node {
  at::Tensor whole;                  ///< (B, O, S)
  std::vector<at::Tensor> by_state;  ///< (B, O) each, undefined where the loss does not reach

  explicit StateGradient(std::int64_t states) : by_state(static_cast<std::size_t>(states)) {}

  std::string name() const override { return "StateGradient"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const auto add = [](at::Tensor& sum, const at::Tensor& more) {
      sum = sum.defined() && more.defined() ? sum + more : more.defined() ? more : sum;
    };
    add(whole, grads[0]);
    for (std::size_t a = 0; a < by_state.size() && a + 1 < grads.size(); ++a) {
      add(by_state[a], grads[a + 1]);
    }
    return {};
  }

  /// What has arrived, batch last; and forgets it.
  Gradient take() {
    Gradient out;
    out.whole = whole.defined() ? whole.movedim(0, -1) : whole;
    if (std::any_of(by_state.begin(), by_state.end(), [](const at::Tensor& each) { return each.defined(); })) {
      for (at::Tensor& each : by_state) {
        out.by_state.push_back(each.defined() ? each.movedim(0, -1) : each);
        each = at::Tensor();
      }
    }
    whole = at::Tensor();
    return out;
  }
};

/// A step of the network that the traces have yet to absorb.
struct Taken {
  std::vector<at::Tensor> x;  ///< (I, B) of each part
  Jacobian jacobian;          ///< of a single step
  at::Tensor y;               ///< of a step inside a window, which is linearized when it is absorbed
  at::Tensor before;
};

}  // namespace

struct Executor::Impl {
  std::shared_ptr<Cell> cell;
  std::vector<Part> parts;
  ExecutorOptions options;
  Analysis analysis;
  std::unique_ptr<Learning> learning;
  std::int64_t neurons = 0;

  bool running = false;
  bool batched = true;
  at::Tensor state;  ///< (B, O, S), detached
  std::int64_t steps = 0;
  // Between step() or window() and what follows it:
  std::vector<Taken> taken;
  at::Tensor differentiated;  ///< the state whose gradient is contracted: h(t) of a step, h(start) of a window
  autograd::NodePtr<StateGradient> gradient;  ///< where it arrives; null where it is differentiated.grad()
  std::vector<at::Tensor> singles;            ///< the states of the last step one by one
  bool in_window = false;

  bool recurrent() const { return parts.size() > 1; }
  const at::Tensor& weight() const { return parts[0].connection.trainable.at("weight"); }

  void check_input(const at::Tensor& x, std::int64_t dims) const {
    TORCH_CHECK(x.dim() == dims || x.dim() == dims - 1, "[lacewing.", kStep, "] x must have ", dims - 1, " or ", dims,
                " dimensions, not shape ", shape_text(x.sizes()));
    check_same_dtype(kStep, "x", x, "the weight", weight());
    TORCH_CHECK(x.device() == weight().device(), "[lacewing.", kStep, "] x is on ", x.device(),
                ", but the weight is on ", weight().device());
  }

  /// Settles the batch at the first step; afterwards it must stay.
  void enter(const at::Tensor& x, bool has_batch) {
    const std::int64_t batch = x.size(-2);
    if (!running) {
      batched = has_batch;
      state = batch_first(at::zeros({neurons, cell->states(), batch}, x.options()));
      std::vector<at::Tensor> inputs{at::empty({x.size(-1), batch}, x.options())};
      if (recurrent()) {
        inputs.push_back(at::empty({neurons, batch}, x.options()));
      }
      learning->start(inputs, neurons, cell->states());
      running = true;
      return;
    }
    TORCH_CHECK(batched == has_batch && batch == state.size(0), "[lacewing.", kStep, "] x has ",
                has_batch ? "a batch of " + std::to_string(batch) : std::string("no batch"), ", but the state has ",
                batched ? "a batch of " + std::to_string(state.size(0)) : std::string("none"),
                ": reset_state() begins anew");
  }

  /// What the input adds to y: (..., I) -> (..., O).
  at::Tensor from_input(const at::Tensor& x) const {
    const Primitive& primitive = *parts[0].connection.primitive;
    at::Tensor y = primitive.forward(x, parts[0].connection.trainable);
    TORCH_CHECK(y.dim() == 2 && y.size(1) == neurons && y.size(0) == x.size(0), "[lacewing.", kStep, "] ",
                primitive.name(), " gives shape ", shape_text(y.sizes()), " for ", neurons, " neurons and x of shape ",
                shape_text(x.sizes()));
    return y;
  }

  at::Tensor with_recurrent(const at::Tensor& y, const at::Tensor& seen) const {
    return recurrent() ? y + parts[1].connection.primitive->forward(seen, parts[1].connection.trainable) : y;
  }

  std::vector<at::Tensor> inputs_of(const at::Tensor& x, const at::Tensor& seen) const {
    std::vector<at::Tensor> inputs{batch_last(x.detach())};
    if (recurrent()) {
      inputs.push_back(batch_last(seen.detach()));
    }
    return inputs;
  }

  /// The traces absorb what was taken; the last of a single step together with its contraction.
  void absorb(const Gradient& g) {
    for (Taken& step : taken) {
      if (step.y.defined()) {
        if (learning->factor() != nullptr) {
          cell->advance(step.y, step.before, *learning->factor(), learning->alpha());
        } else {
          const Linearization found = cell->linearize(step.y, step.before);
          step.jacobian = {batch_last(found.df), batch_last(found.decay)};
        }
      }
      learning->roll(step.x, step.jacobian, g);
      step = Taken{};
    }
    taken.clear();
  }

  void finish() {
    const c10::NoGradGuard no_grad;
    absorb({});
    forget();
  }

  void forget() {
    differentiated = at::Tensor();
    gradient = {};
    singles.clear();
    in_window = false;
  }

  void check_finite(const at::Tensor& h) const {
    if (!options.check_finite) {
      return;
    }
    const at::Tensor bad = at::isfinite(h.detach()).logical_not().nonzero();
    if (bad.size(0) > 0) {
      const at::Tensor at = bad[0].cpu();
      TORCH_CHECK(false, "[lacewing.", kStep, "] state ", at[2].item<std::int64_t>(), " of neuron ",
                  at[1].item<std::int64_t>(), " of sample ", at[0].item<std::int64_t>(), " is not finite after step ",
                  steps);
    }
  }

  at::Tensor shown(const at::Tensor& h) const { return batched ? h : h.squeeze(-3); }
};

Executor::Executor(std::shared_ptr<Cell> cell, Connection input, std::optional<Connection> recurrent,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>()) {
  TORCH_CHECK(cell != nullptr && input.primitive != nullptr, "[lacewing.", kExecutor,
              "] a cell and an input connection are needed");
  input.primitive->check(input.trainable);
  impl_->neurons = input.primitive->outputs(input.trainable);
  impl_->parts.push_back({"input", std::move(input)});
  if (recurrent) {
    TORCH_CHECK(recurrent->primitive != nullptr, "[lacewing.", kExecutor, "] the recurrent connection is empty");
    recurrent->primitive->check(recurrent->trainable);
    const std::int64_t outputs = recurrent->primitive->outputs(recurrent->trainable);
    TORCH_CHECK(outputs == impl_->neurons, "[lacewing.", kExecutor, "] the recurrent connection has ", outputs,
                " outputs, but there are ", impl_->neurons, " neurons");
    if (const SparsePattern* pattern = recurrent->primitive->pattern()) {
      TORCH_CHECK(pattern->rows() == impl_->neurons, "[lacewing.", kExecutor, "] the recurrent connection has ",
                  pattern->rows(), " inputs, but there are ", impl_->neurons, " neurons");
    }
    impl_->parts.push_back({"recurrent", std::move(*recurrent)});
  }
  for (const Part& part : impl_->parts) {
    for (const auto& [key, tensor] : part.connection.trainable) {
      TORCH_CHECK(tensor.is_leaf(), "[lacewing.", kExecutor, "] ", part.name, ".", key,
                  " must be a leaf: gradients are added to its .grad");
      check_same_dtype(kExecutor, (part.name + "." + key).c_str(), tensor, "input.weight", impl_->weight());
      tensor.requires_grad_();
    }
  }
  cell->check_neurons(impl_->neurons);
  impl_->analysis = analyze(*cell, impl_->neurons, impl_->recurrent(), options.algorithm,
                            impl_->weight().options().requires_grad(false));
  const bool mixes = impl_->analysis.reason.find("mixes positions") != std::string::npos;
  TORCH_CHECK(impl_->analysis.exactness != Exactness::refused && (!mixes || options.allow_approximate), "[lacewing.",
              kExecutor, "] the cell is refused: ", impl_->analysis.reason,
              mixes ? "; allow_approximate goes on all the same" : "");
  impl_->cell = std::move(cell);
  impl_->options = options;
  impl_->learning =
      options.algorithm == Algorithm::d_rtrl ? make_drtrl(impl_->parts) : make_pp(impl_->parts, options.alpha);
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

const Analysis& Executor::analysis() const { return impl_->analysis; }

at::Tensor Executor::step(const at::Tensor& x) {
  impl_->check_input(x, 2);
  const bool has_batch = x.dim() == 2;
  const at::Tensor input = has_batch ? x : x.unsqueeze(0);
  at::Tensor next;
  {
    const c10::NoGradGuard no_grad;
    const at::Tensor from_input = impl_->from_input(input);
    impl_->enter(input, has_batch);
    impl_->finish();
    const at::Tensor seen = impl_->recurrent() ? impl_->cell->seen(impl_->state) : at::Tensor();
    Taken step{impl_->inputs_of(input, seen), {}, {}, {}};
    const at::Tensor y = impl_->with_recurrent(from_input, seen);
    if (const at::Tensor* factor = impl_->learning->factor()) {
      next = impl_->cell->advance(y, impl_->state, *factor, impl_->learning->alpha());
      impl_->learning->roll(step.x, {}, {});
    } else {
      const Linearization found = impl_->cell->linearize(y, impl_->state);
      next = found.next;
      step.jacobian = {batch_last(found.df), batch_last(found.decay)};
      impl_->taken.push_back(std::move(step));
    }
  }
  ++impl_->steps;
  impl_->state = next.detach();
  impl_->check_finite(next);
  // A cell with parameters of its own keeps its graph for them.
  if (next.requires_grad()) {
    next.retain_grad();
  } else {
    next = next.detach();
    impl_->gradient = autograd::make_node<StateGradient>(impl_->cell->states());
    autograd::set_history(next, impl_->gradient);
    for (std::int64_t a = 0; a < impl_->cell->states(); ++a) {
      at::Tensor single = impl_->state.select(-1, a).detach();
      autograd::set_history(single, impl_->gradient);
      impl_->singles.push_back(single);
    }
  }
  impl_->differentiated = next;
  return impl_->shown(next);
}

at::Tensor Executor::window(const at::Tensor& x) {
  impl_->check_input(x, 3);
  TORCH_CHECK(x.size(0) > 0, "[lacewing.", kStep, "] a window has at least one step");
  const bool has_batch = x.dim() == 3;
  const at::Tensor input = has_batch ? x : x.unsqueeze(1);
  const c10::AutoGradMode grad_mode(true);
  at::Tensor from_input = impl_->from_input(input.select(0, 0));
  {
    const c10::NoGradGuard no_grad;
    impl_->enter(input, has_batch);
    impl_->finish();
  }
  impl_->differentiated = impl_->state.detach().requires_grad_();
  impl_->in_window = true;
  at::Tensor h = impl_->differentiated;
  std::vector<at::Tensor> states;
  for (std::int64_t t = 0; t < input.size(0); ++t) {
    const at::Tensor now = input.select(0, t);
    from_input = t == 0 ? from_input : impl_->from_input(now);
    const at::Tensor seen = impl_->recurrent() ? impl_->cell->output(h) : at::Tensor();
    const at::Tensor y = impl_->with_recurrent(from_input, seen);
    impl_->taken.push_back({impl_->inputs_of(now, seen), {}, y.detach(), h.detach()});
    h = impl_->cell->forward(y, h);
    ++impl_->steps;
    impl_->check_finite(h);
    states.push_back(h);
  }
  impl_->state = h.detach();
  return impl_->shown(at::stack(states));
}

void Executor::backward(const at::Tensor& loss) {
  TORCH_CHECK(impl_->differentiated.defined(),
              "[lacewing.etp.backward] there is no step to learn from: call step() or window() first");
  TORCH_CHECK(loss.numel() == 1, "[lacewing.etp.backward] the loss must be a single number, not shape ",
              shape_text(loss.sizes()));
  TORCH_CHECK(loss.requires_grad(),
              "[lacewing.etp.backward] the loss does not depend on what the last step or window returned");
  at::Tensor& target = impl_->differentiated;
  torch::autograd::backward({loss});
  const c10::NoGradGuard no_grad;
  Gradient g;
  if (impl_->gradient) {
    g = impl_->gradient->take();
  } else if (target.grad().defined()) {
    g.whole = target.grad().movedim(0, -1);
    target.mutable_grad() = at::Tensor();
  }
  if (g.defined() && (impl_->in_window || impl_->taken.empty())) {
    // A window's start, or a second loss on the same step, or pp-prop: the traces stand already.
    impl_->learning->contract(g);
    g = Gradient{};
  }
  if (impl_->in_window) {
    impl_->finish();
    return;
  }
  impl_->absorb(g);
}

std::vector<at::Tensor> Executor::states() const {
  TORCH_CHECK(impl_->differentiated.defined() && !impl_->in_window,
              "[lacewing.etp.states] there is no step to show: call step() first");
  std::vector<at::Tensor> out;
  for (std::int64_t a = 0; a < impl_->cell->states(); ++a) {
    const at::Tensor single =
        impl_->singles.empty() ? impl_->differentiated.select(-1, a) : impl_->singles[static_cast<std::size_t>(a)];
    out.push_back(impl_->batched ? single : single.squeeze(0));
  }
  return out;
}

at::Tensor Executor::output(const at::Tensor& h) const { return impl_->cell->output(h); }

void Executor::reset_state() {
  impl_->taken.clear();
  impl_->forget();
  impl_->running = false;
  impl_->state = at::Tensor();
  impl_->steps = 0;
  const c10::NoGradGuard no_grad;
  impl_->learning->reset();
}

at::Tensor Executor::state() const { return impl_->state.defined() ? impl_->shown(impl_->state) : impl_->state; }

std::int64_t Executor::steps() const { return impl_->steps; }

std::int64_t Executor::trace_elements() const { return impl_->learning->elements(); }

Values Executor::traces() {
  if (!impl_->in_window) {
    const c10::NoGradGuard no_grad;
    impl_->absorb({});
  }
  Values out = impl_->learning->traces();
  if (!impl_->batched) {
    for (auto& [key, trace] : out) {
      trace = trace.dim() > 0 ? trace.squeeze(0) : trace;
    }
  }
  return out;
}

Values Executor::save() {
  impl_->finish();
  Values out;
  out["steps"] = at::scalar_tensor(impl_->steps, at::kLong);
  out["batched"] = at::scalar_tensor(impl_->batched, at::kBool);
  if (impl_->running) {
    out["state"] = impl_->state.clone();
    for (auto& [key, trace] : impl_->learning->traces()) {
      out["trace." + key] = trace;
    }
  }
  return out;
}

void Executor::load(const Values& saved) {
  const auto steps = saved.find("steps");
  TORCH_CHECK(steps != saved.end(), "[lacewing.etp.load] steps is missing: this was not made by save()");
  reset_state();
  const auto state = saved.find("state");
  if (state == saved.end()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const std::int64_t batch = state->second.dim() == 3 ? state->second.size(0) : 0;
  const at::TensorOptions options = impl_->weight().options().requires_grad(false);
  const at::Tensor current = at::empty({batch, impl_->neurons, impl_->cell->states()}, options);
  const at::Tensor from = restored(saved, "state", current);
  Values traces;
  std::int64_t inputs = 0;
  for (const auto& [key, tensor] : saved) {
    if (key.rfind("trace.", 0) == 0) {
      traces[key.substr(6)] = tensor;
      inputs = key == "trace.input.x" ? tensor.size(-1) : inputs;
    }
  }
  const auto batched = saved.find("batched");
  const bool has_batch = batched == saved.end() || batched->second.item<bool>();
  impl_->enter(at::empty({batch, inputs}, options), has_batch);
  impl_->learning->load(traces);
  impl_->state = batch_first(batch_last(from).clone());
  impl_->steps = steps->second.item<std::int64_t>();
}

}  // namespace lacewing::etp
