// The module's objects as torch classes, which Python holds without binding code of its own.
#include <ATen/ops/scalar_tensor.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <lacewing/etp.h>

#include "etp/ops.h"

namespace lacewing::etp {
namespace {

c10::Dict<std::string, at::Tensor> to_dict(const Values& values) {
  c10::Dict<std::string, at::Tensor> out;
  for (const auto& [key, tensor] : values) {
    out.insert(key, tensor);
  }
  return out;
}

Values from_dict(const c10::Dict<std::string, at::Tensor>& values) {
  Values out;
  for (const auto& item : values) {
    out[item.key()] = item.value();
  }
  return out;
}

struct PatternObject : torch::CustomClassHolder {
  explicit PatternObject(SparsePattern p) : pattern(std::move(p)) {}
  PatternObject(const std::string& format, const at::Tensor& first, const at::Tensor& second, std::int64_t rows,
                std::int64_t cols)
      : pattern(format == "coo"   ? SparsePattern::coo(first, second, rows, cols)
                : format == "csr" ? SparsePattern::csr(first, second, rows, cols)
                                  : SparsePattern::csc(first, second, rows, cols)) {}
  SparsePattern pattern;
};

/// A primitive of Python's: its rules are functions under one number.
class CallbackPrimitive : public Primitive {
 public:
  CallbackPrimitive(std::int64_t id, std::string name, std::vector<std::string> keys, std::int64_t outputs)
      : id_(id), name_(std::move(name)), keys_(std::move(keys)), outputs_(outputs) {}

  std::string name() const override { return name_; }
  std::int64_t outputs(const Values&) const override { return outputs_; }
  void check(const Values& trainable) const override {
    TORCH_CHECK(trainable.size() == keys_.size(), "[lacewing.etp.", name_, "] it has ", keys_.size(),
                " trainable values, but ", trainable.size(), " are given");
    for (const std::string& key : keys_) {
      TORCH_CHECK(trainable.count(key) == 1, "[lacewing.etp.", name_, "] ", key, " is missing");
    }
  }
  at::Tensor forward(const at::Tensor& x, const Values& trainable) const override {
    return call_back(id_, "forward", with({x}, trainable)).at(0);
  }
  Values xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const override {
    return named("xy_to_dw", call_back(id_, "xy_to_dw", with({x, g}, trainable)));
  }
  Values each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const override {
    return named("each_xy_to_dw", call_back(id_, "each_xy_to_dw", with({x, g}, trainable)));
  }
  Values yw_to_w(const at::Tensor& g, const Values& trace) const override {
    return named("yw_to_w", call_back(id_, "yw_to_w", with({g}, trace)));
  }
  Values init_drtrl(const at::Tensor& x, const at::Tensor& y, const Values& trainable,
                    std::int64_t states) const override {
    return named("init_drtrl", call_back(id_, "init_drtrl", with({x, y, at::scalar_tensor(states)}, trainable)));
  }
  at::Tensor init_pp(const at::Tensor& x, const at::Tensor& y, const Values& trainable,
                     std::int64_t states) const override {
    return call_back(id_, "init_pp", with({x, y, at::scalar_tensor(states)}, trainable)).at(0);
  }

 private:
  std::vector<at::Tensor> with(std::vector<at::Tensor> first, const Values& values) const {
    for (const std::string& key : keys_) {
      first.push_back(values.at(key));
    }
    return first;
  }
  Values named(const char* rule, const std::vector<at::Tensor>& tensors) const {
    TORCH_CHECK(tensors.size() == keys_.size(), "[lacewing.etp.", name_, "] ", rule, " gives ", tensors.size(),
                " tensors for ", keys_.size(), " trainable values");
    Values out;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      out[keys_[i]] = tensors[i];
    }
    return out;
  }

  std::int64_t id_;
  std::string name_;
  std::vector<std::string> keys_;
  std::int64_t outputs_;
};

struct PrimitiveObject : torch::CustomClassHolder {
  explicit PrimitiveObject(std::shared_ptr<Primitive> p) : primitive(std::move(p)) {}
  std::shared_ptr<Primitive> primitive;
};

c10::intrusive_ptr<PrimitiveObject> make_primitive(const std::string& kind,
                                                   const std::optional<c10::intrusive_ptr<PatternObject>>& pattern,
                                                   bool has_bias) {
  if (kind == "sparse") {
    TORCH_CHECK(pattern.has_value(), "[lacewing.etp.sparse_mm] a sparse primitive needs a pattern");
    return c10::make_intrusive<PrimitiveObject>(sparse_primitive((*pattern)->pattern, has_bias));
  }
  return c10::make_intrusive<PrimitiveObject>(kind == "dense" ? dense_primitive(has_bias)
                                                              : elementwise_primitive(has_bias));
}

struct CellObject : torch::CustomClassHolder {
  explicit CellObject(std::shared_ptr<Cell> c) : cell(std::move(c)) {}
  std::shared_ptr<Cell> cell;
};

/// Words: kind, surrogate, reset. Flags: reset_gradient, filtered. Numbers: in the order of CellOptions.
c10::intrusive_ptr<CellObject> make_ready(const std::vector<std::string>& words, const std::vector<std::int64_t>& flags,
                                          const std::vector<double>& numbers, const OptionalTensor& betas,
                                          const c10::Dict<std::string, at::Tensor>& by_neuron) {
  TORCH_CHECK(words.size() == 3 && flags.size() == 2 && numbers.size() == 11,
              "[lacewing.etp.Cell] a cell has 3 words, 2 flags and 11 numbers");
  CellOptions options;
  options.kind = words[0];
  options.surrogate = words[1];
  options.reset = words[2];
  options.reset_gradient = flags[0] != 0;
  options.filtered = flags[1] != 0;
  options.betas = betas;
  options.by_neuron = from_dict(by_neuron);
  std::size_t i = 0;
  for (double* const number :
       {&options.membrane, &options.adaptation, &options.filter, &options.threshold, &options.beta, &options.gain,
        &options.width, &options.gate_input, &options.gate_state, &options.gate_bias, &options.candidate_state}) {
    *number = numbers[i++];
  }
  return c10::make_intrusive<CellObject>(make_cell(options));
}

c10::intrusive_ptr<CellObject> make_callback(std::int64_t id, std::int64_t states) {
  return c10::make_intrusive<CellObject>(make_cell(
      states, [id](const at::Tensor& y, const at::Tensor& h) { return call_back(id, "forward", {y, h}).at(0); },
      [id](const at::Tensor& h) { return call_back(id, "output", {h}).at(0); }));
}

using NamedTensors = c10::Dict<std::string, at::Tensor>;

struct ExecutorObject : torch::CustomClassHolder {
  ExecutorObject(const c10::intrusive_ptr<CellObject>& cell, const c10::intrusive_ptr<PrimitiveObject>& input,
                 const NamedTensors& input_values, const std::optional<c10::intrusive_ptr<PrimitiveObject>>& recurrent,
                 const NamedTensors& recurrent_values, const std::vector<std::string>& input_frozen,
                 const std::vector<std::string>& recurrent_frozen, const std::string& algorithm, double alpha,
                 bool allow_approximate, bool check_finite, std::int64_t absorb_every)
      : executor(std::make_shared<Executor>(
            cell->cell,
            Connection{input->primitive, from_dict(input_values), {input_frozen.begin(), input_frozen.end()}},
            recurrent ? std::optional<Connection>({(*recurrent)->primitive,
                                                   from_dict(recurrent_values),
                                                   {recurrent_frozen.begin(), recurrent_frozen.end()}})
                      : std::nullopt,
            ExecutorOptions{algorithm == "d-rtrl" ? Algorithm::d_rtrl : Algorithm::pp_prop, alpha, allow_approximate,
                            check_finite, absorb_every})) {}
  std::shared_ptr<Executor> executor;
};

/// Readout, loss and optimizer are functions of Python's under one number.
struct LearnerObject : torch::CustomClassHolder {
  LearnerObject(const c10::intrusive_ptr<ExecutorObject>& executor, std::int64_t id, bool has_readout,
                std::int64_t update_every)
      : learner(executor->executor, {[id] { call_back(id, "step", {}); }, [id] { call_back(id, "zero_grad", {}); }},
                options(id, has_readout, update_every)) {}
  Learner learner;

 private:
  static LearnerOptions options(std::int64_t id, bool has_readout, std::int64_t update_every) {
    LearnerOptions out;
    if (has_readout) {
      out.readout = [id](const at::Tensor& h) { return call_back(id, "readout", {h}).at(0); };
    }
    out.loss = [id](const at::Tensor& output, const at::Tensor& target) {
      return call_back(id, "loss", {output, target}).at(0);
    };
    out.update_every = update_every;
    return out;
  }
};

std::tuple<std::string, std::string> described(const Analysis& analysis) {
  constexpr const char* names[] = {"exact", "approximate", "refused"};
  return {names[static_cast<std::size_t>(analysis.exactness)], analysis.reason};
}

c10::intrusive_ptr<PatternObject> held(SparsePattern pattern) {
  return c10::make_intrusive<PatternObject>(std::move(pattern));
}

}  // namespace
}  // namespace lacewing::etp

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  using namespace lacewing::etp;
  m.class_<PatternObject>("EtpPattern")
      .def(torch::init<const std::string&, const at::Tensor&, const at::Tensor&, std::int64_t, std::int64_t>())
      .def("row", [](const c10::intrusive_ptr<PatternObject>& self) { return self->pattern.row(); })
      .def("col", [](const c10::intrusive_ptr<PatternObject>& self) { return self->pattern.col(); })
      .def("shape",
           [](const c10::intrusive_ptr<PatternObject>& self) {
             return std::tuple<std::int64_t, std::int64_t>{self->pattern.rows(), self->pattern.cols()};
           })
      .def("format",
           [](const c10::intrusive_ptr<PatternObject>& self) {
             constexpr const char* names[] = {"coo", "csr", "csc"};
             return std::string(names[static_cast<std::size_t>(self->pattern.format())]);
           })
      .def("to", [](const c10::intrusive_ptr<PatternObject>& self,
                    const std::string& device) { return held(self->pattern.to(at::Device(device))); })
      .def("matmul", [](const c10::intrusive_ptr<PatternObject>& self, const at::Tensor& x,
                        const at::Tensor& values) { return self->pattern.matmul(x, values); })
      .def("check", [](const c10::intrusive_ptr<PatternObject>& self,
                       const at::Tensor& values) { self->pattern.with_data(values); })
      .def("plans",
           [](const c10::intrusive_ptr<PatternObject>& self) {
             std::vector<at::Tensor> arrays;
             std::vector<std::int64_t> sizes;
             for (const lacewing::InfoPlan& plan : self->pattern.forward_plans()) {
               arrays.push_back(plan.array);
               sizes.insert(sizes.end(), plan.sizes.begin(), plan.sizes.end());
             }
             return std::tuple<std::vector<at::Tensor>, std::vector<std::int64_t>>{arrays, sizes};
           })
      .def("to_dense", [](const c10::intrusive_ptr<PatternObject>& self,
                          const at::Tensor& values) { return self->pattern.with_data(values).to_dense(); })
      .def("sampled_outer", [](const c10::intrusive_ptr<PatternObject>& self, const at::Tensor& x,
                               const at::Tensor& g) { return self->pattern.sampled_outer(x, g); })
      .def("yw_to_w", [](const c10::intrusive_ptr<PatternObject>& self, const at::Tensor& y,
                         const at::Tensor& t) { return self->pattern.yw_to_w(y, t); })
      .def("yw_to_w_transposed", [](const c10::intrusive_ptr<PatternObject>& self, const at::Tensor& y,
                                    const at::Tensor& t) { return self->pattern.yw_to_w_transposed(y, t); });
  m.class_<PrimitiveObject>("EtpPrimitive")
      .def(torch::init([](const std::string& kind, const std::optional<c10::intrusive_ptr<PatternObject>>& pattern,
                          bool has_bias) { return make_primitive(kind, pattern, has_bias); }))
      .def_static(
          "callback",
          [](std::int64_t id, const std::string& name, const std::vector<std::string>& keys, std::int64_t outputs) {
            return c10::make_intrusive<PrimitiveObject>(std::make_shared<CallbackPrimitive>(id, name, keys, outputs));
          })
      .def("check", [](const c10::intrusive_ptr<PrimitiveObject>& self,
                       const NamedTensors& values) { self->primitive->check(from_dict(values)); })
      .def("forward", [](const c10::intrusive_ptr<PrimitiveObject>& self, const at::Tensor& x,
                         const NamedTensors& values) { return self->primitive->forward(x, from_dict(values)); })
      .def("xy_to_dw",
           [](const c10::intrusive_ptr<PrimitiveObject>& self, const at::Tensor& x, const at::Tensor& g,
              const NamedTensors& values) { return to_dict(self->primitive->xy_to_dw(x, g, from_dict(values))); })
      .def("yw_to_w", [](const c10::intrusive_ptr<PrimitiveObject>& self, const at::Tensor& g,
                         const NamedTensors& trace) { return to_dict(self->primitive->yw_to_w(g, from_dict(trace))); })
      .def("init_drtrl",
           [](const c10::intrusive_ptr<PrimitiveObject>& self, const at::Tensor& x, const at::Tensor& y,
              const NamedTensors& values,
              std::int64_t states) { return to_dict(self->primitive->init_drtrl(x, y, from_dict(values), states)); })
      .def("init_pp", [](const c10::intrusive_ptr<PrimitiveObject>& self, const at::Tensor& x, const at::Tensor& y,
                         const NamedTensors& values,
                         std::int64_t states) { return self->primitive->init_pp(x, y, from_dict(values), states); });
  m.class_<CellObject>("EtpCell")
      .def(torch::init(
          [](const std::vector<std::string>& words, const std::vector<std::int64_t>& flags,
             const std::vector<double>& numbers, const OptionalTensor& betas,
             const NamedTensors& by_neuron) { return make_ready(words, flags, numbers, betas, by_neuron); }))
      .def_static("callback", make_callback)
      .def("states", [](const c10::intrusive_ptr<CellObject>& self) { return self->cell->states(); })
      .def("forward", [](const c10::intrusive_ptr<CellObject>& self, const at::Tensor& y,
                         const at::Tensor& h) { return self->cell->forward(y, h); })
      .def("output",
           [](const c10::intrusive_ptr<CellObject>& self, const at::Tensor& h) { return self->cell->output(h); })
      .def("linearize",
           [](const c10::intrusive_ptr<CellObject>& self, const at::Tensor& y, const at::Tensor& h) {
             const Linearization found = self->cell->linearize(y, h);
             return std::tuple<at::Tensor, at::Tensor, at::Tensor>{found.next, found.df, found.decay};
           })
      .def("analyze", [](const c10::intrusive_ptr<CellObject>& self, std::int64_t neurons, bool recurrent,
                         const std::string& algorithm, const at::Tensor& like) {
        return described(analyze(*self->cell, neurons, recurrent,
                                 algorithm == "d-rtrl" ? Algorithm::d_rtrl : Algorithm::pp_prop,
                                 like.options().requires_grad(false)));
      });
  m.class_<ExecutorObject>("EtpExecutor")
      .def(torch::init<const c10::intrusive_ptr<CellObject>&, const c10::intrusive_ptr<PrimitiveObject>&,
                       const NamedTensors&, const std::optional<c10::intrusive_ptr<PrimitiveObject>>&,
                       const NamedTensors&, const std::vector<std::string>&, const std::vector<std::string>&,
                       const std::string&, double, bool, bool, std::int64_t>())
      .def("analysis",
           [](const c10::intrusive_ptr<ExecutorObject>& self) { return described(self->executor->analysis()); })
      .def("step",
           [](const c10::intrusive_ptr<ExecutorObject>& self, const at::Tensor& x) { return self->executor->step(x); })
      .def("window", [](const c10::intrusive_ptr<ExecutorObject>& self,
                        const at::Tensor& x) { return self->executor->window(x); })
      .def("backward", [](const c10::intrusive_ptr<ExecutorObject>& self,
                          const at::Tensor& loss) { self->executor->backward(loss); })
      .def("flush", [](const c10::intrusive_ptr<ExecutorObject>& self) { self->executor->flush(); })
      .def("output", [](const c10::intrusive_ptr<ExecutorObject>& self,
                        const at::Tensor& h) { return self->executor->output(h); })
      .def("reset_state", [](const c10::intrusive_ptr<ExecutorObject>& self) { self->executor->reset_state(); })
      .def("state",
           [](const c10::intrusive_ptr<ExecutorObject>& self) -> OptionalTensor {
             const at::Tensor state = self->executor->state();
             return state.defined() ? OptionalTensor(state) : std::nullopt;
           })
      .def("states", [](const c10::intrusive_ptr<ExecutorObject>& self) { return self->executor->states(); })
      .def("steps", [](const c10::intrusive_ptr<ExecutorObject>& self) { return self->executor->steps(); })
      .def("traces", [](const c10::intrusive_ptr<ExecutorObject>& self) { return to_dict(self->executor->traces()); })
      .def("trace_elements",
           [](const c10::intrusive_ptr<ExecutorObject>& self) { return self->executor->trace_elements(); })
      .def("save", [](const c10::intrusive_ptr<ExecutorObject>& self) { return to_dict(self->executor->save()); })
      .def("load", [](const c10::intrusive_ptr<ExecutorObject>& self, const NamedTensors& saved) {
        self->executor->load(from_dict(saved));
      });
  m.class_<LearnerObject>("EtpLearner")
      .def(torch::init<const c10::intrusive_ptr<ExecutorObject>&, std::int64_t, bool, std::int64_t>())
      .def("step",
           [](const c10::intrusive_ptr<LearnerObject>& self, const at::Tensor& x, const OptionalTensor& target) {
             const Learner::Step found = self->learner.step(x, target);
             return std::tuple<at::Tensor, OptionalTensor>{
                 found.output, found.loss.defined() ? OptionalTensor(found.loss) : std::nullopt};
           })
      .def("update", [](const c10::intrusive_ptr<LearnerObject>& self) { self->learner.update(); })
      .def("save", [](const c10::intrusive_ptr<LearnerObject>& self) { return to_dict(self->learner.save()); })
      .def("load", [](const c10::intrusive_ptr<LearnerObject>& self,
                      const NamedTensors& saved) { self->learner.load(from_dict(saved)); })
      .def("reset_state", [](const c10::intrusive_ptr<LearnerObject>& self) { self->learner.reset_state(); });
  m.def("etp_fixed_degree",
        [](std::int64_t inputs, std::int64_t outputs, std::int64_t degree, std::int64_t seed, bool fan_out, bool self) {
          return held(fixed_degree(inputs, outputs, degree, static_cast<std::uint64_t>(seed), fan_out, self));
        });
  m.def("etp_small_world", [](std::int64_t neurons, std::int64_t degree, double rewire, std::int64_t seed) {
    return held(small_world(neurons, degree, rewire, static_cast<std::uint64_t>(seed)));
  });
  m.def("etp_read_matrix_market", [](const std::string& path) {
    LoadedMatrix found = read_mtx(path);
    return std::tuple<c10::intrusive_ptr<PatternObject>, at::Tensor>{held(std::move(found.pattern)), found.values};
  });
  m.def("etp_alpha_of_rank", [](std::int64_t rank) { return alpha_of_rank(rank); });
}
