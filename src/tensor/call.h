// A call of any torch op on sparse tensors, and the rules that answer it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "tensor/sparse_impl.h"

namespace lacewing::tensor {

/// The arguments of one call, by place or by name, and its results.
class Call {
 public:
  Call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
  std::vector<c10::IValue> args;

  const c10::FunctionSchema& schema() const { return op.schema(); }
  /// "aten::sum.dim_IntList"
  std::string name() const;

  /// The place of an argument, or -1.
  std::int64_t find(const char* name) const;
  bool has(const char* name) const { return find(name) >= 0; }
  const c10::IValue& arg(const char* name) const;
  const at::Tensor& tensor(std::size_t i) const { return args[i].toTensor(); }
  /// The components of argument i, a sparse tensor.
  const Components& sparse(std::size_t i = 0) const { return components(args[i].toTensor()); }
  bool is_sparse_at(std::size_t i) const { return args[i].isTensor() && is_sparse(args[i].toTensor()); }
  std::int64_t integer(const char* name) const { return arg(name).toInt(); }
  bool flag(const char* name) const { return arg(name).toBool(); }

  /// Calls f on every tensor among the arguments, in lists too.
  void each_tensor(const std::function<void(const at::Tensor&)>& f) const;
  /// The results of the op with every sparse argument replaced.
  std::vector<c10::IValue> call_with(const std::function<at::Tensor(const at::Tensor&)>& replace) const;
  /// The op on other arguments.
  std::vector<c10::IValue> call(std::vector<c10::IValue> with) const;

  /// Answers the call; a rule returns what these return.
  bool give(const at::Tensor& result);
  bool give(std::vector<c10::IValue> results);
  bool give(Components c) { return give(make_tensor(std::move(c))); }
  /// Not this rule's case: the next one is tried.
  static bool decline() { return false; }

  const std::vector<c10::IValue>& results() const { return results_; }
  /// Replaces every sparse tensor among the results.
  void map_results(const std::function<at::Tensor(const at::Tensor&)>& replace);

 private:
  std::vector<c10::IValue> results_;
};

/// Answers a call, or declines it and leaves it as it was.
using Rule = bool (*)(Call& call);

/// One row of the table: an op ("aten::mm", "aten::sum.dim_IntList") and its rule.
struct RuleEntry {
  const char* op;
  Rule rule;
};

/// The families. Each has its file, and its rows of the table at the end of it.
std::span<const RuleEntry> access_rules();
std::span<const RuleEntry> format_rules();
std::span<const RuleEntry> componentwise_rules();
std::span<const RuleEntry> reduction_rules();
std::span<const RuleEntry> softmax_rules();
std::span<const RuleEntry> shape_rules();
std::span<const RuleEntry> join_rules();
std::span<const RuleEntry> indexing_rules();
std::span<const RuleEntry> matmul_rules();
std::span<const RuleEntry> writing_rules();
std::span<const RuleEntry> composed_rules();
std::span<const RuleEntry> resampling_rules();

/// Ops that torch tags pointwise, and those that are but lack the tag.
bool pointwise(Call& call);
bool is_pointwise(const c10::OperatorHandle& op);

/// Ops that write to an argument.
bool mutate(Call& call);
/// Whether a value is a list of tensors with a sparse one in it.
bool has_sparse(const c10::IValue& list);

/// Whether an op on lists is the same op on each of their tensors (_foreach_add).
bool is_foreach(const c10::OperatorHandle& op);
/// Answers such a call one tensor after the other.
bool on_each(Call& call);

/// Answers any call, by the rules in their order.
void answer(Call& call);

/// Brings sparse results into the format of the first sparse operand.
void keep_format(Call& call);

/// The key of autocast on the device of a tensor, where it is on.
std::optional<c10::DispatchKey> autocast_key(const at::Tensor& t);

/// A dim in [0, ndim), or torch's error.
std::int64_t wrap_dim(std::int64_t dim, std::int64_t ndim);

}  // namespace lacewing::tensor
