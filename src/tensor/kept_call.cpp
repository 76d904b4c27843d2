#include "tensor/kept_call.h"

#include <algorithm>
#include <optional>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>

#include "common/results.h"

namespace lacewing::tensor {
namespace {

/// Results below this come from memory that torch has had before.
constexpr std::int64_t kFreshBytes = 32 << 20;
/// The bytes of the largest elements.
constexpr std::int64_t kMostElementBytes = 16;

/// The overload that writes what `op` returns, with the same arguments before it; not one that torch generated, which
/// copies what `op` returns.
std::optional<c10::OperatorHandle> writing_overload(const c10::OperatorHandle& op) {
  const auto& plain = op.schema();
  for (const std::string& overload : {std::string("out"), plain.overload_name() + "_out"}) {
    const auto found = c10::Dispatcher::singleton().findSchema({plain.name(), overload});
    if (!found || found->hasTag(at::Tag::generated)) {
      continue;
    }
    const auto& given = found->schema().arguments();
    const bool same = given.size() == plain.arguments().size() + 1 && given.back().is_out() &&
                      std::equal(plain.arguments().begin(), plain.arguments().end(), given.begin(),
                                 [](const c10::Argument& a, const c10::Argument& b) {
                                   return a.name() == b.name() && *a.type() == *b.type();
                                 });
    if (same) {
      return found;
    }
  }
  return std::nullopt;
}

/// A strided tensor of the CPU that nothing follows: no gradient of either mode, no transform, no cast, no subclass.
bool is_alone(const at::Tensor& t) {
  return is_plain_on_host(t) && t.layout() == at::kStrided && !at::isTensorSubclassLike(t) && !autocast_key(t);
}

bool is_plain_call(const Call& call, const std::vector<c10::IValue>& args, at::IntArrayRef shape) {
  const std::int64_t elements = c10::multiply_integers(shape);
  const auto& returns = call.schema().returns();
  return elements * kMostElementBytes >= kFreshBytes && returns.size() == 1 &&
         returns[0].type()->kind() == c10::TypeKind::TensorType && returns[0].alias_info() == nullptr &&
         !call.op.hasTag(at::Tag::nondeterministic_seeded) &&
         std::all_of(args.begin(), args.end(), [](const c10::IValue& arg) {
           return !arg.isList() && !(arg.isTensor() && arg.toTensor().defined() && !is_alone(arg.toTensor()));
         });
}

/// What the op makes of no rows: the dtype of its result, and the shape of a row.
at::Tensor result_of_no_rows(const Call& call, std::vector<c10::IValue> args, at::IntArrayRef shape) {
  for (c10::IValue& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined() && arg.toTensor().sizes() == shape) {
      arg = arg.toTensor().narrow(0, 0, 0);
    }
  }
  return call.call(std::move(args)).front().toTensor();
}

}  // namespace

std::vector<c10::IValue> call_pointwise(const Call& call, std::vector<c10::IValue> args, at::IntArrayRef shape) {
  if (!is_plain_call(call, args, shape)) {
    return call.call(std::move(args));
  }
  const auto writing = writing_overload(call.op);
  const at::Tensor none = writing ? result_of_no_rows(call, args, shape) : at::Tensor();
  const bool rows = none.defined() && none.dim() == static_cast<std::int64_t>(shape.size()) && none.size(0) == 0 &&
                    none.sizes().slice(1) == shape.slice(1);
  const auto bytes = rows ? static_cast<std::int64_t>(none.element_size()) * c10::multiply_integers(shape) : 0;
  if (bytes < kFreshBytes) {
    return call.call(std::move(args));
  }
  args.emplace_back(empty_result(shape, none.options()));
  torch::jit::Stack stack(std::make_move_iterator(args.begin()), std::make_move_iterator(args.end()));
  writing->callBoxed(stack);
  return {stack.begin(), stack.end()};
}

}  // namespace lacewing::tensor
