// The rules of a user's primitive, held against torch's derivatives of its forward() before they are used.
#include "etp/rules.h"

#include <algorithm>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/dispatch/torch.h>

#include "etp/probe.h"

namespace lacewing::etp {
namespace {

/// To rounding, beside the largest: sums inside a primitive may round, in another order than in its rules.
bool near(const at::Tensor& a, const at::Tensor& b, double roundings) {
  const at::Tensor wide = a.to(at::kDouble);
  const double room = std::min(roundings * precision(a.scalar_type()).epsilon, 0.125) *
                      (a.numel() > 0 ? wide.abs().max().item<double>() : 0);
  return (wide - b.to(at::kDouble)).abs().le(room).all().item<bool>();
}

/// `sizes` takes a value.
template <typename Sizes>
void check_rule(const Primitive& primitive, const char* rule, const Values& found, const Values& values,
                const Sizes& sizes) {
  const std::string op = "etp." + primitive.name();
  TORCH_CHECK(found.size() == values.size(), "[lacewing.", op, "] ", rule, " must give ", values.size(),
              " tensors, one for each value, not ", found.size());
  for (const auto& [key, value] : values) {
    const auto given = found.find(key);
    TORCH_CHECK(given != found.end() && given->second.defined(), "[lacewing.", op, "] ", rule, " gives no ", key);
    const at::Tensor& tensor = given->second;
    const at::DimVector wanted = sizes(value);
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(wanted) && tensor.scalar_type() == value.scalar_type() &&
                    tensor.device() == value.device(),
                "[lacewing.", op, "] ", rule, " must give ", key, " of shape ", shape_text(at::IntArrayRef(wanted)),
                ", ", dtype_text(value.scalar_type()), " on ", value.device(), ", not ", shape_text(tensor.sizes()),
                ", ", dtype_text(tensor.scalar_type()), " on ", tensor.device());
  }
}

/// The vector-Jacobian product of forward for the values, by torch.
Values vector_jacobian(const Primitive& primitive, const at::Tensor& x, const at::Tensor& g, const Values& values) {
  const std::string op = "etp." + primitive.name();
  const c10::AutoGradMode grad_mode(true);
  TORCH_CHECK(!primitive.forward(x, values).requires_grad(), "[lacewing.", op,
              "] forward uses a tensor that requires grad and is none of its values: steps would not train it");
  Values leaves = values;
  torch::autograd::variable_list inputs;
  for (auto& [key, tensor] : leaves) {
    tensor = tensor.detach().requires_grad_();
    inputs.push_back(tensor);
  }
  const at::Tensor y = primitive.forward(x, leaves);
  TORCH_CHECK(y.sizes() == g.sizes() && y.scalar_type() == g.scalar_type(), "[lacewing.", op,
              "] forward must give shape ", shape_text(g.sizes()), ", ", dtype_text(g.scalar_type()),
              " for x of shape ", shape_text(x.sizes()), ", not ", shape_text(y.sizes()), ", ",
              dtype_text(y.scalar_type()));
  TORCH_CHECK(y.requires_grad(), "[lacewing.", op,
              "] forward does not depend on its values in a way that autograd sees, so that xy_to_dw cannot be held "
              "against it");
  const auto found = torch::autograd::grad({y}, inputs, {g}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                           /*allow_unused=*/true);
  std::size_t i = 0;
  for (auto& [key, tensor] : leaves) {
    tensor = found[i].defined() ? found[i] : at::zeros_like(inputs[i]);
    ++i;
  }
  return leaves;
}

/// xy_to_dw at the values as they are and beside them: a value of zero may hide what is wrong. What is `random` gives
/// other numbers each time.
void check_products(const Connection& connection, const at::Tensor& x, const at::Tensor& g, bool each, bool random,
                    Draws& draw) {
  const Primitive& primitive = *connection.primitive;
  for (const double apart : {0.0, 0.1}) {
    const Values values = draw.values(connection, apart);
    const Values expected = vector_jacobian(primitive, x, g, values);
    Values found = primitive.xy_to_dw(x, g, values);
    check_gradients(primitive, found, values);
    Values summed;
    if (each) {
      summed = primitive.each_xy_to_dw(x, g, values);
      check_each(primitive, "xy_to_dw for each sample", summed, values, x.size(0));
    }
    for (const auto& [key, wanted] : expected) {
      if (random || !at::isfinite(wanted).all().item<bool>()) {
        continue;  // or moved out of the domain of forward
      }
      TORCH_CHECK(near(wanted, found.at(key), 1024), "[lacewing.etp.", primitive.name(),
                  "] xy_to_dw is not the vector-Jacobian product of forward: ", key, " differs by up to ",
                  (wanted - found.at(key)).abs().max().item<double>(), " at entries of up to ",
                  wanted.abs().max().item<double>());
      TORCH_CHECK(!each || near(wanted, summed.at(key).sum(0), 1024), "[lacewing.etp.", primitive.name(),
                  "] xy_to_dw of one sample after the other does not add up to that of the batch for ", key,
                  ": samples must not depend on each other");
    }
  }
}

void check_zeros(const Primitive& primitive, const char* rule, const std::string& key, const at::Tensor& found) {
  TORCH_CHECK(found.numel() == 0 || found.abs().max().item<double>() == 0, "[lacewing.etp.", primitive.name(), "] ",
              rule, " must give zeros, which are the traces of a sequence that has not begun, but ", key,
              " has entries of up to ", found.abs().max().item<double>());
}

}  // namespace

void check_gradients(const Primitive& primitive, const Values& found, const Values& values) {
  check_rule(primitive, "xy_to_dw", found, values,
             [](const at::Tensor& value) { return at::DimVector(value.sizes()); });
}

void check_each(const Primitive& primitive, const char* rule, const Values& found, const Values& values,
                std::int64_t batch) {
  check_rule(primitive, rule, found, values, [&](const at::Tensor& value) {
    at::DimVector wanted(value.sizes());
    wanted.insert(wanted.begin(), batch);
    return wanted;
  });
}

void check_initial_traces(const Primitive& primitive, const Values& found, const Values& values, std::int64_t batch,
                          std::int64_t states) {
  check_rule(primitive, "init_drtrl", found, values, [&](const at::Tensor& value) {
    at::DimVector wanted(value.sizes());
    wanted.insert(wanted.begin(), batch);
    wanted.push_back(states);
    return wanted;
  });
  for (const auto& [key, trace] : found) {
    check_zeros(primitive, "init_drtrl", key, trace);
  }
}

void check_initial_factor(const Primitive& primitive, const at::Tensor& found, const at::Tensor& y,
                          std::int64_t states) {
  at::DimVector sizes(y.sizes());
  sizes.push_back(states);
  TORCH_CHECK(found.defined() && found.sizes() == at::IntArrayRef(sizes) && found.scalar_type() == y.scalar_type() &&
                  found.device() == y.device(),
              "[lacewing.etp.", primitive.name(), "] init_pp must give shape ", shape_text(at::IntArrayRef(sizes)),
              ", ", dtype_text(y.scalar_type()), " on ", y.device(), ", not ",
              found.defined() ? shape_text(found.sizes()) + ", " + std::string(dtype_text(found.scalar_type())) +
                                    " on " + found.device().str()
                              : "nothing");
  check_zeros(primitive, "init_pp", "the factor", found);
}

std::optional<Analysis> analyze_rules(const Connection& connection, std::int64_t inputs, std::int64_t outputs,
                                      std::int64_t states, Algorithm algorithm, at::TensorOptions options) {
  const Primitive& primitive = *connection.primitive;
  if (primitive.one_output_each() || outputs == 0) {
    return std::nullopt;
  }
  Draws draw(options);
  const at::Tensor x = draw({kProbeBatch, inputs});
  const at::Tensor factors = draw.factors({kProbeBatch, outputs});
  const Values values = detached(connection);
  const bool random = !primitive.forward(x, values).equal(primitive.forward(x, values));
  const Analysis as_random{Exactness::approximate, "forward of " + primitive.name() +
                                                       " is random or keeps a state of its own: its derivatives are "
                                                       "not those of the step"};
  check_products(connection, x, factors, algorithm == Algorithm::d_rtrl, random, draw);
  if (algorithm == Algorithm::pp_prop) {
    check_initial_factor(primitive, primitive.init_pp(x, factors, values, states), factors, states);
    return random ? std::optional(as_random) : std::nullopt;
  }
  check_initial_traces(primitive, primitive.init_drtrl(x, factors, values, states), values, kProbeBatch, states);
  const Values wanted = primitive.each_xy_to_dw(x, factors, values);
  const Values found = primitive.yw_to_w(factors, primitive.each_xy_to_dw(x, at::ones_like(factors), values));
  check_each(primitive, "yw_to_w", found, values, kProbeBatch);
  if (random) {
    return as_random;
  }
  for (const auto& [key, expected] : wanted) {
    if (!near(expected, found.at(key), 32)) {
      return Analysis{Exactness::approximate, "by the rules of " + primitive.name() + ", " + key +
                                                  " acts on several outputs, which the trace of D-RTRL cannot tell "
                                                  "apart, or yw_to_w is not g[col p] * trace[p]"};
    }
  }
  return std::nullopt;
}

}  // namespace lacewing::etp
