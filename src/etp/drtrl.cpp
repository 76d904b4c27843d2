// D-RTRL: one trace for each weight, state and sample.
#include <algorithm>
#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "etp/checks.h"
#include "etp/fused.h"
#include "etp/learning.h"
#include "etp/ops.h"
#include "etp/rules.h"

namespace lacewing::etp {
namespace {

/// The trace of one part.
class PartTrace {
 public:
  explicit PartTrace(const Part& part) : part_(part) {}
  virtual ~PartTrace() = default;

  virtual void start(const at::Tensor& x, std::int64_t neurons, std::int64_t states) = 0;
  /// Successive steps, each with its contraction; `part` is this one's place among the x of a step.
  virtual void roll(std::span<const Taken> steps, std::size_t part) = 0;
  virtual void contract(const at::Tensor& g) = 0;
  /// (B, ..., S), in the order of the values.
  virtual Values given_order() const = 0;
  virtual void set(const std::string& key, const at::Tensor& trace) = 0;

  Values stored;

 protected:
  const Values& trainable() const { return part_.connection.trainable; }
  const Primitive& primitive() const { return *part_.connection.primitive; }

  Part part_;
};

/// Sparse weights: (nse, S, B) with entries sorted by column, updated and contracted by the fused kernel in one pass.
/// With a shared decay the first state is left out there and kept once for each input, (I, B).
class FusedTrace : public PartTrace {
 public:
  FusedTrace(const Part& part, std::optional<double> shared_decay) : PartTrace(part), shared_decay_(shared_decay) {}

  void start(const at::Tensor& x, std::int64_t, std::int64_t states) override {
    for (const auto& [key, tensor] : trainable()) {
      renew(stored[key], {tensor.size(0), states - (shares(key) ? 1 : 0), x.size(1)});
    }
    if (shared_decay_) {
      renew(stored[kShared], {x.size(0), x.size(1)});
    }
  }

  void roll(std::span<const Taken> steps, std::size_t part) override {
    SharedRows shared = standing();
    for (const Taken& step : steps) {
      if (shared_decay_) {
        shared.u.push_back(shared.u.back().mul(*shared_decay_).add_(step.x[part]));
      }
    }
    if (std::any_of(steps.begin(), steps.end(), [](const Taken& step) { return step.fused.before.defined(); })) {
      const bool learns = std::any_of(steps.begin(), steps.end(), [](const Taken& step) { return step.learns(); });
      each(shared, learns,
           [&](const at::Tensor& trace, const SparsePattern::ByColumn* columns, const SharedRows& rows,
               const OptionalTensor& grad) { absorb_fused(trace, columns, rows, steps, part, grad); });
    } else {
      TraceSteps all;
      for (const Taken& step : steps) {
        if (!shared_decay_) {
          all.x.push_back(step.x[part]);
        }
        all.df.push_back(step.jacobian.df);
        all.decay.push_back(step.jacobian.decay);
        all.g.push_back(step.g);
      }
      run(all, shared);
    }
    if (shared_decay_) {
      stored[kShared] = shared.u.back();
    }
  }
  void contract(const at::Tensor& g) override { run({.x = {}, .df = {}, .decay = {}, .g = {g}}, standing()); }

  Values given_order() const override {
    const SparsePattern::ByColumn& columns = primitive().pattern()->by_column();
    Values out;
    for (auto [key, trace] : stored) {
      if (key == kShared) {
        continue;
      }
      if (shares(key)) {
        trace = at::cat({stored.at(kShared).index_select(0, columns.row).unsqueeze(1), trace}, 1);
      }
      const bool reorder = key == "weight" && columns.inverse.defined();
      out[key] = batch_first(reorder ? trace.index_select(0, columns.inverse) : trace.clone());
    }
    return out;
  }

  void set(const std::string& key, const at::Tensor& trace) override {
    const SparsePattern::ByColumn& columns = primitive().pattern()->by_column();
    const at::Tensor last = batch_last(trace);
    const bool reorder = key == "weight" && columns.order.defined();
    const at::Tensor sorted = reorder ? last.index_select(0, columns.order) : last;
    if (!shares(key)) {
      stored.at(key).copy_(sorted);
      return;
    }
    // An input without weights has no entry to tell its trace, and none that would ask for it.
    const at::Tensor first = sorted.select(1, 0);
    const at::Tensor u = at::zeros_like(stored.at(kShared)).index_copy(0, columns.row.to(at::kLong), first);
    const at::Tensor again = u.index_select(0, columns.row);
    TORCH_CHECK(again.eq(first).logical_or(again.isnan().logical_and(first.isnan())).all().item<bool>(),
                "[lacewing.etp.load] ", part_.name, ".", key,
                " has entries of one input that differ in the first state: it was not saved with this cell");
    stored.at(kShared).copy_(u);
    stored.at(key).copy_(sorted.slice(1, 1));
  }

 private:
  /// Where `stored` has the trace that the weights of an input share.
  static constexpr const char* kShared = "";

  bool shares(const std::string& key) const { return shared_decay_ && key == "weight"; }

  /// Zeros of these sizes, of the weight's dtype and on its device, or what is there already with them.
  void renew(at::Tensor& trace, at::IntArrayRef sizes) const {
    if (!trace.defined() || trace.sizes() != sizes) {
      trace = at::Tensor();  // freed before its successor comes
      trace = at::zeros(sizes, trainable().at("weight").options().requires_grad(false));
    }
  }

  /// As the trace stands.
  SharedRows standing() const {
    return shared_decay_ ? SharedRows{{stored.at(kShared)}, *shared_decay_} : SharedRows{};
  }

  void run(const TraceSteps& steps, const SharedRows& shared) {
    const bool learns = std::any_of(steps.g.begin(), steps.g.end(), [](const at::Tensor& g) { return g.defined(); });
    each(shared, learns,
         [&](const at::Tensor& trace, const SparsePattern::ByColumn* columns, const SharedRows& rows,
             const OptionalTensor& grad) { update_trace(trace, columns, steps, rows, grad); });
  }

  /// Calls update(trace, columns, shared, grad) for the trace of each value; without a grad where it learns nothing.
  template <typename Update>
  void each(const SharedRows& shared, bool learns, const Update& update) {
    for (const auto& [key, tensor] : trainable()) {
      const at::Tensor& trace = stored.at(key);
      const auto* const columns = key == "bias" ? nullptr : &primitive().pattern()->by_column();
      const SharedRows& rows = shares(key) ? shared : SharedRows{};
      if (!learns || !tensor.requires_grad()) {
        update(trace, columns, rows, std::nullopt);
        continue;
      }
      const GradientSink sink(tensor);
      update(trace, columns, rows, sink.sum());
      sink.arrive();
    }
  }

  std::optional<double> shared_decay_;
};

/// Any other primitive, by its rules: (B, ..., S).
class RuleTrace : public PartTrace {
 public:
  using PartTrace::PartTrace;

  void start(const at::Tensor& x, std::int64_t neurons, std::int64_t states) override {
    const at::Tensor y = at::empty({x.size(1), neurons}, x.options());
    stored = primitive().init_drtrl(batch_first(x), y, trainable(), states);
    if (primitive().one_output_each()) {
      return;
    }
    check_initial_traces(primitive(), stored, trainable(), x.size(1), states);
    for (auto& [key, trace] : stored) {
      trace = trace.clone(at::MemoryFormat::Contiguous);  // the rule may keep what it gave
    }
  }

  void roll(std::span<const Taken> steps, std::size_t part) override {
    for (const Taken& step : steps) {
      roll(step.x[part], step.jacobian);
      if (step.g.defined()) {
        contract(step.g);
      }
    }
  }

  void contract(const at::Tensor& g) override {
    const at::Tensor first = batch_first(g);
    for (std::int64_t a = 0; a < first.size(2); ++a) {
      for (const auto& [key, term] : yw_to_w(first.select(2, a), state(a))) {
        add_gradient(trainable().at(key), term.sum(0));
      }
    }
  }

  Values given_order() const override {
    Values out;
    for (const auto& [key, trace] : stored) {
      out[key] = trace.clone();
    }
    return out;
  }

  void set(const std::string& key, const at::Tensor& trace) override { stored.at(key).copy_(trace); }

 private:
  void roll(const at::Tensor& x, const Jacobian& jacobian) {
    const at::Tensor df = batch_first(jacobian.df);
    const at::Tensor decay = batch_first(jacobian.decay);
    const std::int64_t states = df.size(2);
    std::map<std::string, std::vector<at::Tensor>> next;
    for (std::int64_t a = 0; a < states; ++a) {
      Values sum = primitive().each_xy_to_dw(batch_first(x), df.select(2, a), trainable());
      check_each(primitive(), "xy_to_dw for each sample", sum, trainable(), df.size(0));
      for (std::int64_t c = 0; c < states; ++c) {
        for (const auto& [key, term] : yw_to_w(decay.select(2, a).select(2, c), state(c))) {
          sum.at(key) = sum.at(key) + term;
        }
      }
      for (const auto& [key, tensor] : sum) {
        next[key].push_back(tensor);
      }
    }
    for (auto& [key, trace] : stored) {
      trace = at::stack(next.at(key), -1);
    }
  }

  Values yw_to_w(const at::Tensor& g, const Values& trace) const {
    Values out = primitive().yw_to_w(g, trace);
    check_each(primitive(), "yw_to_w", out, trainable(), g.size(0));
    return out;
  }

  Values state(std::int64_t c) const {
    Values out;
    for (const auto& [key, trace] : stored) {
      out[key] = trace.select(-1, c);
    }
    return out;
  }
};

class DRtrl : public Learning {
 public:
  DRtrl(const std::vector<Part>& parts, std::optional<double> shared_decay) : parts_(parts) {
    for (const Part& part : parts) {
      if (const SparsePattern* const pattern = part.connection.primitive->pattern()) {
        const bool saves = pattern->rows() <= pattern->nse();  // else more inputs would share than there are weights
        traces_.push_back(std::make_unique<FusedTrace>(part, saves ? shared_decay : std::nullopt));
      } else {
        traces_.push_back(std::make_unique<RuleTrace>(part));
      }
    }
  }

  void start(const std::vector<at::Tensor>& x, std::int64_t neurons, std::int64_t states) override {
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      traces_[i]->start(x[i], neurons, states);
    }
  }

  void reset() override {
    for (const auto& trace : traces_) {
      for (const auto& [key, stored] : trace->stored) {
        stored.zero_();
      }
    }
  }

  void roll(std::span<const Taken> steps) override {
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      traces_[i]->roll(steps, i);
    }
  }

  void contract(const Gradient& gradient) override {
    const at::Tensor g = gradient.dense();
    for (const auto& trace : traces_) {
      trace->contract(g);
    }
  }

  Values traces() const override {
    Values out;
    for (std::size_t i = 0; i < traces_.size(); ++i) {
      for (auto& [key, trace] : traces_[i]->given_order()) {
        out[parts_[i].name + "." + key] = trace;
      }
    }
    return out;
  }

  void load(const Values& saved) override {
    for (const auto& [name, current] : traces()) {
      const at::Tensor trace = restored(saved, name, current);
      for (std::size_t i = 0; i < traces_.size(); ++i) {
        const std::string prefix = parts_[i].name + ".";
        if (name.rfind(prefix, 0) == 0) {
          traces_[i]->set(name.substr(prefix.size()), trace);
        }
      }
    }
  }

  std::int64_t elements() const override {
    std::int64_t total = 0;
    for (const auto& trace : traces_) {
      for (const auto& [key, stored] : trace->stored) {
        total += stored.numel();
      }
    }
    return total;
  }

 private:
  std::vector<Part> parts_;
  std::vector<std::unique_ptr<PartTrace>> traces_;
};

}  // namespace

Values detached(const Connection& connection) {
  Values out;
  for (const auto& [key, tensor] : connection.trainable) {
    out[key] = tensor.detach();
  }
  return out;
}

void add_gradient(const at::Tensor& leaf, const at::Tensor& gradient, double factor) {
  if (!leaf.requires_grad()) {
    return;
  }
  if (leaf.grad().defined()) {
    leaf.mutable_grad().add_(gradient, factor);
  } else {
    leaf.mutable_grad() = factor == 1 ? gradient : gradient * factor;
  }
}

GradientSink::GradientSink(const at::Tensor& leaf) : leaf_(leaf) {
  const bool wide = leaf.scalar_type() == at::kFloat || leaf.scalar_type() == at::kDouble;
  const at::Tensor& grad = leaf.grad();
  const bool usable = wide && leaf.requires_grad() && grad.defined() && grad.layout() == at::kStrided &&
                      grad.sizes() == leaf.sizes() && grad.device() == leaf.device() &&
                      grad.scalar_type() == leaf.scalar_type() && grad.is_contiguous() && !grad.requires_grad();
  sum_ = usable ? grad
                : at::zeros(leaf.sizes(),
                            leaf.options().requires_grad(false).dtype(wide ? leaf.scalar_type() : at::kFloat));
}

void GradientSink::arrive() const {
  if (sum_.is_same(leaf_.grad())) {
    sum_.unsafeGetTensorImpl()->bump_version();  // the kernel wrote behind autograd's back
  } else {
    add_gradient(leaf_, sum_.to(leaf_.scalar_type()));
  }
}

bool Gradient::defined() const {
  return whole.defined() ||
         std::any_of(by_state.begin(), by_state.end(), [](const at::Tensor& each) { return each.defined(); });
}

at::Tensor Gradient::dense() const {
  if (by_state.empty()) {
    return whole.contiguous();
  }
  std::vector<at::Tensor> states;
  at::Tensor like = whole.defined() ? whole.select(1, 0) : at::Tensor();
  for (const at::Tensor& each : by_state) {
    like = each.defined() ? each : like;
  }
  for (std::size_t a = 0; a < by_state.size(); ++a) {
    const at::Tensor found = state(static_cast<std::int64_t>(a));
    states.push_back(found.defined() ? found : at::zeros_like(like));
  }
  return at::stack(states, 1).contiguous();
}

at::Tensor Gradient::state(std::int64_t a) const {
  const at::Tensor own = by_state.empty() ? at::Tensor() : by_state[static_cast<std::size_t>(a)];
  if (!whole.defined()) {
    return own;
  }
  return own.defined() ? whole.select(1, a) + own : whole.select(1, a);
}

at::Tensor restored(const Values& saved, const std::string& name, const at::Tensor& current) {
  const auto found = saved.find(name);
  TORCH_CHECK(found != saved.end(), "[lacewing.etp.load] ", name, " is missing");
  check_shape("etp.load", name.c_str(), found->second, current.sizes());
  check_same_dtype("etp.load", name.c_str(), found->second, "this executor", current);
  return found->second.to(current.device());
}

std::unique_ptr<Learning> make_drtrl(const std::vector<Part>& parts, std::optional<double> shared_decay) {
  return std::make_unique<DRtrl>(parts, shared_decay);
}

}  // namespace lacewing::etp
