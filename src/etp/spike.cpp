// The spike: a step function whose derivative is a surrogate, made of torch's own ops.
#include <string>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsub.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <lacewing/etp/cell.h>

#include "autograd/node.h"
#include "common/refuse_layouts.h"
#include "common/typed_op.h"
#include "etp/cell_params.h"

namespace lacewing::etp {
namespace {

using kernels::Surrogate;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr const char* kSpike = "etp_spike";

using Signature = at::Tensor(const at::Tensor& x, std::string_view surrogate, double gain, double width);

const auto& spike_op() { return typed_op<"etp_spike", Signature>(); }

/// The surrogate's derivative at x, differentiable in turn.
at::Tensor slope(const at::Tensor& x, Surrogate surrogate, double gain, double width) {
  if (surrogate == Surrogate::triangle) {
    return at::relu(at::rsub(x.abs(), gain, gain / width));
  }
  const at::Tensor u = x / width;
  switch (surrogate) {
    case Surrogate::triangle: break;
    case Surrogate::fast_sigmoid: return gain / (1 + u.abs()).square();
    case Surrogate::arctan: return gain / (1 + u.square());
    case Surrogate::gaussian: return gain * at::exp(-0.5 * u.square());
    case Surrogate::boxcar: return gain * u.abs().lt(1).to(x.scalar_type());
  }
  return {};
}

struct SpikeBackward : torch::autograd::Node {
  SavedVariable x_;
  Surrogate surrogate_ = Surrogate::triangle;
  double gain_ = 1;
  double width_ = 1;

  std::string name() const override { return "SpikeBackward"; }
  void release_variables() override { x_.reset_data(); }

  variable_list apply(variable_list&& grads) override {
    variable_list result(1);
    if (grads[0].defined() && task_should_compute_output(0)) {
      result[0] = grads[0] * slope(x_.unpack(), surrogate_, gain_, width_);
    }
    return result;
  }
};

at::Tensor spike_value(const at::Tensor& x, std::string_view surrogate, double, double width) {
  surrogate_named(kSpike, surrogate);
  TORCH_CHECK(width > 0, "[lacewing.", kSpike, "] width must be positive, not ", width);
  TORCH_CHECK(at::isFloatingType(x.scalar_type()), "[lacewing.", kSpike, "] x must be floating, not ", x.scalar_type());
  at::Tensor out = at::empty_like(x);
  at::gt_out(out, x, 0);
  return out;
}

at::Tensor spike_autograd(c10::DispatchKeySet keys, const at::Tensor& x, std::string_view surrogate, double gain,
                          double width) {
  autograd::NodePtr<SpikeBackward> node;
  if (torch::autograd::compute_requires_grad(x)) {
    node = autograd::make_node<SpikeBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    node->x_ = SavedVariable(x, /*is_output=*/false);
    node->surrogate_ = surrogate_named(kSpike, surrogate);
    node->gain_ = gain;
    node->width_ = width;
  }
  at::Tensor out;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    out = spike_op().redispatch(keys & c10::after_autograd_keyset, x, surrogate, gain, width);
  }
  autograd::set_history(out, node);
  if (const at::Tensor t = autograd::tangent(x); t.defined()) {
    out._set_fw_grad(t * slope(x._fw_primal(/*level=*/0), surrogate_named(kSpike, surrogate), gain, width),
                     /*level=*/0, /*is_inplace_op=*/false);
  }
  return out;
}

/// Element by element: the batch of vmap is one more dim.
at::Tensor spike_batched(const at::Tensor& x, std::string_view surrogate, double gain, double width) {
  const c10::impl::ExcludeDispatchKeyGuard below{c10::DispatchKey::FuncTorchBatched};
  const auto* const impl = at::functorch::maybeGetBatchedImpl(x);
  return at::functorch::makeBatched(spike_op().call(impl->value(), surrogate, gain, width), impl->bdim(),
                                    impl->level());
}

}  // namespace

at::Tensor spike(const at::Tensor& x, const std::string& surrogate, double gain, double width) {
  return spike_op().call(x, surrogate, gain, width);
}

}  // namespace lacewing::etp

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  lacewing::define_dense_op(
      m, "etp_spike(Tensor x, str surrogate=\"triangle\", float gain=0.3, float width=1.0) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) { m.impl("etp_spike", lacewing::etp::spike_value); }
TORCH_LIBRARY_IMPL(lacewing, Autograd, m) { m.impl("etp_spike", lacewing::etp::spike_autograd); }
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) { m.impl("etp_spike", lacewing::etp::spike_batched); }
