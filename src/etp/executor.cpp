// The executor: runs the network, remembers what the traces have yet to absorb, and turns losses into gradients.
#include <algorithm>
#include <span>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/etp/executor.h>

#include "autograd/node.h"
#include "etp/cell_params.h"
#include "etp/checks.h"
#include "etp/fused.h"
#include "etp/learning.h"

namespace lacewing::etp {
namespace {

constexpr const char* kExecutor = "etp.Executor";
constexpr const char* kStep = "etp.step";

/// Stands behind what a step returns and keeps the gradients that arrive there: a leaf would copy them into the layout
/// of the state first. Its outputs are the state, each of the S states, and then the spikes as often as they were asked
/// for.
struct StateGradient : torch::autograd::Node {
  at::Tensor whole;                  ///< (B, O, S)
  std::vector<at::Tensor> by_state;  ///< (B, O) each, undefined where the loss does not reach
  at::Tensor spikes;                 ///< (B, O)

  explicit StateGradient(std::int64_t states) : by_state(static_cast<std::size_t>(states)) {}

  std::string name() const override { return "StateGradient"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const auto add = [](at::Tensor& sum, const at::Tensor& more) {
      sum = sum.defined() && more.defined() ? sum + more : more.defined() ? more : sum;
    };
    add(whole, grads[0]);
    for (std::size_t i = 1; i < grads.size(); ++i) {
      add(i <= by_state.size() ? by_state[i - 1] : spikes, grads[i]);
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

/// (B, I) as a contiguous (I, B) that shares no memory with it.
at::Tensor own(const at::Tensor& x) {
  const at::Tensor last = batch_last(x.detach());
  return last.is_alias_of(x) ? last.clone() : last;
}

/// Steps that the traces absorb in one pass.
constexpr std::size_t kMostAtOnce = 8;

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
  at::Tensor state;   ///< (B, O, S), detached
  at::Tensor spikes;  ///< (O, B): what spiking neurons show of it, where the kernel of the step wrote it
  std::int64_t steps = 0;
  std::int64_t last_batch = 0;
  std::uint32_t version = 0;  ///< of the state when the step returned it
  // The state goes to the caller, who may keep many of them; nobody sees the rest, of which a pending step has four.
  Buffers states_memory{3};
  Buffers inner_memory{4 * kMostAtOnce + 4};
  // Between step() or window() and what follows it:
  std::vector<Taken> taken;
  at::Tensor differentiated;  ///< the state whose gradient is contracted: h(t) of a step, h(start) of a window
  at::Tensor returned;        ///< h(t) as the caller has it
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
      if (std::exchange(last_batch, batch) != batch) {
        states_memory.clear();
        inner_memory.clear();
      }
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

  /// What other neurons see of the state: (B, O), without a gradient.
  at::Tensor seen() const {
    const c10::NoGradGuard no_grad;
    return spikes.defined() ? batch_first(spikes) : cell->output(state).detach();
  }

  /// The traces absorb what was taken.
  void absorb() {
    const c10::NoGradGuard no_grad;
    for (std::size_t first = 0; first < taken.size(); first += kMostAtOnce) {
      const std::span<Taken> now(taken.data() + first, std::min(kMostAtOnce, taken.size() - first));
      for (Taken& step : now) {
        linearize(step);
      }
      learning->roll(now);
      std::fill(now.begin(), now.end(), Taken{});
    }
    taken.clear();
  }

  /// A step inside a window has no derivatives yet.
  void linearize(Taken& step) const {
    if (!step.y.defined()) {
      return;
    }
    if (learning->factor() != nullptr) {
      cell->advance(step.y, step.before, *learning->factor(), learning->alpha());
      return;
    }
    const Linearization found = cell->linearize(step.y, step.before);
    step.jacobian = {batch_last(found.df), batch_last(found.decay)};
  }

  /// Before the next step or window: what a window took is absorbed, of steps as many as are due.
  void advance(std::size_t most) {
    if (in_window || taken.size() >= most) {
      absorb();
    }
    forget();
  }

  void forget() {
    differentiated = at::Tensor();
    returned = at::Tensor();
    gradient = {};
    singles.clear();
    in_window = false;
  }

  std::size_t most_pending() const { return static_cast<std::size_t>(options.absorb_every); }

  void check_fused(const at::Tensor& x) const {
    check_values(kStep, parts, x);
    parts[0].connection.primitive->pattern()->check_matmul(x, weight());
  }

  /// The caller holds the memory of the state as h.
  void check_untouched() const {
    TORCH_CHECK(!state.defined() || steps == 0 || state._version() == version, "[lacewing.", kStep,
                "] the state of step ", steps, " was changed in place after step() returned it");
  }

  /// One step of a ready cell over sparse connections.
  at::Tensor fused_step(const at::Tensor& x) {
    const bool spiking = kernels::spikes(to_params(*cell->ready()));
    const at::TensorOptions options = x.options();
    FusedStep step;
    step.h = batch_last(state);
    step.x = {own(x)};
    if (recurrent()) {
      const at::Tensor shown = seen();
      step.x.push_back(spiking ? batch_last(shown) : own(shown));
    }
    step.next = states_memory.take(step.h.sizes(), options);
    if (spiking) {
      step.z = inner_memory.take({neurons, x.size(0)}, options);
    }
    if (const at::Tensor* factor = learning->factor()) {
      step.ef = *factor;
      step.alpha = learning->alpha();
    } else {
      step.jacobian.df = inner_memory.take(step.h.sizes(), options);
      step.jacobian.decay = inner_memory.take({neurons, cell->states(), cell->states(), x.size(0)}, options);
    }
    step_fused(*cell->ready(), parts, step);
    spikes = step.z;
    take({step.x, step.jacobian, {}, {}, {}});
    return batch_first(step.next);
  }

  /// One step by the cell's own functions; y is what the input adds.
  at::Tensor composed_step(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor shown = recurrent() ? seen() : at::Tensor();
    Taken step{{own(x)}, {}, {}, {}, {}};
    if (recurrent()) {
      step.x.push_back(own(shown));
    }
    spikes = at::Tensor();
    const at::Tensor sum = with_recurrent(y, shown);
    if (const at::Tensor* factor = learning->factor()) {
      at::Tensor next = cell->advance(sum, state, *factor, learning->alpha());
      take(std::move(step));
      return next;
    }
    const Linearization found = cell->linearize(sum, state);
    step.jacobian = {batch_last(found.df), batch_last(found.decay)};
    take(std::move(step));
    return found.next;
  }

  /// Traces that need no gradient with the step absorb it at once.
  void take(Taken step) {
    if (learning->factor() != nullptr) {
      learning->roll(std::span<const Taken>(&step, 1));
    } else {
      taken.push_back(std::move(step));
    }
  }

  /// What has arrived at the last step.
  Gradient arrived() {
    Gradient g;
    if (!gradient) {
      if (differentiated.grad().defined()) {
        g.whole = differentiated.grad().movedim(0, -1);
        differentiated.mutable_grad() = at::Tensor();
      }
      return g;
    }
    const at::Tensor through = std::exchange(gradient->spikes, at::Tensor());
    g = gradient->take();
    if (through.defined()) {
      const at::Tensor h = batch_last(state);
      const at::Tensor found = inner_memory.take(h.sizes(), h.options());
      spike_gradient_fused(*cell->ready(), h, through.movedim(0, -1), found);
      g.whole = g.whole.defined() ? g.whole + found : found;
    }
    return g;
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
  TORCH_CHECK(options.absorb_every >= 1 && options.absorb_every <= static_cast<std::int64_t>(kMostAtOnce), "[lacewing.",
              kExecutor, "] absorb_every must be between 1 and ", kMostAtOnce, ", not ", options.absorb_every);
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
  const bool fused = impl_->cell->ready() != nullptr && runs_fused(impl_->parts, x);
  at::Tensor next;
  {
    const c10::NoGradGuard no_grad;
    at::Tensor y;
    if (fused) {
      impl_->check_fused(input);
    } else {
      y = impl_->from_input(input);
    }
    impl_->enter(input, has_batch);
    impl_->check_untouched();
    impl_->advance(impl_->most_pending());
    next = fused ? impl_->fused_step(input) : impl_->composed_step(input, y);
  }
  ++impl_->steps;
  impl_->state = next.detach();
  impl_->version = impl_->state._version();
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
  impl_->returned = impl_->shown(next);
  return impl_->returned;
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
    impl_->check_untouched();
    impl_->advance(1);
  }
  impl_->spikes = at::Tensor();
  impl_->differentiated = impl_->state.detach().requires_grad_();
  impl_->in_window = true;
  at::Tensor h = impl_->differentiated;
  std::vector<at::Tensor> states;
  for (std::int64_t t = 0; t < input.size(0); ++t) {
    const at::Tensor now = input.select(0, t);
    from_input = t == 0 ? from_input : impl_->from_input(now);
    const at::Tensor seen = impl_->recurrent() ? impl_->cell->output(h) : at::Tensor();
    const at::Tensor y = impl_->with_recurrent(from_input, seen);
    Taken step{{own(now)}, {}, {}, y.detach(), h.detach()};
    if (impl_->recurrent()) {
      step.x.push_back(batch_last(seen.detach()));
    }
    impl_->taken.push_back(std::move(step));
    h = impl_->cell->forward(y, h);
    ++impl_->steps;
    impl_->check_finite(h);
    states.push_back(h);
  }
  impl_->state = h.detach();
  impl_->version = impl_->state._version();
  return impl_->shown(at::stack(states));
}

void Executor::backward(const at::Tensor& loss) {
  TORCH_CHECK(impl_->differentiated.defined(),
              "[lacewing.etp.backward] there is no step to learn from: call step() or window() first");
  TORCH_CHECK(loss.numel() == 1, "[lacewing.etp.backward] the loss must be a single number, not shape ",
              shape_text(loss.sizes()));
  TORCH_CHECK(loss.requires_grad(),
              "[lacewing.etp.backward] the loss does not depend on what the last step or window returned");
  torch::autograd::backward({loss});
  const c10::NoGradGuard no_grad;
  const Gradient g = impl_->arrived();
  if (impl_->in_window) {
    if (g.defined()) {
      impl_->learning->contract(g);  // with the trace at the window's start
    }
    impl_->advance(1);
    return;
  }
  if (impl_->taken.empty()) {
    if (g.defined()) {
      impl_->learning->contract(g);  // pp-prop, or a second loss on a step that was absorbed: the traces stand already
    }
    return;
  }
  if (g.defined()) {
    at::Tensor& sum = impl_->taken.back().g;
    sum = sum.defined() ? sum + g.dense() : g.dense();
  }
  if (impl_->taken.size() >= impl_->most_pending()) {
    impl_->absorb();
  }
}

void Executor::flush() {
  if (!impl_->in_window) {
    impl_->absorb();
  }
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

at::Tensor Executor::output(const at::Tensor& h) const {
  // The spikes of the last step are known already, and so is the way of their gradient.
  if (impl_->spikes.defined() && impl_->gradient && impl_->returned.defined() && h.is_same(impl_->returned) &&
      c10::GradMode::is_enabled()) {
    at::Tensor z = batch_first(impl_->spikes.clone()).detach();
    autograd::set_history(z, impl_->gradient);
    return impl_->batched ? z : z.squeeze(0);
  }
  // A cell takes a batch: a state without one is a batch of one.
  return h.dim() == 2 ? impl_->cell->output(h.unsqueeze(0)).squeeze(0) : impl_->cell->output(h);
}

void Executor::reset_state() {
  // Losses that were given have their gradients yet to come.
  if (std::any_of(impl_->taken.begin(), impl_->taken.end(), [](const Taken& step) { return step.g.defined(); })) {
    impl_->absorb();
  }
  impl_->taken.clear();
  impl_->forget();
  impl_->spikes = at::Tensor();
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
  flush();
  Values out = impl_->learning->traces();
  if (!impl_->batched) {
    for (auto& [key, trace] : out) {
      trace = trace.dim() > 0 ? trace.squeeze(0) : trace;
    }
  }
  return out;
}

Values Executor::save() {
  impl_->advance(1);
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
  impl_->version = impl_->state._version();
  impl_->steps = steps->second.item<std::int64_t>();
}

}  // namespace lacewing::etp
