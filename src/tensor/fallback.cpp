// The boxed fallback: every op on a sparse tensor comes here, in front of autograd.
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <ATen/WrapDimUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "tensor/call.h"
#include "tensor/densify.h"
#include "tensor/zero_tensors.h"

namespace at::functorch {
/// Of ATen/functorch/DynamicLayer.h, which needs a header that torch does not bring.
TORCH_API Tensor unwrapIfDead(const Tensor& tensor);
}  // namespace at::functorch

namespace lacewing::tensor {
namespace {

/// Composites that are not decomposed: they draw numbers or write to other arguments, and so must not be tried and then
/// run again, or they write into what they made from their input, or look at its storage.
const std::unordered_set<std::string>& not_decomposed() {
  static const std::unordered_set<std::string> names{
      "aten::_sparse_coo_tensor_unsafe",
      "aten::cosine_similarity",
      "aten::dropout",
      "aten::alpha_dropout",
      "aten::feature_dropout",
      "aten::feature_alpha_dropout",
      "aten::matrix_power",
      "aten::linalg_matrix_power",
      "aten::pad_sequence",
      "aten::istft",
      "aten::stft",
      "aten::chain_matmul",
      "aten::ctc_loss",
      "aten::max_pool1d",
      "aten::scaled_dot_product_attention",
      "aten::rrelu",
      "aten::lstm",
      "aten::gru",
      "aten::batch_norm",
      "aten::instance_norm",
  };
  return names;
}

using Table = std::unordered_map<std::string, Rule>;

const Table& table() {
  static const Table rules = [] {
    Table all;
    for (const auto& family :
         {access_rules(), format_rules(), componentwise_rules(), reduction_rules(), softmax_rules(), shape_rules(),
          join_rules(), indexing_rules(), matmul_rules(), writing_rules(), composed_rules(), resampling_rules()}) {
      for (const RuleEntry& entry : family) {
        TORCH_CHECK(all.emplace(entry.op, entry.rule).second, "[lacewing.SparseTensor] two rules for ", entry.op);
      }
    }
    return all;
  }();
  return rules;
}

bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !not_decomposed().contains(op.schema().name());
}

/// Refuses what was written to copies of the arguments.
void look_at_all(const Call& call) {
  call.each_tensor([](const at::Tensor& t) {
    if (is_sparse(t)) {
      components(t);
    }
  });
}

/// Those of a device that has no kernels: an op under them is what it is on any device.
constexpr c10::DispatchKeySet kNoDevice(c10::DispatchKey::PrivateUse3);

/// The keys under which an op is its composition: those behind ours. Where the device has a kernel beside the
/// composition (_fused_rms_norm on CUDA), which would read memory that is not there: those of a device that has none.
c10::DispatchKeySet composition_keys(const Call& call) {
  const auto behind = call.keys.remove(kKey);
  const auto device = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, behind.highestBackendKey());
  return call.op.hasKernelForDispatchKey(device) ? kNoDevice : behind;
}

/// Answers a call by the op under such keys, made of other ops, each of which comes back here.
bool compose(Call& call, c10::DispatchKeySet keys) {
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  call.op.redispatchBoxed(keys, &stack);
  look_at_all(call);
  return call.give(std::vector<c10::IValue>(stack.begin(), stack.end()));
}

/// The same, where it writes to no sparse tensor on its way.
bool decompose(Call& call) {
  try {
    return compose(call, composition_keys(call));
  } catch (const InPlaceRefusal&) {
    return Call::decline();
  }
}

/// A value with every tensor in it replaced.
template <typename F>
c10::IValue mapped(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    return f(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(f(t));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> t : value.toOptionalTensorList()) {
      list.push_back(t ? std::optional<at::Tensor>(f(*t)) : t);
    }
    return list;
  }
  return value;
}

}  // namespace

Call::Call(const c10::OperatorHandle& handle, c10::DispatchKeySet key_set, torch::jit::Stack* stack)
    : op(handle), keys(key_set) {
  const std::size_t count = handle.schema().arguments().size();
  args.assign(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
}

std::string Call::name() const {
  const std::string& overload = schema().overload_name();
  return overload.empty() ? schema().name() : schema().name() + "." + overload;
}

std::int64_t Call::find(const char* wanted) const {
  const auto& arguments = schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == wanted) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

const c10::IValue& Call::arg(const char* wanted) const {
  const std::int64_t i = find(wanted);
  TORCH_INTERNAL_ASSERT(i >= 0, name(), " has no argument ", wanted);
  return args[static_cast<std::size_t>(i)];
}

void Call::each_tensor(const std::function<void(const at::Tensor&)>& f) const {
  for (const c10::IValue& value : args) {
    if (value.isTensor()) {
      f(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        f(t);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor> t : value.toOptionalTensorList()) {
        if (t) {
          f(*t);
        }
      }
    }
  }
}

std::vector<c10::IValue> Call::call(std::vector<c10::IValue> with) const {
  torch::jit::Stack stack(std::make_move_iterator(with.begin()), std::make_move_iterator(with.end()));
  op.callBoxed(stack);
  return {stack.begin(), stack.end()};
}

std::vector<c10::IValue> Call::call_with(const std::function<at::Tensor(const at::Tensor&)>& replace) const {
  std::vector<c10::IValue> with;
  for (const c10::IValue& value : args) {
    with.push_back(mapped(value, [&](const at::Tensor& t) { return is_sparse(t) ? replace(t) : t; }));
  }
  return call(std::move(with));
}

void Call::map_results(const std::function<at::Tensor(const at::Tensor&)>& replace) {
  for (c10::IValue& result : results_) {
    result = mapped(result, [&](const at::Tensor& t) { return is_sparse(t) ? replace(t) : t; });
  }
}

bool Call::give(const at::Tensor& result) { return give(std::vector<c10::IValue>{result}); }

bool Call::give(std::vector<c10::IValue> results) {
  results_ = std::move(results);
  return true;
}

std::int64_t wrap_dim(std::int64_t dim, std::int64_t ndim) { return at::maybe_wrap_dim(dim, ndim); }

namespace {

/// A rule; for dtypes that torch's ops on components lack, one that meets such an op declines.
bool attempt(Rule rule, Call& call) {
  bool bare = false;
  call.each_tensor([&](const at::Tensor& t) { bare = bare || (is_sparse(t) && is_bare(t.scalar_type())); });
  if (!bare) {
    return rule(call);
  }
  try {
    return rule(call);
  } catch (const c10::NotImplementedError&) {
    return Call::decline();
  }
}

/// A fill that no element has takes part without a gradient: what is infinite in it would make NaN of 0.
void set_unused_fills_aside(Call& call) {
  const auto& returns = call.schema().returns();
  if (returns.empty() || returns[0].alias_info() != nullptr || !call.schema().name().starts_with("aten::")) {
    return;
  }
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    if (!call.is_sparse_at(i) || !call.sparse(i).has_fill() || !needs_grad(call.sparse(i).fill.value)) {
      continue;
    }
    const Components& c = call.sparse(i);
    const bool empty = product_of(c.shape()) == 0;
    if (empty || (c.pattern->nse() >= c.pattern->numel() && coalesced(c).pattern->nse() == c.pattern->numel())) {
      call.args[i] = make_tensor({c.pattern, c.values, {c.fill.kind, without_gradient(c.fill.value)}});
    }
  }
}

}  // namespace

bool is_foreach(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("aten::_foreach_") &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

bool on_each(Call& call) { return compose(call, kNoDevice); }

std::optional<c10::DispatchKey> autocast_key(const at::Tensor& t) {
  const c10::DeviceType device = t.device().type();
  if (!at::autocast::is_autocast_available(device)) {
    return std::nullopt;
  }
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
  return c10::impl::tls_is_dispatch_key_excluded(key) ? std::nullopt : std::optional(key);
}

void answer(Call& call) {
  if (call.schema().is_mutable() && mutate(call)) {
    return;
  }
  set_unused_fills_aside(call);
  if (is_pointwise(call.op) && attempt(pointwise, call)) {
    return;
  }
  if (is_foreach(call.op)) {
    on_each(call);
    return;
  }
  const auto rule = table().find(call.name());
  if (rule != table().end() && attempt(rule->second, call)) {
    return;
  }
  if (decomposes(call.op) && decompose(call)) {
    return;
  }
  const std::string name = call.schema().name();
  for (const char* option : {"sparse", "sparse_grad"}) {
    // Gradients as torch's own sparse tensors do not find the way back to the values.
    if (call.has(option) && call.arg(option).isBool()) {
      call.args[static_cast<std::size_t>(call.find(option))] = false;
    }
  }
  call.give(call.call_with([&](const at::Tensor& t) { return densified_for(name, t); }));
}

namespace {

/// Ops that give the tensor itself or a copy, which may be written to.
bool copies(const std::string& op) { return op == "aten::to" || op == "aten::contiguous"; }

/// Whether an op looks at no element of its arguments: the same tensor again, or a question about one.
bool reads_nothing(const std::string& op) {
  static const std::unordered_set<std::string> names{
      "aten::alias",
      "aten::detach",
      "lacewing::is_sparse_tensor",
      "lacewing::tensor_col_dims",
      "lacewing::tensor_fill",
      "lacewing::tensor_fill_kind",
      "lacewing::tensor_forget_copy",
      "lacewing::tensor_format",
      "lacewing::tensor_indices",
      "lacewing::tensor_is_view",
      "lacewing::tensor_nse",
      "lacewing::tensor_row_dims",
      "lacewing::tensor_sparse_dim",
      "lacewing::tensor_stand_for",
      "lacewing::tensor_values",
      "lacewing::tensor_watch_copy",
      "lacewing::tensor_with_values",
  };
  return names.contains(op);
}

/// A list with a number below -2^62 is one of symbolic integers to torch.
void check_integers(const Call& call) {
  for (const c10::IValue& arg : call.args) {
    TORCH_CHECK(!arg.isSymIntList() || arg.isIntList(), "[lacewing.SparseTensor] ", call.schema().name(),
                " takes no integer below -2^62");
  }
}

/// The elements of all arguments are there.
void check_arguments(const Call& call) {
  const std::string& name = call.schema().name();
  if (reads_nothing(name)) {
    return;
  }
  const char* const op = name.c_str() + name.rfind(':') + 1;
  call.each_tensor([&](const at::Tensor& t) {
    if (is_sparse(t)) {
      check_elements(op, "values", components(t).values);
      check_elements(op, "fill_value", components(t).fill.value);
    } else {
      check_elements(op, "an operand", t);
    }
  });
}

/// Results of a view op are new tensors: what is written to them would not reach the tensor that they are of.
void mark_views(const Call& call) {
  const auto& returns = call.schema().returns();
  if (call.schema().is_mutable() || returns.empty() || returns[0].alias_info() == nullptr || !call.is_sparse_at(0) ||
      copies(call.schema().name())) {
    return;
  }
  const at::Tensor& base = call.tensor(0);
  const auto mark = [&](const at::Tensor& t) {
    if (!t.is_same(base)) {
      mark_view(call.schema().name(), t, base);
    }
  };
  for (const c10::IValue& result : call.results()) {
    if (result.isTensor()) {
      mark(result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& t : result.toTensorVector()) {
        mark(t);
      }
    }
  }
}

/// Whether a tensor takes part as another one.
bool is_taken_in(const at::Tensor& t) {
  return t.defined() && (t.layout() != at::kStrided || (!is_sparse(t) && are_large_zeros(t)));
}

/// Torch's own sparse tensors beside ours, as ours, and zeros that are not stored; but for those that are written to.
void take_in(Call& call) {
  const auto& arguments = call.schema().arguments();
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (!written) {
      call.args[i] = mapped(call.args[i], [&](const at::Tensor& t) {
        return !is_taken_in(t) ? t : t.layout() == at::kStrided ? without_entries(t, call) : from_torch(t);
      });
    }
  }
}

/// What torch.func transforms that have ended left around their tensors, which may be sparse, is taken off.
void unwrap_ended(Call& call) {
  bool wrapped = false;
  call.each_tensor([&](const at::Tensor& t) {
    wrapped = wrapped || (t.defined() && t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper));
  });
  if (wrapped) {
    for (c10::IValue& arg : call.args) {
      arg = mapped(arg, [](const at::Tensor& t) { return t.defined() ? at::functorch::unwrapIfDead(t) : t; });
    }
  }
}

/// Collectives write to their tensors without saying so, and would write to strided copies.
void refuse_collectives(const Call& call) {
  const std::string& op = call.schema().name();
  if (!op.starts_with("c10d::") || op == "c10d::send") {
    return;
  }
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    TORCH_CHECK(
        call.schema().arguments()[i].name().starts_with("input") || !(call.is_sparse_at(i) || has_sparse(call.args[i])),
        "[lacewing.SparseTensor] ", op,
        " does not reach a sparse tensor: give it the tensor's values(), and its "
        "fill, which have one place in memory");
  }
}

/// Under autocast, an op that it casts the arguments of goes there first, and comes back with them cast.
bool autocast(const Call& call, torch::jit::Stack* stack) {
  std::optional<c10::DispatchKey> key;
  call.each_tensor([&](const at::Tensor& t) { key = !key && is_sparse(t) ? autocast_key(t) : key; });
  if (!key || !call.op.hasKernelForDispatchKey(*key)) {
    return false;
  }
  call.op.callBoxedForDispatchKey(*key, *stack);
  return true;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Call call(op, keys, stack);
  refuse_tracing();
  refuse_collectives(call);
  unwrap_ended(call);
  if (autocast(call, stack)) {
    return;
  }
  look_at_all(call);
  check_integers(call);
  check_arguments(call);
  bool foreign = false;
  call.each_tensor([&](const at::Tensor& t) { foreign = foreign || is_taken_in(t); });
  if (foreign) {
    take_in(call);
  }
  answer(call);
  keep_format(call);
  mark_views(call);
  torch::jit::drop(*stack, call.args.size());
  for (const c10::IValue& result : call.results()) {
    stack->push_back(result);
  }
}

/// Why the key is not ours; empty where it is.
std::string& refusal() {
  static std::string text;
  return text;
}

std::string key_refusal() { return refusal(); }

}  // namespace

void claim_key() { TORCH_CHECK(refusal().empty(), refusal()); }

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey)) {
    refusal() =
        "[lacewing.SparseTensor] another library has claimed the dispatch key DeferredInit, which sparse tensors need: "
        "they do not work beside it in one process";
    return;
  }
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) { m.def("key_refusal() -> str", key_refusal); }

}  // namespace lacewing::tensor
