// A product and its gradients as calls of registered ops. All of them are partial derivatives of one form, linear in
// each of its four arguments:  F(x, y, s, g) = sum over t of s[t] <x o y, g>.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "product/calls.h"

namespace lacewing::products {

/// Where the arguments of F stand; absent ones are undefined tensors.
enum Place : std::size_t { kInput1, kInput2, kScale, kGrad };
using Arguments = std::vector<at::Tensor>;

/// A call of a product (or of sparse scale) but for its tensors.
class ProductCall {
 public:
  /// Checks the plans of gradients, where they are there, against the forward plan. With `scaled`, those whose entries
  /// of scale have another order are left out.
  ProductCall(Kind kind, const at::Tensor& x, const at::Tensor& y, Plans plans, bool accumulated, bool scaled);

  Kind kind() const { return kind_; }
  const Plans& plans() const { return plans_; }
  bool accumulated() const { return accumulated_; }

  /// The same with all plans, those that are absent derived: once for all gradients.
  ProductCall completed() const;

  /// z, from all arguments but g.
  at::Tensor value(const Arguments& in) const;
  /// dF/dx, dF/dy or dF/ds of conjugates of what is read. One that is the same for every n comes without N. All plans
  /// must be there.
  at::Tensor gradient(Place of, const Arguments& in) const;
  /// Several of them, by the op that computes them together.
  std::vector<at::Tensor> gradients(const Arguments& in, at::IntArrayRef wanted) const;
  /// A gradient in the shape of its argument.
  at::Tensor expanded(Place of, const at::Tensor& gradient) const;

 private:
  /// Whether an operand has N, and how many.
  struct Batch {
    bool has = false;
    c10::SymInt size = 1;
  };

  bool unary() const { return kind_ == Kind::scale; }

  Kind kind_;
  Plans plans_;
  bool accumulated_;
  c10::SymInt rows1_ = 0;
  c10::SymInt rows2_ = 0;
  Batch batch1_, batch2_;
};

}  // namespace lacewing::products
