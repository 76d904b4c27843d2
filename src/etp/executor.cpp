// The executor: steps, windows, losses that become gradients, saving and loading.
#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/etp/executor.h>

#include "etp/executor_impl.h"

namespace lacewing::etp {
namespace {

/// States and traces outlive the call: none of them may become an inference tensor.
class OutsideInferenceMode {
 public:
  OutsideInferenceMode() {
    if (c10::InferenceMode::is_enabled()) {
      guard_.emplace(false);
    }
  }

 private:
  std::optional<c10::InferenceMode> guard_;
};

}  // namespace

Executor::Executor(std::shared_ptr<Cell> cell, Connection input, std::optional<Connection> recurrent,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>()) {
  TORCH_CHECK(cell != nullptr && input.primitive != nullptr, "[lacewing.", kExecutor,
              "] a cell and an input connection are needed");
  input.primitive->check(input.trainable);
  TORCH_CHECK(!input.trainable.empty(), "[lacewing.", kExecutor, "] the input connection has no values to train");
  impl_->neurons = input.primitive->outputs(input.trainable);
  impl_->parts.push_back({"input", std::move(input)});
  if (recurrent) {
    TORCH_CHECK(recurrent->primitive != nullptr, "[lacewing.", kExecutor, "] the recurrent connection is empty");
    recurrent->primitive->check(recurrent->trainable);
    const std::int64_t outputs = recurrent->primitive->outputs(recurrent->trainable);
    TORCH_CHECK(outputs == impl_->neurons, "[lacewing.", kExecutor, "] the recurrent connection has ", outputs,
                " outputs, but there are ", impl_->neurons, " neurons");
    const auto inputs = recurrent->primitive->inputs(recurrent->trainable);
    TORCH_CHECK(!inputs || *inputs == impl_->neurons, "[lacewing.", kExecutor, "] the recurrent connection has ",
                inputs.value_or(0), " inputs, but there are ", impl_->neurons, " neurons");
    impl_->parts.push_back({"recurrent", std::move(*recurrent)});
  }
  const std::string first = "input." + impl_->named_weight().first;
  for (const Part& part : impl_->parts) {
    for (const auto& [key, tensor] : part.connection.trainable) {
      TORCH_CHECK(tensor.is_leaf(), "[lacewing.", kExecutor, "] ", part.name, ".", key,
                  " must be a leaf: gradients are added to its .grad");
      TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), "[lacewing.", kExecutor, "] ", part.name, ".", key,
                  " must be floating, not ", dtype_text(tensor.scalar_type()));
      check_same_dtype(kExecutor, (part.name + "." + key).c_str(), tensor, first.c_str(), impl_->weight());
      tensor.requires_grad_(part.connection.frozen.count(key) == 0);
    }
    for (const std::string& key : part.connection.frozen) {
      TORCH_CHECK(part.connection.trainable.count(key) == 1, "[lacewing.", kExecutor, "] ", part.name, ".", key,
                  " is frozen, but there is no such value");
    }
  }
  cell->check_neurons(impl_->neurons);
  const at::TensorOptions like = impl_->weight().options().requires_grad(false);
  impl_->own_paths =
      impl_->recurrent() && leads_to_itself_alone(*cell, impl_->parts[1].connection, impl_->neurons, like);
  const Recurrence recurrence = impl_->own_paths     ? Recurrence::by_position
                                : impl_->recurrent() ? Recurrence::between_neurons
                                                     : Recurrence::none;
  const Finding found = analyze_network(*cell, impl_->neurons, recurrence, options.algorithm, like);
  impl_->analysis = found.analysis;
  TORCH_CHECK(found.analysis.exactness != Exactness::refused && (!found.needs_leave || options.allow_approximate),
              "[lacewing.", kExecutor, "] the cell is refused: ", found.analysis.reason,
              found.needs_leave ? "; allow_approximate goes on all the same" : "");
  TORCH_CHECK(options.absorb_every >= 1 && options.absorb_every <= static_cast<std::int64_t>(kMostAtOnce), "[lacewing.",
              kExecutor, "] absorb_every must be between 1 and ", kMostAtOnce, ", not ", options.absorb_every);
  impl_->cell = std::move(cell);
  impl_->options = options;
  impl_->states_memory = Buffers(static_cast<std::size_t>(options.absorb_every) + 2);
  const auto shared_decay = impl_->own_paths ? std::nullopt : impl_->cell->shared_decay();
  impl_->learning = options.algorithm == Algorithm::d_rtrl ? make_drtrl(impl_->parts, shared_decay)
                                                           : make_pp(impl_->parts, options.alpha);
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

Executor::Impl& Executor::impl() const {
  TORCH_CHECK(impl_ != nullptr, "[lacewing.", kExecutor, "] this executor was moved from");
  return *impl_;
}

std::unique_lock<std::recursive_mutex> Executor::hold() const { return std::unique_lock(impl().mutex); }

const Analysis& Executor::analysis() const { return impl().analysis; }

at::Tensor Executor::step(const at::Tensor& x) {
  const auto turn = hold();
  impl().check_input(x, 2);
  Impl::check_claimed(kStep, impl().unclaimed());
  const bool has_batch = x.dim() == 2;
  const at::Tensor input = has_batch ? x : x.unsqueeze(0);
  const bool learns = c10::GradMode::is_enabled();
  const bool history = learns && x.requires_grad();
  const bool fused = !history && !impl().own_paths && impl().cell->ready() != nullptr && runs_fused(impl().parts, x);
  const OutsideInferenceMode lasting;
  at::Tensor next;
  {
    const c10::NoGradGuard no_grad;
    at::Tensor y;
    if (fused) {
      impl().check_fused(input);
    } else {
      y = impl().from_input(input);
      impl().check_rules(input);
    }
    impl().enter(input, has_batch);
    impl().check_untouched();
    if (learns) {
      impl().advance(impl().most_pending());
      impl().cut = false;
    } else {
      impl().cut_history();
    }
    next = fused ? impl().fused_step(input, learns) : impl().composed_step(input, y, history, learns);
  }
  ++impl().steps;
  impl().state = next.detach();
  impl().version = impl().state._version();
  impl().check_finite(next, impl().steps);
  if (!learns) {
    impl().singles = impl().state.unbind(-1);
    return impl().shown(next.detach());
  }
  // A cell with parameters of its own keeps its graph for them.
  if (next.requires_grad()) {
    next.retain_grad();
    next.register_hook([past = impl().past](const at::Tensor&) { check_present(past); });
  } else {
    next = next.detach();
    impl().gradient = autograd::make_node<StateGradient>(impl().cell->states(), impl().past);
    autograd::set_history(next, impl().gradient);
    for (std::int64_t a = 0; a < impl().cell->states(); ++a) {
      at::Tensor single = impl().state.select(-1, a).detach();
      autograd::set_history(single, impl().gradient);
      impl().singles.push_back(single);
    }
  }
  impl().differentiated = next;
  impl().returned = impl().shown(next);
  return impl().returned;
}

at::Tensor Executor::window(const at::Tensor& x) {
  const auto turn = hold();
  impl().check_input(x, 3);
  Impl::check_claimed(kStep, impl().unclaimed());
  TORCH_CHECK(x.size(0) > 0, "[lacewing.", kStep, "] a window has at least one step");
  const bool has_batch = x.dim() == 3;
  const bool learns = c10::GradMode::is_enabled();
  const OutsideInferenceMode lasting;
  const at::Tensor known = x.is_inference() ? x.clone() : x;
  const at::Tensor input = has_batch ? known : known.unsqueeze(1);
  const c10::AutoGradMode grad_mode(learns);
  at::Tensor from_input = impl().from_input(input.select(0, 0));
  impl().check_rules(input);
  {
    const c10::NoGradGuard no_grad;
    impl().enter(input, has_batch);
    impl().check_untouched();
    if (learns) {
      impl().advance(1);
      impl().cut = false;
    } else {
      impl().cut_history();
    }
  }
  const at::Tensor start = impl().state.detach().requires_grad_(learns);
  if (learns) {
    start.register_hook([past = impl().past](const at::Tensor&) { check_present(past); });
  }
  at::Tensor h = start;
  std::vector<at::Tensor> states;
  std::vector<Taken> taken;
  for (std::int64_t t = 0; t < input.size(0); ++t) {
    const at::Tensor now = input.select(0, t);
    from_input = t == 0 ? from_input : impl().from_input(now);
    const at::Tensor seen = impl().recurrent() ? impl().cell->output(h) : at::Tensor();
    const at::Tensor y = impl().with_recurrent(from_input, seen);
    if (learns) {
      Taken step{{own(now)}, {}, {}, y.detach(), h.detach(), {}};
      if (impl().recurrent()) {
        step.x.push_back(batch_last(seen.detach()));
      }
      taken.push_back(std::move(step));
    }
    h = impl().cell->forward(y, h);
    impl().check_finite(h, impl().steps + t + 1);
    states.push_back(h);
  }
  // A cell that threw has left everything as it was before the window.
  impl().taken = std::move(taken);
  impl().steps += input.size(0);
  impl().differentiated = learns ? start : at::Tensor();
  impl().in_window = learns;
  impl().spikes = at::Tensor();
  impl().state = h.detach();
  impl().version = impl().state._version();
  return impl().shown(at::stack(states));
}

void Executor::backward(const at::Tensor& loss) {
  const auto turn = hold();
  TORCH_CHECK(impl().differentiated.defined(),
              "[lacewing.etp.backward] there is no step to learn from: call step() or window() first");
  TORCH_CHECK(loss.numel() == 1, "[lacewing.etp.backward] the loss must be a single number, not shape ",
              shape_text(loss.sizes()));
  TORCH_CHECK(loss.requires_grad(),
              "[lacewing.etp.backward] the loss does not depend on what the last step or window returned");
  Impl::check_kept(impl().intact());
  try {
    torch::autograd::backward({loss});
  } catch (...) {
    impl().arrived();  // half a gradient is none
    throw;
  }
  const OutsideInferenceMode lasting;
  const c10::NoGradGuard no_grad;
  const bool kept = impl().keep_spike_gradient();
  const Gradient g = impl().arrived();
  if (impl().in_window) {
    if (g.defined()) {
      impl().learning->contract(g);  // with the trace at the window's start
    }
    impl().advance(1);
    return;
  }
  TORCH_CHECK(kept || g.defined(), "[lacewing.etp.backward] the loss does not depend on what the last step returned");
  if (impl().taken.empty()) {
    impl().learning->contract(g);  // pp-prop, or a second loss on a step that was absorbed: the traces stand already
    return;
  }
  if (!kept) {
    impl().add_loss(g.dense());
  }
  if (impl().taken.size() >= impl().most_pending()) {
    impl().absorb();
  }
}

void Executor::flush() {
  const auto turn = hold();
  Impl::check_claimed("etp.flush", impl().unclaimed());
  const OutsideInferenceMode lasting;
  if (!impl().in_window) {
    impl().absorb();
  }
}

std::vector<at::Tensor> Executor::states() const {
  const auto turn = hold();
  TORCH_CHECK(!impl().singles.empty() || (impl().differentiated.defined() && !impl().in_window),
              "[lacewing.etp.states] there is no step to show: call step() first");
  std::vector<at::Tensor> out;
  for (std::int64_t a = 0; a < impl().cell->states(); ++a) {
    const at::Tensor single =
        impl().singles.empty() ? impl().differentiated.select(-1, a) : impl().singles[static_cast<std::size_t>(a)];
    out.push_back(impl().batched ? single : single.squeeze(0));
  }
  return out;
}

at::Tensor Executor::output(const at::Tensor& h) const {
  const auto turn = hold();
  // The spikes of the last step are known already, and so is the way of their gradient.
  if (impl().spikes.defined() && impl().gradient && impl().returned.defined() && h.is_same(impl().returned) &&
      c10::GradMode::is_enabled()) {
    at::Tensor z = batch_first(impl().spikes.clone()).detach();
    autograd::set_history(z, impl().gradient);
    return impl().batched ? z : z.squeeze(0);
  }
  // A cell takes a batch: a state without one is a batch of one.
  return h.dim() == 2 ? impl().cell->output(h.unsqueeze(0)).squeeze(0) : impl().cell->output(h);
}

void Executor::reset_state() {
  const auto turn = hold();
  const OutsideInferenceMode lasting;
  const bool lost = impl().unclaimed();
  const bool learns =
      std::any_of(impl().taken.begin(), impl().taken.end(), [](const Taken& step) { return step.learns(); });
  const bool intact = !learns || impl().intact();
  // Losses that were given have their gradients yet to come.
  if (learns && intact) {
    impl().absorb();
  }
  impl().taken.clear();
  impl().forget();
  impl().spikes = at::Tensor();
  impl().running = false;
  impl().cut = false;
  impl().state = at::Tensor();
  impl().steps = 0;
  {
    const c10::NoGradGuard no_grad;
    impl().learning->reset();
  }
  Impl::check_kept(intact);
  Impl::check_claimed("etp.reset_state", lost);
}

at::Tensor Executor::state() const {
  const auto turn = hold();
  return impl().state.defined() ? impl().shown(impl().state) : impl().state;
}

std::int64_t Executor::steps() const {
  const auto turn = hold();
  return impl().steps;
}

std::int64_t Executor::trace_elements() const {
  const auto turn = hold();
  return impl().learning->elements();
}

Values Executor::traces() {
  const auto turn = hold();
  flush();
  Values out = impl().learning->traces();
  if (!impl().batched) {
    for (auto& [key, trace] : out) {
      trace = trace.dim() > 0 ? trace.squeeze(0) : trace;
    }
  }
  return out;
}

Values Executor::save() {
  const auto turn = hold();
  Impl::check_claimed("etp.save", impl().unclaimed());
  const OutsideInferenceMode lasting;
  impl().advance(1);
  Values out;
  out["steps"] = at::scalar_tensor(impl().steps, at::kLong);
  out["batched"] = at::scalar_tensor(impl().batched, at::kBool);
  for (const Part& part : impl().parts) {
    for (const auto& [key, tensor] : part.connection.trainable) {
      out[value_name(part, key)] = tensor.detach().clone();
    }
  }
  if (impl().running) {
    out["state"] = impl().state.clone();
    if (impl().spikes.defined()) {
      // Not made again from the state: a kernel rounds once where torch's ops round twice.
      out["spikes"] = batch_first(impl().spikes).clone();
    }
    for (auto& [key, trace] : impl().learning->traces()) {
      out["trace." + key] = trace;
    }
  }
  return out;
}

void Executor::load(const Values& saved) {
  const auto turn = hold();
  const OutsideInferenceMode lasting;
  reset_state();
  try {
    impl().restore(saved);
  } catch (...) {
    reset_state();  // nothing half-loaded
    throw;
  }
}

}  // namespace lacewing::etp
