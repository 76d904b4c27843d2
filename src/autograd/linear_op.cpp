#include "autograd/linear_op.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <type_traits>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/real.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "autograd/node.h"

namespace lacewing::autograd {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

template <typename Op>
auto replaced(const Op& op, const Tensors& primals, std::size_t i, const at::Tensor& tangent) {
  Tensors inputs = primals;
  inputs[i] = tangent;
  return op.call(inputs);
}

/// A gradient in the dtype of its input: of a real one it is the real part.
at::Tensor cast(const at::Tensor& gradient, at::ScalarType type) {
  if (!gradient.defined() || gradient.scalar_type() == type) {
    return gradient;
  }
  const bool drop_imaginary = gradient.is_complex() && !c10::isComplexType(type);
  return (drop_imaginary ? at::real(gradient) : gradient).to(type);
}

Tensors gradients_of(const LinearOp& op, const Tensors& inputs, const variable_list& upstream,
                     const std::vector<bool>& wanted) {
  return op.gradients(inputs, upstream[0], wanted);
}

Tensors gradients_of(const LinearOps& op, const Tensors& inputs, const variable_list& upstream,
                     const std::vector<bool>& wanted) {
  return op.gradients(inputs, upstream, wanted);
}

template <typename Op>
class LinearNode : public torch::autograd::Node {
 public:
  LinearNode(std::shared_ptr<const Op> op, c10::ArrayRef<at::Tensor> inputs) : op_(std::move(op)) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    saved_.reserve(inputs.size());
    types_.reserve(inputs.size());
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      saved_.push_back(is_read(inputs, j) ? SavedVariable(inputs[j], /*is_output=*/false) : SavedVariable());
      types_.push_back(inputs[j].defined() ? inputs[j].scalar_type() : at::ScalarType::Undefined);
    }
  }

  std::string name() const override { return "LacewingBackward_" + op_->name(); }

  /// After the outputs have this node as their history, and their tangents.
  void save_outputs(c10::ArrayRef<at::Tensor> outputs) {
    if constexpr (std::is_same_v<Op, LinearOps>) {
      for (std::size_t k = 0; op_->reads_outputs() && k < outputs.size(); ++k) {
        saved_outputs_.emplace_back(outputs[k], /*is_output=*/true);
      }
    }
  }

  variable_list apply(variable_list&& upstream) override {
    const std::size_t count = types_.size();
    if (std::none_of(upstream.begin(), upstream.end(), [](const at::Tensor& g) { return g.defined(); })) {
      return variable_list(count);
    }
    std::vector<bool> wanted(count);
    for (std::size_t i = 0; i < count; ++i) {
      wanted[i] = task_should_compute_output(i);
    }
    Tensors gradients = gradients_of(*op_, unpacked(), upstream, wanted);
    TORCH_INTERNAL_ASSERT(gradients.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      gradients[i] = wanted[i] ? cast(gradients[i], types_[i]) : at::Tensor();
    }
    return gradients;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::vector<SavedVariable>* const all : {&saved_, &saved_outputs_}) {
      for (SavedVariable& saved : *all) {
        saved.reset_data();
      }
    }
  }

 private:
  bool is_read(c10::ArrayRef<at::Tensor> inputs, std::size_t j) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad() && op_->reads(i, j)) {
        return true;
      }
    }
    return false;
  }

  // Another thread may run backward through the same graph and release it.
  Tensors unpacked() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Tensors inputs;
    inputs.reserve(saved_.size() + saved_outputs_.size());
    for (const SavedVariable& saved : saved_) {
      inputs.push_back(saved.unpack());
    }
    for (const SavedVariable& saved : saved_outputs_) {
      inputs.push_back(saved.unpack(getptr()));
    }
    return inputs;
  }

  std::shared_ptr<const Op> op_;
  std::vector<SavedVariable> saved_, saved_outputs_;
  std::vector<at::ScalarType> types_;
};

void set_history_of(const at::Tensor& output, const NodePtr<torch::autograd::Node>& node) {
  torch::autograd::set_history(output, node);
}

// An output without history keeps its place among the node's upstream gradients.
void set_history_of(const Tensors& outputs, const NodePtr<torch::autograd::Node>& node) {
  for (const at::Tensor& output : outputs) {
    const bool differentiable = output.defined() && torch::autograd::isDifferentiableType(output.scalar_type());
    torch::autograd::set_history(differentiable ? output : at::Tensor(), node);
  }
}

void add(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined()) {
    sum = sum.defined() ? sum + term : term;
  }
}

void add(Tensors& sums, const Tensors& terms) {
  sums.resize(terms.size());
  for (std::size_t i = 0; i < terms.size(); ++i) {
    add(sums[i], terms[i]);
  }
}

void set_tangent(const at::Tensor& output, const at::Tensor& tangent) {
  if (tangent.defined()) {
    output._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
}

void set_tangent(const Tensors& outputs, const Tensors& tangents) {
  for (std::size_t i = 0; i < tangents.size(); ++i) {
    set_tangent(outputs[i], tangents[i]);
  }
}

bool has_tangent(c10::ArrayRef<at::Tensor> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return tangent(input).defined(); });
}

template <typename Op, typename Output>
Output with_derivatives(c10::ArrayRef<at::Tensor> inputs, c10::function_ref<std::shared_ptr<const Op>()> make,
                        c10::function_ref<Output()> compute) {
  const bool history = torch::autograd::compute_requires_grad(inputs);
  const bool forward_mode = has_tangent(inputs);
  std::shared_ptr<const Op> op;
  NodePtr<LinearNode<Op>> node;
  if (history || forward_mode) {
    op = make();
  }
  if (history) {
    node = make_node<LinearNode<Op>>(op, inputs);
  }
  Output output = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return compute();
  }();
  if (history) {
    set_history_of(output, node);
  }
  if (forward_mode) {
    Tensors tangents;
    Tensors primals;
    for (const at::Tensor& input : inputs) {
      tangents.push_back(tangent(input));
      primals.push_back(tangents.back().defined() ? input._fw_primal(/*level=*/0) : input);
    }
    Output sum;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (tangents[i].defined()) {
        add(sum, op->tangent(primals, i, tangents[i], output));
      }
    }
    set_tangent(output, sum);
  }
  if (history) {
    node->save_outputs(output);
  }
  return output;
}

}  // namespace

at::Tensor LinearOp::tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                             const at::Tensor& /*output*/) const {
  return replaced(*this, primals, i, tangent);
}

Tensors LinearOps::tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                           const Tensors& /*outputs*/) const {
  return replaced(*this, primals, i, tangent);
}

Tensors all_but(std::size_t i, c10::ArrayRef<std::int64_t> wanted,
                c10::function_ref<Tensors(c10::ArrayRef<std::int64_t>)> compute) {
  const auto is_other = [i](std::int64_t place) { return static_cast<std::size_t>(place) != i; };
  std::vector<std::int64_t> others;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(others), is_other);
  Tensors some = compute(others);
  Tensors all(wanted.size());
  std::size_t next = 0;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    if (is_other(wanted[k])) {
      all[k] = std::move(some[next++]);
    }
  }
  return all;
}

bool wants_derivatives(c10::ArrayRef<at::Tensor> inputs) {
  return torch::autograd::compute_requires_grad(inputs) || has_tangent(inputs);
}

at::Tensor differentiable(c10::ArrayRef<at::Tensor> inputs, c10::function_ref<std::shared_ptr<const LinearOp>()> make,
                          c10::function_ref<at::Tensor()> compute) {
  return with_derivatives<LinearOp, at::Tensor>(inputs, make, compute);
}

Tensors differentiable(c10::ArrayRef<at::Tensor> inputs, c10::function_ref<std::shared_ptr<const LinearOps>()> make,
                       c10::function_ref<Tensors()> compute) {
  return with_derivatives<LinearOps, Tensors>(inputs, make, compute);
}

}  // namespace lacewing::autograd
