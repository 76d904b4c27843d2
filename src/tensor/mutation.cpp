// Ops that write: the functional op first, then the components of the same tensor are replaced.
#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <lacewing/dispatch/torch.h>

#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/densify.h"

namespace lacewing::tensor {
namespace {

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Whether the arguments of `functional` are those of an op that writes: the same but for out arguments.
bool matches(const c10::FunctionSchema& functional, const c10::FunctionSchema& writing) {
  if (functional.is_mutable()) {
    return false;
  }
  std::vector<const c10::Argument*> wanted;
  for (const c10::Argument& argument : writing.arguments()) {
    if (!argument.is_out()) {
      wanted.push_back(&argument);
    }
  }
  if (functional.arguments().size() != wanted.size()) {
    return false;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const c10::Argument& own = functional.arguments()[i];
    // dropout has an input where dropout_ has a self.
    const bool same_name = own.name() == wanted[i]->name() || (own.name() == "input" && wanted[i]->name() == "self");
    if (!same_name || *own.type() != *wanted[i]->type()) {
      return false;
    }
  }
  return true;
}

/// "aten::add" for "aten::add_" and for "aten::add" (with out=); "aten::__and__" for "aten::__iand__".
std::string functional_name(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (name.starts_with("aten::__i")) {
    return "aten::__" + name.substr(std::string_view("aten::__i").size());
  }
  const bool in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  return in_place ? name.substr(0, name.size() - 1) : name;
}

std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, std::optional<c10::OperatorHandle>> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(op.operator_name());
  if (found != known.end()) {
    return found->second;
  }
  std::optional<c10::OperatorHandle> functional;
  const std::string name = functional_name(op.schema());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& candidate : dispatcher.getAllOpNames()) {
    if (candidate.name == name) {
      const auto handle = dispatcher.findOp(candidate);
      if (handle && handle->hasSchema() && matches(handle->schema(), op.schema())) {
        functional = handle;
        break;
      }
    }
  }
  known.emplace(op.operator_name(), functional);
  return functional;
}

void refuse_unless(bool possible, const Call& call, const char* why) {
  if (!possible) {
    throw InPlaceRefusal({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                         "[lacewing.SparseTensor] " + call.schema().name() + why);
  }
}

bool is_wanted_leaf(const at::Tensor& component) {
  return component.defined() && component.requires_grad() && component.is_leaf();
}

/// As torch refuses it: the graph would not know of the write.
void refuse_leaf(const at::Tensor& target) {
  const Components& c = components(target);
  TORCH_CHECK(!at::GradMode::is_enabled() || !(is_wanted_leaf(c.values) || is_wanted_leaf(c.fill.value)),
              "[lacewing.SparseTensor] a leaf Variable that requires grad is being used in an in-place operation: use "
              "the op that returns its result, or torch.no_grad()");
}

/// Other components for the same tensor. Leaves that gradients are wanted of stay the same tensors, which an optimizer
/// holds, where the entries stay where they are; other entries are a new leaf.
void write_components(const at::Tensor& target, Components made) {
  const Components now = components(target);
  const auto taken_in = [](const at::Tensor& leaf, const at::Tensor& other, const auto& fits) {
    if (!is_wanted_leaf(leaf) || at::GradMode::is_enabled()) {
      return other;
    }
    if (!fits() || leaf.sizes() != other.sizes() || leaf.scalar_type() != other.scalar_type()) {
      return other.detach().requires_grad_();
    }
    leaf.copy_(other);
    return leaf;
  };
  made.values = taken_in(now.values, made.values, [&] {
    return made.pattern == now.pattern || at::equal(made.pattern->indices(), now.pattern->indices());
  });
  if (made.has_fill() && now.has_fill()) {
    made.fill = {made.fill.kind, taken_in(now.fill.value, made.fill.value, [] { return true; }), made.fill.number};
  }
  replace_components(target, std::move(made));
}

/// The same, and for the tensor that the target is a view of.
void write_to(const at::Tensor& target, Components made) {
  const at::Tensor base = reshaped_from(target);
  if (base.defined()) {
    const at::Tensor whole = make_tensor(made).reshape(base.sizes());
    write_components(base, in_layout(components(whole), components(base).pattern->layout()));
    follow_base(target);
  }
  write_components(target, std::move(made));
}

/// A result for a sparse target: a number, which is a strided tensor in most rules, as a sparse one.
at::Tensor number_as(const at::Tensor& target, const at::Tensor& given) {
  const bool number = !is_sparse(given) && given.dim() == 0 && target.dim() == 0 && components(target).has_fill();
  return number ? lacewing::to_sparse(given.to(target.scalar_type()), 0, components(target).fill) : given;
}

/// Elements that are drawn (exponential_) depend on none that was there: each is an entry.
at::Tensor drawn_as(const Call& call, const at::Tensor& target, const at::Tensor& given) {
  const Components& c = components(target);
  const bool drawn = !is_sparse(given) && call.op.hasTag(at::Tag::nondeterministic_seeded) &&
                     given.sizes() == target.sizes() && given.scalar_type() == target.scalar_type();
  return drawn ? make_tensor(with_all_entries(given, c.sparse_dim(), c.fill)) : given;
}

/// What an in-place op makes of its target: the result in the target's dtype.
Components in_place_components(const Call& call, const at::Tensor& target, const at::Tensor& given) {
  const at::Tensor result = drawn_as(call, target, number_as(target, given));
  refuse_unless(is_sparse(result), call,
                " in place would turn a sparse tensor into a strided one, which cannot be done to the same tensor: use "
                "the op that returns its result");
  TORCH_CHECK(result.sizes() == target.sizes(), "[lacewing.SparseTensor] ", call.schema().name(),
              " in place gives shape ", shape_text(result.sizes()), ", but the tensor has shape ",
              shape_text(target.sizes()));
  TORCH_CHECK(at::canCast(given.scalar_type(), target.scalar_type()), "[lacewing.SparseTensor] ", call.schema().name(),
              " in place gives ", given.scalar_type(), ", which cannot be cast to ", target.scalar_type());
  return components(result.to(target.scalar_type()));
}

}  // namespace

bool has_sparse(const c10::IValue& list) {
  if (!list.isTensorList()) {
    return false;
  }
  const auto tensors = list.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), is_sparse);
}

bool mutate(Call& call) {
  const auto& arguments = call.schema().arguments();
  bool sparse_target = false;
  std::vector<std::size_t> targets;
  bool sparse_list = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (writes(arguments[i])) {
      targets.push_back(i);
      sparse_target = sparse_target || call.is_sparse_at(i);
      sparse_list = sparse_list || has_sparse(call.args[i]);
    }
  }
  const std::string& name = call.schema().name();
  if (sparse_list) {
    refuse_unless(is_foreach(call.op) && !arguments[targets.front()].is_out(), call,
                  " writes to a list with sparse tensors in it: it is refused");
    return on_each(call);
  }
  if (!sparse_target) {
    // Into strided tensors: torch's own op, with its own checks, on strided operands.
    call.give(call.call_with([&](const at::Tensor& t) { return densified_for(name, t); }));
    return true;
  }
  for (const std::size_t i : targets) {
    refuse_unless(!call.is_sparse_at(i) || arguments[i].is_out() || !is_view(call.tensor(i)) ||
                      reshaped_from(call.tensor(i)).defined(),
                  call, " in place on a view of a sparse tensor would not reach that tensor: it is refused");
    if (call.is_sparse_at(i) && !arguments[i].is_out() && name != "aten::detach_") {
      refuse_leaf(call.tensor(i));
    }
  }
  const auto functional = functional_of(call.op);
  refuse_unless(functional.has_value(), call,
                " writes to a sparse tensor and has no form that returns its result instead: it is refused");
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_out()) {
      stack.push_back(call.args[i]);
    }
  }
  functional->callBoxed(stack);
  std::vector<c10::IValue> results;
  for (std::size_t k = 0; k < targets.size(); ++k) {
    const at::Tensor target = call.tensor(targets[k]);
    const at::Tensor result = stack[k].toTensor();
    if (!arguments[targets[k]].is_out()) {
      Components made = in_place_components(call, target, result);
      if (name == "aten::detach_") {
        replace_components(target, std::move(made));
      } else {
        write_to(target, std::move(made));
      }
    } else if (is_sparse(target)) {
      TORCH_CHECK(at::canCast(result.scalar_type(), target.scalar_type()), "[lacewing.SparseTensor] ", name,
                  " cannot write its result to a sparse out= of dtype ", target.scalar_type(), ": it is ",
                  result.scalar_type());
      const at::Tensor sparse = number_as(target, result);
      TORCH_CHECK(is_sparse(sparse), "[lacewing.SparseTensor] ", name,
                  " cannot write its result to a sparse out=: it is strided here; give a strided out=, or none");
      replace_components(target, components(sparse.to(target.scalar_type())));
    } else {
      const at::Tensor strided = is_sparse(result) ? densified_for(name, result) : result;
      target.resize_(strided.sizes()).copy_(strided);
    }
    results.emplace_back(target);
  }
  if (call.schema().returns().empty()) {
    results.clear();
  }
  return call.give(std::move(results));
}

}  // namespace lacewing::tensor
