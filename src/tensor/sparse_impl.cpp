#include "tensor/sparse_impl.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/variable.h>

#include <lacewing/dispatch/rows.h>
#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

#include "common/version.h"

namespace lacewing::tensor {
namespace {

bool wants_grad(const Components& c) {
  return c.values.requires_grad() || (c.fill.value.defined() && c.fill.value.requires_grad());
}

/// requires_grad of a sparse tensor reads its components'. Set to true it sets the values', to false all components'.
/// torch writes the wish into `requires_grad_` (its setter is final): a flag that differs from what was last read is a
/// wish, which is passed on at the next look.
struct ComponentsGrad : torch::autograd::AutogradMeta {
  explicit ComponentsGrad(const Components* components) : components_(components) {}

  void pass_on() {
    const bool wish = requires_grad_;
    const bool wished = wish != read_;
    if (wished && wish) {
      if (components_->values.is_leaf()) {
        components_->values.set_requires_grad(true);
      }
    }
    const bool possible = !wished || wish || (stops(components_->values) && stops(components_->fill.value));
    read_ = requires_grad_ = wants_grad(*components_);
    TORCH_CHECK(possible,
                "[lacewing.SparseTensor] requires_grad cannot be set to false: values or fill are results of other "
                "ops; use detach()");
  }
  bool requires_grad() const override {
    const_cast<ComponentsGrad*>(this)->pass_on();
    return wants_grad(*components_);
  }

  /// Optimizers read it, in C++ and in Python: without an error they would leave the tensor as it is, in silence.
  const at::Tensor& grad() const override {
    TORCH_CHECK(false,
                "[lacewing.SparseTensor] a sparse tensor has no grad of its own: gradients reach its values and its "
                "fill, so read values().grad, and give values() to the optimizer");
  }
  /// A torch::autograd::Function of C++ would leave the gradient here.
  at::Tensor& mutable_grad() override { return const_cast<at::Tensor&>(grad()); }

  const Components* components_;

 private:
  static bool stops(const at::Tensor& component) {
    if (!component.defined() || !component.requires_grad()) {
      return true;
    }
    if (component.is_leaf()) {
      component.set_requires_grad(false);
    }
    return component.is_leaf();
  }

  bool read_ = false;
};

/// The strided copies that view ops gave of a tensor and of its views, by their version counters.
class Copies {
 public:
  void watch(const std::string& op, const at::Tensor& copy) {
    const std::lock_guard lock(mutex_);
    std::erase_if(copies_, [](const Copy& c) { return c.version.unique() && c.version.current_version() == c.seen; });
    const auto* storage = copy.storage().unsafeGetStorageImpl();
    if (std::none_of(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.storage == storage; })) {
      const auto& version = copy.unsafeGetTensorImpl()->version_counter();
      copies_.push_back({op, version, version.current_version(), storage});
    }
    some_ = true;
  }

  void forget(const at::Tensor& copy) {
    const std::lock_guard lock(mutex_);
    const auto* storage = copy.storage().unsafeGetStorageImpl();
    std::erase_if(copies_, [&](const Copy& c) { return c.storage == storage; });
  }

  void check() {
    if (!some_) {
      return;
    }
    std::string op;
    {
      const std::lock_guard lock(mutex_);
      for (const Copy& c : copies_) {
        op = c.version.current_version() == c.seen ? op : c.op;
      }
      std::erase_if(copies_, [](const Copy& c) { return c.version.unique() || c.version.current_version() != c.seen; });
      some_ = !copies_.empty();
    }
    if (!op.empty()) {
      throw InPlaceRefusal({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                           "[lacewing.SparseTensor] the strided result of " + op +
                               " was written to in place, but it is a copy, and the sparse tensor has not changed: "
                               "write to the sparse tensor itself, or to a clone() of the result");
    }
  }

 private:
  struct Copy {
    std::string op;
    c10::VariableVersion version;
    std::uint32_t seen;
    const c10::StorageImpl* storage;
  };

  std::mutex mutex_;
  std::atomic<bool> some_ = false;
  std::vector<Copy> copies_;
};

class SparseImpl : public c10::TensorImpl {
 public:
  explicit SparseImpl(Components c)
      : TensorImpl(c10::DispatchKeySet(
                       {kKey, c10::computeDispatchKey(c.values.scalar_type(), c10::kStrided, c.values.device())}),
                   c.values.dtype(), c.values.device()),
        components_(std::move(c)),
        fill_version_(fill_version()) {
    set_sizes_contiguous(components_.shape());
    release_storage_and_set_meta_custom_data_ptr_error_msg_(kNoMemory);
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
    copies->check();
    check_fill();
    return components_;
  }

  void replace(Components c) {
    components_ = std::move(c);
    ++writes;
    fill_version_ = fill_version();
    set_sizes_contiguous(components_.shape());
    data_type_ = components_.values.dtype();
    bump_version();
  }

  bool view = false;
  at::Tensor reshaped_from;      ///< of a view with the same elements in their order: a tensor that is no view
  std::int64_t writes = 0;       ///< how often the components were replaced, in inference mode too
  std::int64_t base_writes = 0;  ///< of reshaped_from, when they were the same
  bool permuted = false;         ///< a view of a tensor that is none, with its elements in another order
  std::shared_ptr<Copies> copies = std::make_shared<Copies>();  ///< shared with its views

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&, bool) const override {
    return detached_copy();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&, bool) const override {
    return detached_copy();
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    const auto* const sparse = dynamic_cast<const SparseImpl*>(other.get());
    TORCH_CHECK(sparse != nullptr, "[lacewing.SparseTensor] a sparse tensor takes the data of a sparse one only");
    replace(sparse->get());
  }

 private:
  c10::intrusive_ptr<TensorImpl> detached_copy() const {
    return c10::make_intrusive<SparseImpl>(components_.with(
        components_.values.detach(), components_.has_fill() ? components_.fill.value.detach() : at::Tensor()));
  }
  const char* tensorimpl_type_name() const override { return "lacewing::SparseImpl"; }

  std::int64_t fill_version() const { return components_.has_fill() ? version_of(components_.fill.value) : 0; }

  /// A fill that learns is a leaf, to which optimizers write. Another one is for reading only: other tensors have it.
  void check_fill() const {
    if (fill_version() == fill_version_) {
      return;
    }
    const at::Tensor& fill = components_.fill.value;
    TORCH_CHECK(fill.requires_grad() && fill.is_leaf(),
                "[lacewing.SparseTensor] the fill of a sparse tensor was written to: it is read-only where it is no "
                "leaf that requires a gradient, so use with_fill(...)");
    fill_version_ = fill_version();
  }

  Components components_;
  mutable std::int64_t fill_version_;
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

bool is_plain(const at::Tensor& t) {
  return (t.is_cpu() || t.is_cuda()) && !needs_grad(t) && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() &&
         !t.unsafeGetTensorImpl()->is_python_dispatch();
}

bool is_plain_on_host(const at::Tensor& t) { return t.is_cpu() && is_plain(t); }

void check_elements(const char* op, const char* argument, const at::Tensor& t) {
  if (t.defined() && t.layout() == at::kStrided && t.has_storage() && (t.is_cpu() || t.is_cuda()) &&
      !t._is_zerotensor() && !t.unsafeGetTensorImpl()->is_python_dispatch()) {
    check_memory(op, argument, t);
  }
}

void refuse_transforms(const char* what, const at::Tensor& tensor) {
  refuse_tracing();
  TORCH_CHECK(!tensor.key_set().has_any(
                  c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})),
              "[lacewing.SparseTensor] ", what,
              " belong to a torch.func transform, inside which a sparse tensor cannot be made: transform a function of "
              "the products (lacewing.sparse_scavec and so on), or use torch.autograd");
}

void refuse_tracing() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  const bool traced = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) ||
                      TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY).has_value() ||
                      TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE).has_value() ||
                      TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FUNCTIONAL).has_value();
  TORCH_CHECK(!traced,
              "[lacewing.SparseTensor] a sparse tensor cannot be traced (make_fx, torch.export, torch.jit.trace, fake "
              "tensors), because a trace does not keep its indices: take values() outside, and trace a function of "
              "the products (lacewing.sparse_scavec and so on), or use torch.compile");
}

Dims Components::shape() const {
  Dims shape = pattern->sizes();
  shape.insert(shape.end(), dense_shape().begin(), dense_shape().end());
  return shape;
}

Components Components::with(at::Tensor new_values, at::Tensor new_fill) const {
  // A detached fill is the same number.
  const bool same = fill.number && new_fill.defined() && new_fill.is_alias_of(fill.value) &&
                    new_fill.scalar_type() == fill.value.scalar_type() && !new_fill.is_conj() && !new_fill.is_neg();
  Fill whole{fill.kind, std::move(new_fill)};
  whole.number = same ? fill.number : std::nullopt;
  return {pattern, std::move(new_values), std::move(whole)};
}

bool has_tangent(const at::Tensor& t) { return t.defined() && t._fw_grad(/*level=*/0).defined(); }

bool needs_grad(const at::Tensor& t) { return (t.requires_grad() && at::GradMode::is_enabled()) || has_tangent(t); }

at::Tensor without_gradient(const at::Tensor& t) {
  return needs_grad(t) ? at::where(at::zeros({}, t.options().dtype(at::kBool).requires_grad(false)), t, t.detach()) : t;
}

bool all_true(const at::Tensor& condition) { return condition.all().item<bool>(); }

bool all_finite(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> numbers;
  at::Tensor sum;
  for (const at::Tensor& t : tensors) {
    if (!at::isFloatingType(t.scalar_type()) && !at::isComplexType(t.scalar_type())) {
      continue;
    }
    // Types that torch does not add up.
    numbers.push_back(t.scalar_type() == at::kComplexHalf ? at::view_as_real(t.detach().resolve_conj())
                      : is_bare(t.scalar_type())          ? t.detach().to(at::kFloat)
                                                          : t.detach());
    const at::Tensor its_sum = numbers.back().sum();
    sum = sum.defined() ? sum + its_sum : its_sum;
  }
  if (!sum.defined()) {
    return true;
  }
  const c10::complex<double> number = sum.item().toComplexDouble();
  return (std::isfinite(number.real()) && std::isfinite(number.imag())) ||
         std::all_of(numbers.begin(), numbers.end(), [](const at::Tensor& t) { return all_true(t.isfinite()); });
}

bool all_finite(const at::Tensor& t) { return all_finite(std::vector<at::Tensor>{t}); }

bool is_bare(at::ScalarType dtype) { return at::isBarebonesUnsignedType(dtype) || c10::isFloat8Type(dtype); }

at::Tensor take_rows(const at::Tensor& values, const at::Tensor& rows) {
  if (engine_dtype(values.scalar_type()) && values.numel() > 0 && !values.requires_grad() && is_plain_on_host(values)) {
    const std::int64_t width = product_of(values.sizes().slice(1));
    Dims shape = values.sizes().vec();
    shape[0] = rows.numel();
    return gather_rows(values.reshape({values.size(0), width}), rows, /*check=*/false).view(shape);
  }
  return is_bare(values.scalar_type()) ? values.index({rows}) : values.index_select(0, rows);
}

at::Tensor in_order(const at::Tensor& values, const Grouping& grouping) {
  return grouping.order.defined() ? take_rows(values, grouping.order) : values;
}

at::Tensor sum_groups(const at::Tensor& values, const Grouping& grouping) {
  if (grouping.distinct()) {
    return in_order(values, grouping);
  }
  Dims shape = values.sizes().vec();
  shape[0] = grouping.segments.numel() - 1;
  if (values.is_complex() && engine_dtype(values.scalar_type())) {
    // By parts: the engine multiplies, and an infinity times 1 + 0i is no number.
    return at::view_as_complex(sum_groups(at::view_as_real(values.resolve_conj()), grouping));
  }
  if (engine_dtype(values.scalar_type())) {
    const std::int64_t width = product_of(values.sizes().slice(1));
    return sparse_scale(values.reshape({values.size(0), width}), *grouping.sum).view(shape);
  }
  if (is_bare(values.scalar_type())) {
    // Unsigned sums wrap around as signed ones do.
    return sum_groups(values.to(values.is_floating_point() ? at::kFloat : at::kLong), grouping)
        .to(values.scalar_type());
  }
  if (values.scalar_type() == at::kBool) {
    return at::zeros(shape, values.options().dtype(at::kInt)).index_add(0, grouping.group(), values.to(at::kInt)) != 0;
  }
  return at::zeros(shape, values.options()).index_add(0, grouping.group(), values);
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
  return c.fill.kind == FillKind::scalar && !needs_grad(c.fill.value) &&
         fill_number(c).toComplexDouble() == c10::complex<double>(0);
}

Fill fill_for(const Components& c, const std::function<at::Tensor(const at::Tensor&)>& move) {
  if (c.fill.kind != FillKind::array) {
    return c.fill;
  }
  const at::Tensor block = move(c.fill.value);
  return {block.dim() == 0 ? FillKind::scalar : FillKind::array, block};
}

Fill known_fill(const at::Scalar& number, const at::Tensor& values) {
  // Of version 0, which tells that nobody has written to it since: filling it counts as writing elsewhere.
  const c10::InferenceMode with_versions(false);
  const at::AutoDispatchBelowADInplaceOrView uncounted;
  return {FillKind::scalar, at::scalar_tensor(number, values.options().requires_grad(false)), number};
}

at::Scalar fill_number(const Components& c) {
  const at::Tensor& value = c.fill.value;
  const bool known = c.fill.number && !value.is_inference() && value._version() == 0;
  return known ? *c.fill.number : value.item();
}

namespace {

/// Rows of the fill, as many as the strided tensor has.
at::Tensor filled(const Components& c, const Dims& rows) {
  try {
    return c.fill.value.expand(rows).clone(at::MemoryFormat::Contiguous);
  } catch (const c10::OutOfMemoryError&) {
    throw;  // of a device, with its own account
  } catch (const c10::Error&) {
    const Dims shape = c.shape();
    TORCH_CHECK(false, "[lacewing.to_dense] there is no memory for a strided tensor of shape ",
                shape_text(at::IntArrayRef(shape)), " of ", c.values.scalar_type());
  }
  return {};
}

}  // namespace

at::Tensor densified(const Components& given) {
  TORCH_CHECK(given.has_fill(),
              "[lacewing.to_dense] the fill is undefined: give one by to_dense(fill=...) or with_fill(...)");
  const Components c = coalesced(given);
  if (c.pattern->nse() == c.pattern->numel()) {
    return c.values.contiguous().view(c.shape());
  }
  if (is_bare(c.values.scalar_type())) {
    const auto& keys = c.pattern->keys();
    const auto from = at::full({c.pattern->numel()}, c.pattern->nse(), keys.options());
    from.index_copy_(0, keys, at::arange(c.pattern->nse(), keys.options()));
    return take_rows(at::cat({c.values, fill_block(c).unsqueeze(0)}), from).view(c.shape());
  }
  Dims rows{c.pattern->numel()};
  rows.insert(rows.end(), c.dense_shape().begin(), c.dense_shape().end());
  return filled(c, rows).index_copy_(0, c.pattern->keys(), c.values).view(c.shape());
}

at::Tensor make_tensor(Components c) {
  claim_key();
  TORCH_CHECK(c.values.dim() >= 1 && c.values.size(0) == c.pattern->nse(), "[lacewing.SparseTensor] values of shape ",
              shape_text(c.values.sizes()), " need one row for each of the ", c.pattern->nse(), " indices");
  refuse_transforms("values", c.values);
  if (c.has_fill()) {
    refuse_transforms("fill", c.fill.value);
  }
  const at::Tensor tensor(c10::make_intrusive<SparseImpl>(std::move(c)));
  return tensor;
}

bool is_sparse(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kKey);
}

const Components& components(const at::Tensor& tensor) {
  const auto* const impl = dynamic_cast<const SparseImpl*>(tensor.unsafeGetTensorImpl());
  TORCH_CHECK(impl != nullptr,
              "[lacewing.SparseTensor] a strided tensor got the data of a sparse one by .data = ...: "
              "its elements are lost; use to_dense()");
  return impl->get();
}

namespace {

bool reshapes(const std::string& op, const at::Tensor& result, const at::Tensor& base) {
  const bool keeps_order = op == "aten::view" || op == "aten::reshape" || op == "aten::flatten" ||
                           op == "aten::ravel" || op == "aten::view_as" || op == "aten::reshape_as" ||
                           op == "aten::unflatten" || op == "aten::unsqueeze" || op == "aten::squeeze";
  return keeps_order && result.scalar_type() == base.scalar_type();
}

std::int64_t writes_to(const at::Tensor& t) { return static_cast<const SparseImpl*>(t.unsafeGetTensorImpl())->writes; }

}  // namespace

at::Tensor reshaped_from(const at::Tensor& tensor) {
  constexpr long kBaseAndView = 2;
  const auto* const impl = static_cast<const SparseImpl*>(tensor.unsafeGetTensorImpl());
  const bool same = impl->reshaped_from.defined() && writes_to(impl->reshaped_from) == impl->base_writes;
  return same && impl->copies.use_count() == kBaseAndView ? impl->reshaped_from : at::Tensor();
}

void follow_base(const at::Tensor& view) {
  auto* const impl = static_cast<SparseImpl*>(view.unsafeGetTensorImpl());
  impl->base_writes = writes_to(impl->reshaped_from);
}

void mark_view(const std::string& op, const at::Tensor& result, const at::Tensor& base) {
  auto* const of = static_cast<SparseImpl*>(base.unsafeGetTensorImpl());
  if (is_sparse(result)) {
    auto* const view = static_cast<SparseImpl*>(result.unsafeGetTensorImpl());
    view->view = true;
    view->permuted = view->permuted && !of->view;
    if (!of->view && reshapes(op, result, base)) {
      view->reshaped_from = base;
      follow_base(result);
    }
    view->copies = of->copies;
    return;
  }
  const Components& c = of->get();
  const bool shared =
      result.is_alias_of(c.values) || c.pattern->shares(result) || (c.has_fill() && result.is_alias_of(c.fill.value));
  if (!shared && !result.is_inference()) {
    of->copies->watch(op, result);
  }
}

void forget_copy(const at::Tensor& base, const at::Tensor& copy) {
  static_cast<SparseImpl*>(base.unsafeGetTensorImpl())->copies->forget(copy);
}

bool is_view(const at::Tensor& tensor) { return static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl())->view; }

void mark_permuted(const at::Tensor& result) {
  static_cast<SparseImpl*>(result.unsafeGetTensorImpl())->permuted = true;
}

bool is_permuted_view(const at::Tensor& tensor) {
  const auto* const impl = static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl());
  return impl->view && impl->permuted;
}

void replace_components(const at::Tensor& tensor, Components c) {
  static_cast<SparseImpl*>(tensor.unsafeGetTensorImpl())->replace(std::move(c));
}

}  // namespace lacewing::tensor
