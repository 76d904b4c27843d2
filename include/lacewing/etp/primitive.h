// Primitives: the trainable operations whose weights carry eligibility traces, and their four rules.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/etp/pattern.h>
#include <lacewing/export.h>

namespace lacewing::etp {

/// Tensors by name: "weight", and "bias" where there is one.
using Values = std::map<std::string, at::Tensor>;

/// y = f(x, trainable) with its rules. x is (I,) or (B, I), y (O,) or (B, O); executors give (B, I) alone. Derive from
/// this for a primitive of your own: forward, yw_to_w and the shapes are enough, the others follow. Before the first
/// step executors hold its rules against torch's derivatives of forward.
class LACEWING_API Primitive {
 public:
  virtual ~Primitive() = default;

  virtual std::string name() const = 0;
  virtual at::Tensor forward(const at::Tensor& x, const Values& trainable) const = 0;
  /// The vector-Jacobian product of forward for the trainable values, summed over the batch. Unless overridden,
  /// torch's.
  virtual Values xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const;
  /// out[p] = g[col p] * trace[p], without a reduction: g (B, O) or (B, O, S), traces (B, ...) or (B, ..., S).
  virtual Values yw_to_w(const at::Tensor& g, const Values& trace) const = 0;
  /// dw of each sample by itself: (B, ...). Unless overridden, xy_to_dw of one sample after the other, as batches of
  /// one.
  virtual Values each_xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values& trainable) const;
  /// Zeros of shape (B, ..., S), without B for a vector x (leading dims of x flattened); dtype and device of each
  /// value.
  virtual Values init_drtrl(const at::Tensor& x, const at::Tensor& y, const Values& trainable,
                            std::int64_t states) const;
  /// Zeros of shape (*y.shape, S), dtype of y.
  virtual at::Tensor init_pp(const at::Tensor& x, const at::Tensor& y, const Values& trainable,
                             std::int64_t states) const;
  /// The pattern, where the trace can be updated by the fused kernel; else null.
  virtual const SparsePattern* pattern() const { return nullptr; }
  /// Known to be exact with D-RTRL: every value acts on one output alone, and yw_to_w picks its g. Others are probed.
  virtual bool one_output_each() const { return false; }
  /// Whether each output comes from the input of its own place alone, for all values: as a recurrence such a primitive
  /// joins the diagonal that the traces follow. Probed at random values where it is not known.
  virtual std::optional<bool> by_position(const Values& /*trainable*/) const { return std::nullopt; }
  /// The number of outputs.
  virtual std::int64_t outputs(const Values& trainable) const = 0;
  /// The number of inputs, where the primitive knows it.
  virtual std::optional<std::int64_t> inputs(const Values& /*trainable*/) const { return std::nullopt; }
  /// Throws c10::Error with one sentence where the values do not fit.
  virtual void check(const Values& trainable) const = 0;
};

/// y = x @ sparse(weight) (+ bias); weight (nse,), bias (O,).
LACEWING_API std::shared_ptr<Primitive> sparse_primitive(const SparsePattern& pattern, bool has_bias);
/// y = x @ weight (+ bias); weight (I, O), bias (O,).
LACEWING_API std::shared_ptr<Primitive> dense_primitive(bool has_bias);
/// y = x * weight (+ bias); weight (O,), bias (O,).
LACEWING_API std::shared_ptr<Primitive> elementwise_primitive(bool has_bias);

/// A primitive with its values, leaves that executors let require grad: gradients are added to their .grad().
struct Connection {
  std::shared_ptr<Primitive> primitive;
  Values trainable;
  /// Names of values that stay as they are: executors switch their requires_grad off.
  std::set<std::string> frozen = {};
};

}  // namespace lacewing::etp
