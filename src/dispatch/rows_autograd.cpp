// Gradients of gather_rows and scatter_add_rows: each is linear in src and the other's transpose.
#include <string>
#include <string_view>
#include <utility>

#include <torch/library.h>

#include <lacewing/dispatch/rows.h>

#include "autograd/linear_op.h"
#include "dispatch/rows_ops.h"

namespace lacewing {
namespace {

using autograd::Tensors;

// The value has checked the index, or the caller vouches for it.
constexpr bool kUnchecked = false;

/// Of (src, index).
class GatherRows : public autograd::LinearOp {
 public:
  explicit GatherRows(c10::SymInt rows) : rows_(std::move(rows)) {}

  std::string name() const override { return "gather_rows"; }

  at::Tensor call(const Tensors& in) const override { return gather_rows(in[0], in[1], kUnchecked); }

  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& /*wanted*/) const override {
    return {scatter_add_rows(g, in[1], rows_, "deterministic", kUnchecked), at::Tensor()};
  }

 private:
  c10::SymInt rows_;
};

/// Of (src, index).
class ScatterAddRows : public autograd::LinearOp {
 public:
  ScatterAddRows(c10::SymInt rows, std::string_view mode) : rows_(std::move(rows)), mode_(mode) {}

  std::string name() const override { return "scatter_add_rows"; }

  at::Tensor call(const Tensors& in) const override { return scatter_add_rows(in[0], in[1], rows_, mode_, kUnchecked); }

  Tensors gradients(const Tensors& in, const at::Tensor& g, const std::vector<bool>& /*wanted*/) const override {
    return {gather_rows(g, in[1], kUnchecked), at::Tensor()};
  }

 private:
  c10::SymInt rows_;
  std::string mode_;
};

at::Tensor gather_rows_autograd(c10::DispatchKeySet keys, const at::Tensor& src, const at::Tensor& index, bool check) {
  return autograd::differentiable(
      {src, index}, [&] { return std::make_shared<GatherRows>(src.dim() == 0 ? c10::SymInt(0) : src.sym_size(0)); },
      [&] { return gather_rows_op().redispatch(keys & c10::after_autograd_keyset, src, index, check); });
}

at::Tensor scatter_add_rows_autograd(c10::DispatchKeySet keys, const at::Tensor& src, const at::Tensor& index,
                                     c10::SymInt rows, std::string_view mode, bool check) {
  return autograd::differentiable(
      {src, index}, [&] { return std::make_shared<ScatterAddRows>(rows, mode); },
      [&] {
        return scatter_add_rows_op().redispatch(keys & c10::after_autograd_keyset, src, index, rows, mode, check);
      });
}

}  // namespace
}  // namespace lacewing

TORCH_LIBRARY_IMPL(lacewing, Autograd, m) {
  m.impl("gather_rows", lacewing::gather_rows_autograd);
  m.impl("scatter_add_rows", lacewing::scatter_add_rows_autograd);
}
