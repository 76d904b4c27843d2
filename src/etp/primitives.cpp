// The primitives that ship: sparse, dense and elementwise, each with its rules.
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/etp/primitive.h>

#include "etp/checks.h"

namespace lacewing::etp {
namespace {

/// Broadcasts g over the states of a trace, where it has none of its own.
at::Tensor over_states(const at::Tensor& g, std::int64_t dim) { return g.dim() == dim ? g : g.unsqueeze(-1); }

const at::Tensor& value(const char* op, const Values& values, const char* name) {
  const auto found = values.find(name);
  TORCH_CHECK(found != values.end(), "[lacewing.", op, "] ", name, " is missing");
  return found->second;
}

class WithBias : public Primitive {
 public:
  explicit WithBias(bool has_bias) : has_bias_(has_bias) {}

  bool one_output_each() const override { return true; }

  void check(const Values& trainable) const override {
    const std::string op = "etp." + name();
    const at::Tensor& weight = value(op.c_str(), trainable, "weight");
    check_weight(op.c_str(), weight);
    for (const auto& [key, tensor] : trainable) {
      TORCH_CHECK(key == "weight" || (key == "bias" && has_bias_), "[lacewing.", op, "] ", key,
                  key == "bias" ? " is given, but none was declared" : " is not among its values: weight and bias");
      TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), "[lacewing.", op, "] ", key, " must be floating, not ",
                  dtype_text(tensor.scalar_type()));
    }
    if (has_bias_) {
      check_bias(op.c_str(), value(op.c_str(), trainable, "bias"), outputs(trainable), weight);
    }
  }

  Values yw_to_w(const at::Tensor& g, const Values& trace) const override {
    Values out{{"weight", weight_yw_to_w(g, value("etp.yw_to_w", trace, "weight"))}};
    if (has_bias_) {
      const at::Tensor& bias = value("etp.yw_to_w", trace, "bias");
      const at::Tensor factor = over_states(g, bias.dim());
      TORCH_CHECK(bias.sizes().slice(
                      0, static_cast<std::size_t>(g.dim() == bias.dim() ? bias.dim() : bias.dim() - 1)) == g.sizes(),
                  "[lacewing.etp.yw_to_w] g of shape ", shape_text(g.sizes()), " and a bias trace of shape ",
                  shape_text(bias.sizes()), " do not fit");
      check_same_dtype("etp.yw_to_w", "g", g, "the bias trace", bias);
      out["bias"] = factor * bias;
    } else {
      TORCH_CHECK(trace.find("bias") == trace.end(),
                  "[lacewing.etp.yw_to_w] a bias trace is given, but no bias was declared");
    }
    return out;
  }

  Values xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const override {
    if (x.dim() > 2 && x.dim() == g.dim() && x.sizes().slice(0, x.dim() - 1) == g.sizes().slice(0, x.dim() - 1)) {
      return xy_to_dw(x.flatten(0, -2), g.flatten(0, -2), trainable);
    }
    check(trainable);
    Values out{{"weight", weight_xy_to_dw(x, g, trainable)}};
    if (has_bias_) {
      out["bias"] = g.dim() == 2 ? g.sum(0) : g.clone();
    }
    return out;
  }

 protected:
  virtual void check_weight(const char* op, const at::Tensor& weight) const = 0;
  virtual at::Tensor weight_yw_to_w(const at::Tensor& g, const at::Tensor& trace) const = 0;
  virtual at::Tensor weight_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const = 0;
  at::Tensor biased(const at::Tensor& y, const Values& trainable) const {
    return has_bias_ ? y + trainable.at("bias") : y;
  }

  bool has_bias_;
};

class SparsePrimitive : public WithBias {
 public:
  SparsePrimitive(const SparsePattern& pattern, bool has_bias) : WithBias(has_bias), pattern_(pattern) {}

  std::string name() const override { return "sparse_mm"; }
  const SparsePattern* pattern() const override { return &pattern_; }
  std::int64_t outputs(const Values&) const override { return pattern_.cols(); }
  std::optional<std::int64_t> inputs(const Values&) const override { return pattern_.rows(); }
  std::optional<bool> by_position(const Values&) const override {
    return pattern_.rows() == pattern_.cols() && pattern_.row().equal(pattern_.col());
  }
  at::Tensor forward(const at::Tensor& x, const Values& trainable) const override {
    return biased(pattern_.matmul(x, value("etp.sparse_mm", trainable, "weight")), trainable);
  }
  Values each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    Values out{{"weight", x.index_select(-1, pattern_.row()) * g.index_select(-1, pattern_.col())}};
    if (has_bias_) {
      out["bias"] = g.clone();
    }
    return out;
  }

 protected:
  void check_weight(const char* op, const at::Tensor& weight) const override {
    check_shape(op, "weight", weight, {pattern_.nse()});
    check_device(op, "weight", weight, pattern_.device());
  }
  at::Tensor weight_yw_to_w(const at::Tensor& g, const at::Tensor& trace) const override {
    return pattern_.yw_to_w_transposed(g, trace);
  }
  at::Tensor weight_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    return pattern_.sampled_outer(x, g);
  }

 private:
  SparsePattern pattern_;
};

class DensePrimitive : public WithBias {
 public:
  using WithBias::WithBias;

  std::string name() const override { return "dense_mm"; }
  std::int64_t outputs(const Values& trainable) const override { return trainable.at("weight").size(1); }
  std::optional<std::int64_t> inputs(const Values& trainable) const override { return trainable.at("weight").size(0); }
  std::optional<bool> by_position(const Values& trainable) const override {
    return trainable.at("weight").size(0) == 1 && trainable.at("weight").size(1) == 1;
  }
  at::Tensor forward(const at::Tensor& x, const Values& trainable) const override {
    const at::Tensor& weight = value("etp.dense_mm", trainable, "weight");
    TORCH_CHECK(x.dim() >= 1 && x.size(-1) == weight.size(0), "[lacewing.etp.dense_mm] x of shape ",
                shape_text(x.sizes()), " must end with the ", weight.size(0), " inputs of the weight");
    check_same_dtype("etp.dense_mm", "x", x, "the weight", weight);
    return biased(at::matmul(x, weight), trainable);
  }
  Values each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    Values out{{"weight", x.unsqueeze(-1) * g.unsqueeze(-2)}};
    if (has_bias_) {
      out["bias"] = g.clone();
    }
    return out;
  }

 protected:
  void check_weight(const char* op, const at::Tensor& weight) const override {
    TORCH_CHECK(weight.dim() == 2, "[lacewing.", op, "] weight must have shape (I, O), not ",
                shape_text(weight.sizes()));
  }
  /// trace ([B, ]I, O[, S]), g ([B, ]O[, S]).
  at::Tensor weight_yw_to_w(const at::Tensor& g, const at::Tensor& trace) const override {
    for (const std::int64_t states : {0, 1}) {
      const std::int64_t batch = trace.dim() - 2 - states;
      if (batch < 0 || batch > 1 || (g.dim() != batch + 1 && g.dim() != batch + 1 + states)) {
        continue;
      }
      const at::Tensor factor = over_states(g, batch + 1 + states).unsqueeze(batch);
      if (factor.size(batch + 1) == trace.size(batch + 1) && (batch == 0 || g.size(0) == trace.size(0)) &&
          (g.dim() == batch + 1 || g.size(-1) == trace.size(-1))) {
        check_same_dtype("etp.yw_to_w", "g", g, "the trace", trace);
        return factor * trace;
      }
    }
    TORCH_CHECK(false, "[lacewing.etp.yw_to_w] g of shape ", shape_text(g.sizes()), " and a trace of shape ",
                shape_text(trace.sizes()), " do not fit: expected ([B, ]O[, S]) and ([B, ]I, O[, S])");
  }
  at::Tensor weight_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const override {
    const at::Tensor& weight = trainable.at("weight");
    TORCH_CHECK(x.dim() == g.dim() && (x.dim() == 1 || x.dim() == 2) && x.size(-1) == weight.size(0) &&
                    g.size(-1) == weight.size(1) && (x.dim() == 1 || x.size(0) == g.size(0)),
                "[lacewing.etp.xy_to_dw] x of shape ", shape_text(x.sizes()), " and g of shape ", shape_text(g.sizes()),
                " do not fit a weight of shape ", shape_text(weight.sizes()));
    return x.dim() == 2 ? at::matmul(x.t(), g) : at::outer(x, g);
  }
};

class ElementwisePrimitive : public WithBias {
 public:
  using WithBias::WithBias;

  std::string name() const override { return "elementwise"; }
  std::int64_t outputs(const Values& trainable) const override { return trainable.at("weight").size(0); }
  std::optional<std::int64_t> inputs(const Values& trainable) const override { return outputs(trainable); }
  std::optional<bool> by_position(const Values&) const override { return true; }
  at::Tensor forward(const at::Tensor& x, const Values& trainable) const override {
    const at::Tensor& weight = value("etp.elementwise", trainable, "weight");
    TORCH_CHECK(x.dim() >= 1 && x.size(-1) == weight.size(0), "[lacewing.etp.elementwise] x of shape ",
                shape_text(x.sizes()), " must end with the ", weight.size(0), " entries of the weight");
    return biased(x * weight, trainable);
  }
  Values each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    Values out{{"weight", x * g}};
    if (has_bias_) {
      out["bias"] = g.clone();
    }
    return out;
  }

 protected:
  void check_weight(const char* op, const at::Tensor& weight) const override {
    TORCH_CHECK(weight.dim() == 1, "[lacewing.", op, "] weight must have shape (O,), not ", shape_text(weight.sizes()));
  }
  at::Tensor weight_yw_to_w(const at::Tensor& g, const at::Tensor& trace) const override {
    const at::Tensor factor = over_states(g, trace.dim());
    TORCH_CHECK(g.sizes() == trace.sizes().slice(0, static_cast<std::size_t>(g.dim())),
                "[lacewing.etp.yw_to_w] g of shape ", shape_text(g.sizes()), " and a trace of shape ",
                shape_text(trace.sizes()), " do not fit");
    check_same_dtype("etp.yw_to_w", "g", g, "the trace", trace);
    return factor * trace;
  }
  at::Tensor weight_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    check_shape("etp.xy_to_dw", "g", g, x.sizes());
    return x.dim() == 2 ? (x * g).sum(0) : x * g;
  }
};

}  // namespace

Values Primitive::xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const {
  const c10::AutoGradMode grad_mode(true);
  Values leaves;
  torch::autograd::variable_list inputs;
  for (const auto& [key, tensor] : trainable) {
    inputs.push_back(leaves[key] = tensor.detach().requires_grad_());
  }
  const at::Tensor y = forward(x.detach(), leaves);
  check_shape("etp.xy_to_dw", "g", g, y.sizes());
  const auto found = torch::autograd::grad({y}, inputs, {g.detach()}, /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  std::size_t i = 0;
  for (auto& [key, tensor] : leaves) {
    tensor = found[i].defined() ? found[i] : at::zeros_like(inputs[i]);
    ++i;
  }
  return leaves;
}

Values Primitive::each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const {
  std::map<std::string, std::vector<at::Tensor>> parts;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (auto& [key, tensor] : xy_to_dw(x.slice(0, b, b + 1), g.slice(0, b, b + 1), trainable)) {
      parts[key].push_back(tensor);
    }
  }
  Values out;
  for (const auto& [key, tensor] : trainable) {
    at::DimVector sizes(tensor.sizes());
    sizes.insert(sizes.begin(), 0);
    out[key] = parts[key].empty() ? at::empty(sizes, tensor.options()) : at::stack(parts[key]);
  }
  return out;
}

Values Primitive::init_drtrl(const at::Tensor& x, const at::Tensor&, const Values& trainable,
                             std::int64_t states) const {
  Values out;
  for (const auto& [key, tensor] : trainable) {
    at::DimVector sizes(tensor.sizes());
    if (x.dim() >= 2) {
      sizes.insert(sizes.begin(), c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)));
    }
    sizes.push_back(states);
    out[key] = at::zeros(sizes, tensor.options().requires_grad(false));
  }
  return out;
}

at::Tensor Primitive::init_pp(const at::Tensor&, const at::Tensor& y, const Values&, std::int64_t states) const {
  at::DimVector sizes(y.sizes());
  sizes.push_back(states);
  return at::zeros(sizes, y.options().requires_grad(false));
}

std::shared_ptr<Primitive> sparse_primitive(const SparsePattern& pattern, bool has_bias) {
  return std::make_shared<SparsePrimitive>(pattern, has_bias);
}
std::shared_ptr<Primitive> dense_primitive(bool has_bias) { return std::make_shared<DensePrimitive>(has_bias); }
std::shared_ptr<Primitive> elementwise_primitive(bool has_bias) {
  return std::make_shared<ElementwisePrimitive>(has_bias);
}

}  // namespace lacewing::etp
