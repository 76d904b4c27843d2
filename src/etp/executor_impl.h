// The network behind an executor: its state, its steps, and what the traces have yet to absorb.
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lacewing/etp/executor.h>

#include "etp/cell_params.h"
#include "etp/checks.h"
#include "etp/fused.h"
#include "etp/learning.h"
#include "etp/rules.h"
#include "etp/state_gradient.h"

namespace lacewing::etp {

constexpr const char* kExecutor = "etp.Executor";
constexpr const char* kStep = "etp.step";

/// Steps that the traces absorb in one pass.
constexpr std::size_t kMostAtOnce = 8;

/// Under which a value is saved.
inline std::string value_name(const Part& part, const std::string& key) { return "value." + part.name + "." + key; }

struct Executor::Impl {
  std::shared_ptr<Cell> cell;
  std::vector<Part> parts;
  ExecutorOptions options;
  Analysis analysis;
  std::unique_ptr<Learning> learning;
  std::int64_t neurons = 0;
  bool own_paths = false;  ///< the recurrence leads from every neuron to itself alone: D takes it in
  bool rules_checked = false;
  std::recursive_mutex mutex;  ///< a function of the user's may ask the executor that called it

  bool running = false;
  bool cut = false;  ///< the last step was taken without gradients: the traces are zero
  bool batched = true;
  at::Tensor state;   ///< (B, O, S), detached
  at::Tensor spikes;  ///< (O, B): what spiking neurons show of it, where the kernel of the step wrote it
  std::int64_t steps = 0;
  std::int64_t last_batch = 0;
  std::uint32_t version = 0;  ///< of the state when the step returned it
  // The state goes to the caller, who may keep many of them, and to pending steps; nobody sees the rest, of which a
  // pending step has three.
  Buffers states_memory{3};
  Buffers inner_memory{3 * kMostAtOnce + 4};
  // Between step() or window() and what follows it:
  std::vector<Taken> taken;
  at::Tensor differentiated;  ///< the state whose gradient is contracted: h(t) of a step, h(start) of a window
  at::Tensor returned;        ///< h(t) as the caller has it
  autograd::NodePtr<StateGradient> gradient;               ///< where it arrives; null where it is differentiated.grad()
  std::vector<at::Tensor> singles;                         ///< the states of the last step one by one
  Past past = std::make_shared<std::atomic<bool>>(false);  ///< of all of these
  bool in_window = false;

  bool recurrent() const { return parts.size() > 1; }
  /// The weight of the input, or the first of its values where none has that name: all others have its dtype and
  /// device.
  const Values::value_type& named_weight() const {
    const Values& values = parts[0].connection.trainable;
    const auto found = values.find("weight");
    return found != values.end() ? *found : *values.begin();
  }
  const at::Tensor& weight() const { return named_weight().second; }

  void check_input(const at::Tensor& x, std::int64_t dims) const {
    TORCH_CHECK(x.defined() && x.layout() == at::kStrided, "[lacewing.", kStep, "] x must be a dense tensor");
    TORCH_CHECK(x.dim() == dims || x.dim() == dims - 1, "[lacewing.", kStep, "] x must have ", dims - 1, " or ", dims,
                " dimensions, not shape ", shape_text(x.sizes()));
    check_same_dtype(kStep, "x", x, "the weight", weight());
    TORCH_CHECK(x.device() == weight().device(), "[lacewing.", kStep, "] x is on ", x.device(),
                ", but the weight is on ", weight().device());
    const auto inputs = parts[0].connection.primitive->inputs(parts[0].connection.trainable);
    TORCH_CHECK(!inputs || x.size(-1) == *inputs, "[lacewing.", kStep, "] x of shape ", shape_text(x.sizes()),
                " must end with the ", inputs.value_or(0), " inputs of the connection");
    check_memory(kStep, "x", x);
    for (const Part& part : parts) {
      for (const auto& [key, tensor] : part.connection.trainable) {
        check_memory(kStep, (part.name + "." + key).c_str(), tensor);
      }
    }
  }

  /// Primitives of the user show only with an x whether the traces can follow them.
  void check_rules(const at::Tensor& x) {
    if (rules_checked) {
      return;
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Connection& connection = parts[i].connection;
      const std::int64_t inputs = i == 0 ? x.size(-1) : neurons;
      if (const auto found = analyze_rules(connection, inputs, neurons, cell->states(), options.algorithm,
                                           x.options().requires_grad(false))) {
        TORCH_CHECK(options.allow_approximate, "[lacewing.", kExecutor, "] the ", parts[i].name,
                    " connection is refused: ", found->reason, "; allow_approximate goes on all the same");
        analysis = *found;
      }
    }
    rules_checked = true;
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
  at::Tensor from_input(const at::Tensor& x) const { return from_input(x, parts[0].connection.trainable); }

  at::Tensor from_input(const at::Tensor& x, const Values& values) const {
    const Primitive& primitive = *parts[0].connection.primitive;
    at::Tensor y = primitive.forward(x, values);
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
    check_kept(intact());
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
    if (const at::Tensor* factor = learning->factor()) {
      advance_factor(step.y, step.before, *factor);
      return;
    }
    const Linearization found = linearized(step.y, step.before);
    step.jacobian = {batch_last(found.df), batch_last(found.decay)};
  }

  /// The step of the cell, with the recurrence where that leads from every neuron to itself alone.
  Linearization linearized(const at::Tensor& y, const at::Tensor& h) const {
    Linearization found = cell->linearize(y, h);
    if (own_paths) {
      const Connection& again = parts[1].connection;
      const at::Tensor ones = at::ones({h.size(0), neurons}, h.options());
      const at::Tensor own = own_path(*cell, *again.primitive, detached(again), h, ones);
      found.decay = found.decay + found.df.unsqueeze(-1) * own.unsqueeze(-2);
    }
    return found;
  }

  /// The new state; pp-prop's factor takes the step.
  at::Tensor advance_factor(const at::Tensor& y, const at::Tensor& h, const at::Tensor& factor) const {
    if (!own_paths) {
      return cell->advance(y, h, factor, learning->alpha());
    }
    const Linearization found = linearized(y, h);
    roll_factor(factor, found, learning->alpha());
    return found.next;
  }

  /// Before the next step or window: what a window took is absorbed, of steps as many as are due.
  void advance(std::size_t most) {
    if (in_window || taken.size() >= most) {
      absorb();
    }
    forget();
  }

  /// Before a step or window without gradients, across which none flows back: what the losses so far need is absorbed,
  /// and the traces are those of a state that depends on no value.
  void cut_history() {
    if (std::any_of(taken.begin(), taken.end(), [](const Taken& step) { return step.learns(); })) {
      absorb();
    }
    taken.clear();
    forget();
    if (!std::exchange(cut, true)) {
      learning->reset();
    }
  }

  void forget() {
    *past = true;
    past = std::make_shared<std::atomic<bool>>(false);
    differentiated = at::Tensor();
    returned = at::Tensor();
    gradient = {};
    singles.clear();
    in_window = false;
  }

  /// Whether gradients have arrived without backward(): they would be lost without a word.
  bool unclaimed() const {
    const bool waiting = gradient ? gradient->any() : differentiated.defined() && differentiated.grad().defined();
    const bool learns = std::any_of(parts.begin(), parts.end(), [](const Part& part) {
      const Values& values = part.connection.trainable;
      return std::any_of(values.begin(), values.end(), [](const auto& value) { return value.second.requires_grad(); });
    });
    return waiting && learns;
  }

  static void check_claimed(const char* op, bool lost) {
    TORCH_CHECK(!lost, "[lacewing.", op,
                "] a loss was differentiated by its own backward(), which leaves the weights out: call the executor's "
                "backward(loss), or detach the state first");
  }

  bool intact() const {
    return std::all_of(taken.begin(), taken.end(), [](const Taken& step) { return step.intact(); });
  }

  static void check_kept(bool intact) {
    TORCH_CHECK(intact, "[lacewing.", kStep,
                "] a state that step() returned was changed in place before the traces had absorbed the step after it");
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
  at::Tensor fused_step(const at::Tensor& x, bool learns) {
    const kernels::CellParams params = to_params(*cell->ready());
    const bool spiking = kernels::spikes(params);
    const at::TensorOptions options = x.options();
    FusedStep step;
    step.h = batch_last(state);
    step.x = {own(x)};
    if (recurrent()) {
      const at::Tensor shown = seen();
      step.x.push_back(spiking ? batch_last(shown) : own(shown));
    }
    step.betas = betas_of(*cell->ready(), step.h);
    step.next = states_memory.take(step.h.sizes(), options);
    spikes = at::Tensor();  // nobody but the step may need them now: their memory is used again
    if (spiking) {
      step.z = inner_memory.take({neurons, x.size(0)}, options);
    }
    const at::Tensor* const factor = learning->factor();
    if (factor != nullptr && learns) {
      step.ef = *factor;
      step.alpha = learning->alpha();
    } else if (learns && kernels::derivatives_need_input(params)) {
      step.y = inner_memory.take({neurons, x.size(0)}, options);
    }
    step_fused(*cell->ready(), parts, step);
    spikes = step.z;
    if (learns) {
      // What the caller does to the betas meanwhile is for later steps.
      const at::Tensor betas = step.betas.defined() && factor == nullptr ? step.betas.clone() : at::Tensor();
      take({step.x, {}, {}, {}, {}, {cell->ready(), betas, KeptState(step.h), step.y, {}, {}}});
    }
    return batch_first(step.next);
  }

  /// One step by the cell's own functions; y is what the input adds. `history`: the new state knows what x depends on.
  at::Tensor composed_step(const at::Tensor& x, const at::Tensor& y, bool history, bool learns) {
    const at::Tensor shown = recurrent() ? seen() : at::Tensor();
    if (!learns) {
      spikes = at::Tensor();
      return cell->forward(with_recurrent(y, shown), state);
    }
    Taken step{{own(x)}, {}, {}, {}, {}, {}};
    if (recurrent()) {
      step.x.push_back(own(shown));
    }
    spikes = at::Tensor();
    const at::Tensor sum = with_recurrent(y, shown);
    if (const at::Tensor* factor = learning->factor()) {
      at::Tensor next = advance_factor(sum, state, *factor);
      take(std::move(step));
      return history ? step_with_history(x, shown) : next;
    }
    const Linearization found = linearized(sum, state);
    step.jacobian = {batch_last(found.df), batch_last(found.decay)};
    take(std::move(step));
    return history ? step_with_history(x, shown) : found.next;
  }

  /// The step once more, by autograd, for what x depends on. The values are constants here: the traces see to them.
  at::Tensor step_with_history(const at::Tensor& x, const at::Tensor& shown) const {
    const c10::AutoGradMode grad_mode(true);
    at::Tensor y = from_input(x, detached(parts[0].connection));
    if (recurrent()) {
      y = y + parts[1].connection.primitive->forward(shown, detached(parts[1].connection));
    }
    return cell->forward(y, state);
  }

  /// Traces that need no gradient with the step absorb it at once.
  void take(Taken step) {
    if (learning->factor() != nullptr) {
      learning->roll(std::span<const Taken>(&step, 1));
    } else {
      taken.push_back(std::move(step));
    }
  }

  /// The gradient of the last step's spikes, where that is all that has arrived, kept with the pending step as it is.
  bool keep_spike_gradient() {
    if (!gradient || !gradient->only_spikes() || taken.empty() || !taken.back().fused.before.defined() ||
        taken.back().learns()) {
      return false;
    }
    CellStep& fused = taken.back().fused;
    fused.gz = gradient->take_spikes().movedim(0, -1);
    fused.after = KeptState(batch_last(state));
    return true;
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
    const at::Tensor through = gradient->take_spikes();
    g = gradient->take();
    if (through.defined()) {
      const at::Tensor found = state_gradient(through.movedim(0, -1));
      g.whole = g.whole.defined() ? g.whole + found : found;
    }
    return g;
  }

  /// (O, S, B), of the last state from that of its spikes, (O, B).
  at::Tensor state_gradient(const at::Tensor& gz) {
    const at::Tensor h = batch_last(state);
    at::Tensor found = inner_memory.take(h.sizes(), h.options());
    spike_gradient_fused(*cell->ready(), h, gz, found);
    return found;
  }

  /// Another loss on the last step, whose gradients add up.
  void add_loss(const at::Tensor& g) {
    Taken& step = taken.back();
    if (step.fused.gz.defined()) {
      step.g = state_gradient(step.fused.gz);
      step.fused.gz = at::Tensor();
    }
    step.g = step.g.defined() ? step.g + g : g;
  }

  void check_finite(const at::Tensor& h, std::int64_t step) const {
    if (!options.check_finite) {
      return;
    }
    const at::Tensor bad = at::isfinite(h.detach()).logical_not().nonzero();
    if (bad.size(0) > 0) {
      const at::Tensor at = bad[0].cpu();
      TORCH_CHECK(false, "[lacewing.", kStep, "] state ", at[2].item<std::int64_t>(), " of neuron ",
                  at[1].item<std::int64_t>(), " of sample ", at[0].item<std::int64_t>(), " is not finite after step ",
                  step);
    }
  }

  at::Tensor shown(const at::Tensor& h) const { return batched ? h : h.squeeze(-3); }

  /// What save() gave, after a reset.
  void restore(const Values& saved) {
    const c10::NoGradGuard no_grad;
    TORCH_CHECK(saved.count("steps") == 1, "[lacewing.etp.load] steps is missing: this was not made by save()");
    const auto count = restored(saved, "steps", at::scalar_tensor(0, at::kLong)).item<std::int64_t>();
    TORCH_CHECK(count >= 0, "[lacewing.etp.load] steps must not be negative, not ", count);
    const auto found = saved.find("state");
    if (found == saved.end()) {
      const auto trace = saved.lower_bound("trace.");
      TORCH_CHECK(count == 0 && (trace == saved.end() || trace->first.rfind("trace.", 0) != 0),
                  "[lacewing.etp.load] state is missing, though there were ", count, " steps");
      return take_values(restored_values(saved));
    }
    const std::int64_t batch = found->second.dim() > 0 ? found->second.size(0) : 0;
    const at::TensorOptions like = weight().options().requires_grad(false);
    const at::Tensor from = restored(saved, "state", at::empty({batch, neurons, cell->states()}, like));
    Values traces;
    for (const auto& [key, tensor] : saved) {
      if (key.rfind("trace.", 0) == 0) {
        traces[key.substr(6)] = tensor;
      }
    }
    // The inputs of a primitive that does not know them are those of the saved factor.
    const auto factor = traces.find("input.x");
    const std::int64_t given = factor != traces.end() && factor->second.dim() == 2 ? factor->second.size(1) : 0;
    const std::int64_t inputs = parts[0].connection.primitive->inputs(parts[0].connection.trainable).value_or(given);
    const bool has_batch = restored(saved, "batched", at::scalar_tensor(true, at::kBool)).item<bool>();
    TORCH_CHECK(has_batch || batch == 1, "[lacewing.etp.load] a state without a batch has one sample, not ", batch);
    const Values given_values = restored_values(saved);
    enter(at::empty({batch, inputs}, like), has_batch);
    learning->load(traces);
    state = batch_first(batch_last(from).clone());
    version = state._version();
    if (saved.count("spikes") == 1 && cell->ready() != nullptr && kernels::spikes(to_params(*cell->ready()))) {
      spikes = batch_last(restored(saved, "spikes", at::empty({batch, neurons}, like))).clone();
    }
    steps = count;
    take_values(given_values);
  }

  /// The saved values of the connections: none, where they were not saved.
  Values restored_values(const Values& saved) const {
    Values out;
    for (const Part& part : parts) {
      for (const auto& [key, tensor] : part.connection.trainable) {
        const std::string name = value_name(part, key);
        if (saved.count(name) == 1) {
          out[name] = restored(saved, name, tensor);
        }
      }
    }
    return out;
  }

  void take_values(const Values& given) {
    for (const Part& part : parts) {
      for (const auto& [key, tensor] : part.connection.trainable) {
        if (const auto found = given.find(value_name(part, key)); found != given.end()) {
          at::Tensor(tensor).copy_(found->second);
        }
      }
    }
  }
};

}  // namespace lacewing::etp
