// Derivatives of sparse convolution of every order. With C(x, W) over a plan and G(x, g) the gradient of its weight:
//   C is linear in x and W: dC/dx is C over the reversed plan with W^T, dC/dW is G;
//   G is linear in x and g: dG/dx is C(g, V) over the reversed plan with V^T, dG/dg is C(x, V).
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "autograd/linear_op.h"
#include "conv/check.h"

namespace lacewing::conv {
namespace {

using autograd::Tensors;
OptionalTensor given(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

/// The gradient of the bias. torch cuts a sum with a single result by the number of threads: of one channel we take
/// two.
at::Tensor channel_sums(const at::Tensor& g) {
  return g.sym_size(1) == 1 ? g.expand_symint({g.sym_size(0), 2}).sum(0).narrow(0, 0, 1) : g.sum(0);
}

/// C, of which W's last two dims are exchanged where `transposed`.
class Conv : public autograd::LinearOp {
 public:
  enum Input : std::size_t { features, weight, bias, plan, count };

  Conv(c10::SymIntArrayRef sizes, std::int64_t groups, bool transposed)
      : sizes_(sizes.vec()), groups_(groups), transposed_(transposed) {}

  std::string name() const override { return "sparse_conv"; }

  at::Tensor call(const Tensors& in) const override {
    return conv_op().call(in[features], in[weight], given(in[bias]), in[plan], sizes_, transposed_);
  }

  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& wanted) const override {
    Tensors result(count);
    if (wanted[features]) {
      result[features] = conv_op().call(g, in[weight], std::nullopt, in[plan], reversed(sizes_), !transposed_);
    }
    if (wanted[weight]) {
      result[weight] = transposed_ ? weight_grad_op().call(g, in[features], in[plan], reversed(sizes_), groups_)
                                   : weight_grad_op().call(in[features], g, in[plan], sizes_, groups_);
    }
    if (wanted[bias]) {
      result[bias] = channel_sums(g);
    }
    return result;
  }

  bool reads(std::size_t i, std::size_t j) const override { return i != bias && i != j && j != bias; }

  at::Tensor tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                     const at::Tensor& output) const override {
    if (i == bias) {
      return tangent.unsqueeze(0).expand_as(output);
    }
    Tensors inputs = primals;
    inputs[i] = tangent;
    inputs[bias] = at::Tensor();
    return call(inputs);
  }

 private:
  std::vector<c10::SymInt> sizes_;
  std::int64_t groups_;
  bool transposed_;
};

/// G.
class WeightGrad : public autograd::LinearOp {
 public:
  enum Input : std::size_t { features, grad, plan, count };

  WeightGrad(c10::SymIntArrayRef sizes, std::int64_t groups) : sizes_(sizes.vec()), groups_(groups) {}

  std::string name() const override { return "sparse_conv_weight_grad"; }

  at::Tensor call(const Tensors& in) const override {
    return weight_grad_op().call(in[features], in[grad], in[plan], sizes_, groups_);
  }

  Tensors gradients(const Tensors& in, const at::Tensor& v, const std::vector<bool>& wanted) const override {
    Tensors result(count);
    if (wanted[features]) {
      result[features] = conv_op().call(in[grad], v, std::nullopt, in[plan], reversed(sizes_), true);
    }
    if (wanted[grad]) {
      result[grad] = conv_op().call(in[features], v, std::nullopt, in[plan], sizes_, false);
    }
    return result;
  }

 private:
  std::vector<c10::SymInt> sizes_;
  std::int64_t groups_;
};

at::Tensor conv(c10::DispatchKeySet keys, const at::Tensor& features, const at::Tensor& weight,
                const OptionalTensor& bias, const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  return autograd::differentiable(
      {features, weight, bias.value_or(at::Tensor()), plan},
      [&] {
        const ConvShape shape = check_conv(features, weight, bias, plan, sizes, transposed);
        return std::make_shared<Conv>(sizes, shape.groups.guard_int(__FILE__, __LINE__), transposed);
      },
      [&] {
        return conv_op().redispatch(keys & c10::after_autograd_keyset, features, weight, bias, plan, sizes, transposed);
      });
}

at::Tensor weight_grad(c10::DispatchKeySet keys, const at::Tensor& features, const at::Tensor& grad,
                       const at::Tensor& plan, c10::SymIntArrayRef sizes, std::int64_t groups) {
  return autograd::differentiable(
      {features, grad, plan},
      [&] {
        check_weight_grad(features, grad, plan, sizes, groups);
        return std::make_shared<WeightGrad>(sizes, groups);
      },
      [&] {
        return weight_grad_op().redispatch(keys & c10::after_autograd_keyset, features, grad, plan, sizes, groups);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("sparse_conv", conv);
  m.impl("sparse_conv_weight_grad", weight_grad);
}

}  // namespace lacewing::conv
