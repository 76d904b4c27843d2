// Derivatives of every order and mode for an op that is linear in each of its inputs, written once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

namespace lacewing::autograd {

/// One tensor for each input or output; an undefined tensor is an absent one.
using Tensors = std::vector<at::Tensor>;

/// An op that is linear in each of its tensor inputs, but for those that stand alone in a term (a bias): everything
/// about one call but its tensors. Integer tensors that the gradients read (an index, a plan) are inputs too: so they
/// are saved, watched for changes and released as the others.
class LinearOp {
 public:
  virtual ~LinearOp() = default;

  /// The node is called "LacewingBackward_" + name().
  virtual std::string name() const = 0;

  /// The op itself through the dispatcher; what tangents are made of.
  virtual at::Tensor call(const Tensors& inputs) const = 0;

  /// One tensor for each input, defined where wanted; of any dtype (cast to the input's by the caller). Made of
  /// registered ops, so that they differentiate again. `inputs` holds what `reads` asks for, and is undefined
  /// elsewhere.
  virtual Tensors gradients(const Tensors& inputs, const at::Tensor& upstream,
                            const std::vector<bool>& wanted) const = 0;

  /// Whether the gradient of input i reads input j: an input is saved only for the gradients that read it.
  virtual bool reads(std::size_t i, std::size_t j) const { return i != j; }

  /// The output's tangent that comes of the tangent of input i. By default the op with that input replaced.
  virtual at::Tensor tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                             const at::Tensor& output) const;
};

/// As LinearOp, with several outputs: each is linear in each input, or the op says its tangents itself.
class LinearOps {
 public:
  virtual ~LinearOps() = default;
  virtual std::string name() const = 0;
  virtual Tensors call(const Tensors& inputs) const = 0;

  /// As LinearOp::gradients; an upstream gradient is undefined where the output has none, but never are all of them.
  /// Behind the inputs stand the outputs, where the op reads_outputs.
  virtual Tensors gradients(const Tensors& inputs, const Tensors& upstream, const std::vector<bool>& wanted) const = 0;

  virtual bool reads(std::size_t i, std::size_t j) const { return i != j; }

  /// Whether the gradients read what the op gave; then all outputs are floating point.
  virtual bool reads_outputs() const { return false; }

  /// The outputs' tangents that come of the tangent of input i; undefined for none.
  virtual Tensors tangent(const Tensors& primals, std::size_t i, const at::Tensor& tangent,
                          const Tensors& outputs) const;
};

/// Of an op that computes the gradients of some inputs, `wanted`: what `compute` gives for all of them but input i, and
/// nothing for that one, whose gradient does not read it.
Tensors all_but(std::size_t i, c10::ArrayRef<std::int64_t> wanted,
                c10::function_ref<Tensors(c10::ArrayRef<std::int64_t>)> compute);

/// Whether a gradient or a forward-mode tangent flows through any of the tensors.
bool wants_derivatives(c10::ArrayRef<at::Tensor> inputs);

/// For a kernel at the Autograd key: the value by `compute`, which runs below autograd, with its history and its
/// forward-mode tangent. `make` is called before it, and only where a gradient or a tangent is wanted: it may check its
/// arguments and throw.
at::Tensor differentiable(c10::ArrayRef<at::Tensor> inputs, c10::function_ref<std::shared_ptr<const LinearOp>()> make,
                          c10::function_ref<at::Tensor()> compute);

/// As above for several outputs. Those that are undefined or of integers have no history.
Tensors differentiable(c10::ArrayRef<at::Tensor> inputs, c10::function_ref<std::shared_ptr<const LinearOps>()> make,
                       c10::function_ref<Tensors()> compute);

}  // namespace lacewing::autograd
