#include "tensor/sparse_impl.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/variable.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

namespace lacewing::tensor {
namespace {

bool wants_grad(const Components& c) {
  return c.values.requires_grad() || (c.fill.value.defined() && c.fill.value.requires_grad());
}

/// requires_grad of a sparse tensor reads its components' and, where it is set to true, sets the values'. torch writes
/// the wish into `requires_grad_` (its setter is final): it is passed on at the next look, and the flag stays false, so
/// that the engine never takes the tensor itself for a leaf.
struct ComponentsGrad : torch::autograd::AutogradMeta {
  explicit ComponentsGrad(const Components* components) : components_(components) {}

  void pass_on() {
    if (requires_grad_) {
      requires_grad_ = false;
      if (components_->values.is_leaf()) {
        components_->values.set_requires_grad(true);
      }
    }
  }
  bool requires_grad() const override {
    const_cast<ComponentsGrad*>(this)->pass_on();
    return wants_grad(*components_);
  }

  const Components* components_;
};

class SparseImpl : public c10::TensorImpl {
 public:
  explicit SparseImpl(Components c)
      : TensorImpl(c10::DispatchKeySet(
                       {kKey, c10::computeDispatchKey(c.values.scalar_type(), c10::kStrided, c.values.device())}),
                   c.values.dtype(), c.values.device()),
        components_(std::move(c)) {
    set_sizes_contiguous(components_.shape());
    set_storage_access_should_throw();
    set_autograd_meta(std::make_unique<ComponentsGrad>(&components_));
  }

  const Components& get() const {
    auto* grad = dynamic_cast<ComponentsGrad*>(autograd_meta());
    if (grad == nullptr) {
      // torch's factories (zeros_like and so on) give their result a meta of their own, or none.
      const bool wanted = autograd_meta() != nullptr && autograd_meta()->requires_grad();
      auto own = std::make_unique<ComponentsGrad>(&components_);
      own->requires_grad_ = wanted;
      grad = own.get();
      const_cast<SparseImpl*>(this)->set_autograd_meta(std::move(own));
    }
    grad->pass_on();
    return components_;
  }

  void replace(Components c) {
    components_ = std::move(c);
    set_sizes_contiguous(components_.shape());
    data_type_ = components_.values.dtype();
    bump_version();
  }

  bool view = false;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&, bool) const override {
    return detached_copy();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&, bool) const override {
    return detached_copy();
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    replace(static_cast<const SparseImpl*>(other.get())->get());
  }

 private:
  c10::intrusive_ptr<TensorImpl> detached_copy() const {
    return c10::make_intrusive<SparseImpl>(components_.with(
        components_.values.detach(), components_.has_fill() ? components_.fill.value.detach() : at::Tensor()));
  }
  const char* tensorimpl_type_name() const override { return "lacewing::SparseImpl"; }

  Components components_;
};

bool engine_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kComplexFloat:
    case at::kComplexDouble: return true;
    default: return false;
  }
}

}  // namespace

void refuse_functorch(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.key_set().has_any(
                  c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})),
              "[lacewing.SparseTensor] ", what,
              " belong to a torch.func transform, inside which a sparse tensor cannot be made: transform a function of "
              "the products (lacewing.sparse_scavec and so on), or use torch.autograd");
}

Dims Components::shape() const {
  Dims shape = pattern->sizes();
  shape.insert(shape.end(), dense_shape().begin(), dense_shape().end());
  return shape;
}

Components Components::with(at::Tensor new_values, at::Tensor new_fill) const {
  return {pattern, std::move(new_values), {fill.kind, std::move(new_fill)}};
}

at::Tensor in_order(const at::Tensor& values, const Grouping& grouping) {
  return grouping.order.defined() ? values.index_select(0, grouping.order) : values;
}

at::Tensor sum_groups(const at::Tensor& values, const Grouping& grouping) {
  if (grouping.distinct()) {
    return in_order(values, grouping);
  }
  Dims shape = values.sizes().vec();
  shape[0] = grouping.counts.numel();
  if (engine_dtype(values.scalar_type())) {
    const std::int64_t width = product_of(values.sizes().slice(1));
    return sparse_scale(values.reshape({values.size(0), width}), *grouping.sum).view(shape);
  }
  if (values.scalar_type() == at::kBool) {
    return at::zeros(shape, values.options().dtype(at::kInt)).index_add(0, grouping.group, values.to(at::kInt)) != 0;
  }
  return at::zeros(shape, values.options()).index_add(0, grouping.group, values);
}

Components coalesced(const Components& c) {
  const Grouping& grouping = c.pattern->coalescing();
  if (!grouping.pattern) {
    return c;
  }
  return {grouping.pattern, sum_groups(c.values, grouping), c.fill};
}

at::Tensor fill_row(const Components& c) {
  if (c.fill.kind == FillKind::array) {
    return c.fill.value.unsqueeze(0);
  }
  return c.fill.value.view(Dims(static_cast<std::size_t>(c.values.dim()), 1));
}

at::Tensor fill_block(const Components& c) { return c.fill.value.expand(c.dense_shape()); }

bool zero_fill(const Components& c) {
  return c.fill.kind == FillKind::scalar && !(c.fill.value.requires_grad() && at::GradMode::is_enabled()) &&
         fill_number(c).toComplexDouble() == c10::complex<double>(0);
}

at::Scalar fill_number(const Components& c) { return c.fill.value.item(); }

at::Tensor densified(const Components& given) {
  TORCH_CHECK(given.has_fill(),
              "[lacewing.to_dense] the fill is undefined: give one by to_dense(fill=...) or with_fill(...)");
  const Components c = coalesced(given);
  if (c.pattern->nse() == c.pattern->numel()) {
    return c.values.contiguous().view(c.shape());
  }
  Dims rows{c.pattern->numel()};
  rows.insert(rows.end(), c.dense_shape().begin(), c.dense_shape().end());
  const at::Tensor base = c.fill.value.expand(rows).clone(at::MemoryFormat::Contiguous);
  return base.index_copy_(0, c.pattern->keys(), c.values).view(c.shape());
}

at::Tensor make_tensor(Components c) {
  claim_key();
  TORCH_CHECK(c.values.dim() >= 1 && c.values.size(0) == c.pattern->nse(), "[lacewing.SparseTensor] values of shape ",
              shape_text(c.values.sizes()), " need one row for each of the ", c.pattern->nse(), " indices");
  refuse_functorch("values", c.values);
  if (c.has_fill()) {
    refuse_functorch("fill", c.fill.value);
  }
  const at::Tensor tensor(c10::make_intrusive<SparseImpl>(std::move(c)));
  return tensor;
}

bool is_sparse(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kKey);
}

const Components& components(const at::Tensor& tensor) {
  return static_cast<const SparseImpl*>(tensor.unsafeGetTensorImpl())->get();
}

void mark_view(const at::Tensor& tensor) { static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl())->view = true; }

bool is_view(const at::Tensor& tensor) { return static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl())->view; }

void replace_components(const at::Tensor& tensor, Components c) {
  static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl())->replace(std::move(c));
}

}  // namespace lacewing::tensor
