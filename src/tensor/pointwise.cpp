// Pointwise ops: on the values and on the fill, over the union of the index sets.
#include <algorithm>
#include <string_view>
#include <unordered_set>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "index/keys.h"
#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/densify.h"
#include "tensor/kept_call.h"

namespace lacewing::tensor {
namespace {

/// Pointwise, but not tagged so.
const std::unordered_set<std::string>& untagged() {
  static const std::unordered_set<std::string> names{
      "aten::_conj_physical",
      "aten::_prelu_kernel",
      "aten::celu",
      "aten::complex",
      "aten::elu",
      "aten::elu_backward",
      "aten::fill",
      "aten::floor_divide",
      "aten::frexp",
      "aten::hardshrink",
      "aten::hardsigmoid",
      "aten::hardswish",
      "aten::hardtanh",
      "aten::isclose",
      "aten::leaky_relu",
      "aten::lerp",
      "aten::log_sigmoid_forward",
      "aten::mish",
      "aten::nan_to_num",
      "aten::polar",
      "aten::relu6",
      "aten::rsub",
      "aten::selu",
      "aten::silu",
      "aten::softplus",
      "aten::softshrink",
      "aten::threshold",
      "aten::zero",
  };
  return names;
}

/// Ops where one operand 0 makes the result 0, whatever the other is (mul: where it is finite).
enum class Zero { none, product, quotient, conjunction };

Zero zero_rule(std::string_view name) {
  if (name == "aten::mul") {
    return Zero::product;
  }
  if (name == "aten::div" || name == "aten::true_divide") {
    return Zero::quotient;
  }
  return name == "aten::logical_and" || name == "aten::bitwise_and" ? Zero::conjunction : Zero::none;
}

/// The tensors of a call that matter: its sparse operands, and the strided ones with dims.
struct Operands {
  std::vector<std::size_t> sparse_at, dense_at;
  std::vector<Components> sparse;
  Dims shape;
};

/// The results of the op with the operands replaced: rows for values, or one row for fills. They are given at their
/// joint shape, because an op need not broadcast all that it makes of them (isclose with equal_nan, torch 2.11).
std::vector<c10::IValue> call_on(const Call& call, const Operands& operands, const std::vector<at::Tensor>& sparse,
                                 const std::vector<at::Tensor>& dense) {
  Dims shape = sparse.front().sizes().vec();
  for (const auto* tensors : {&sparse, &dense}) {
    for (const at::Tensor& t : *tensors) {
      shape = t.sizes() == at::IntArrayRef(shape) ? shape : at::infer_size(shape, t.sizes());
    }
  }
  std::vector<c10::IValue> args = call.args;
  const auto put = [&](const std::vector<std::size_t>& places, const std::vector<at::Tensor>& tensors) {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      args[places[k]] = tensors[k].sizes() == at::IntArrayRef(shape) ? tensors[k] : tensors[k].expand(shape);
    }
  };
  put(operands.sparse_at, sparse);
  put(operands.dense_at, dense);
  return call_pointwise(call, std::move(args), shape);
}

/// The strided operands as they came.
std::vector<at::Tensor> dense_operands(const Call& call, const Operands& operands) {
  std::vector<at::Tensor> dense;
  for (const std::size_t i : operands.dense_at) {
    dense.push_back(call.tensor(i));
  }
  return dense;
}

/// Whether result k is no element of each place but what the op keeps for its backward (log_sigmoid_forward's buffer,
/// which is empty on CUDA): such a result is given as it is.
bool kept_aside(const std::vector<c10::IValue>& results, std::size_t k) {
  return k < results.size() && results[k].toTensor().sizes() != results.front().toTensor().sizes();
}

FillKind joint_kind(const std::vector<Components>& operands, bool dense_rows) {
  FillKind kind = dense_rows ? FillKind::array : FillKind::scalar;
  for (const Components& c : operands) {
    if (c.fill.kind == FillKind::undefined) {
      return FillKind::undefined;
    }
    if (c.fill.kind == FillKind::array) {
      kind = FillKind::array;
    }
  }
  return kind;
}

/// A row that an op made of fill rows, as a fill beside such values.
Fill fill_from_row(FillKind kind, const at::Tensor& row, const at::Tensor& values) {
  if (kind == FillKind::scalar && row.device() != values.device()) {
    return known_fill(row.item(), values);
  }
  if (kind == FillKind::scalar) {
    return {kind, row.reshape(at::IntArrayRef{})};
  }
  return {kind, row.squeeze(0).expand(values.sizes().slice(1))};
}

bool give_rows(Call& call, const PatternPtr& pattern, FillKind kind, const std::vector<c10::IValue>& values,
               const std::vector<c10::IValue>& fills) {
  std::vector<c10::IValue> results;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const at::Tensor rows = values[k].toTensor();
    if (kept_aside(values, k) || kept_aside(fills, k)) {
      results.emplace_back(rows);
      continue;
    }
    Fill fill = kind == FillKind::undefined ? Fill::undefined() : fill_from_row(kind, fills[k].toTensor(), rows);
    results.emplace_back(make_tensor({pattern, rows, std::move(fill)}));
  }
  return call.give(std::move(results));
}

/// The op as something that a merge of two operands can do by itself, with the bits of torch's op.
std::optional<kernels::Combine> combination(const Call& call) {
  const std::string& name = call.schema().name();
  if (name == "aten::mul") {
    return kernels::Combine::multiply;
  }
  const bool adds = name == "aten::add" || name == "aten::sub";
  if (!adds || !call.has("alpha") || !call.arg("alpha").toScalar().equal(1)) {
    return std::nullopt;
  }
  return name == "aten::add" ? kernels::Combine::add : kernels::Combine::subtract;
}

/// Ops of one rounding, which have the same bits on every device.
bool is_exact(const Call& call) {
  const std::string& name = call.schema().name();
  return combination(call) || name == "aten::neg" || name == "aten::abs" || name == "aten::sqrt";
}

/// A function that is 0 somewhere is so on every device. Other results (airy_ai(0), and even hardsigmoid(0) in float64)
/// may differ between libraries.
bool is_zero(const at::Tensor& element) { return element.item().equal(0); }

/// What the fills make on the host, where it knows them all, values are elsewhere, and the device would make the same:
/// nothing waits for it.
std::vector<c10::IValue> fills_on_host(const Call& call, const Operands& operands,
                                       const std::vector<Components>& same) {
  std::size_t tensors = 0;
  call.each_tensor([&](const at::Tensor& t) { tensors += t.defined() ? 1 : 0; });
  if (tensors != same.size() || same.front().values.is_cpu()) {
    return {};
  }
  std::vector<at::Tensor> rows;
  for (const Components& c : same) {
    if (c.fill.kind != FillKind::scalar || !c.fill.number || needs_grad(c.fill.value)) {
      return {};
    }
    const auto number = at::scalar_tensor(fill_number(c), at::dtype(c.values.scalar_type()));
    rows.push_back(number.view(Dims(static_cast<std::size_t>(c.values.dim()), 1)));
  }
  auto made = call_on(call, operands, rows, {});
  const bool known = is_exact(call) || std::all_of(made.begin(), made.end(), [](const c10::IValue& value) {
                       return value.toTensor().numel() != 1 || is_zero(value.toTensor());
                     });
  return known ? made : std::vector<c10::IValue>{};
}

/// What the fills make. Where no element is one, an op may refuse them (integers divided by 0): then they are 0.
std::vector<c10::IValue> fills_or_none(const Call& call, const Operands& operands, const std::vector<at::Tensor>& rows,
                                       const std::vector<at::Tensor>& dense, const Aligned& aligned,
                                       const std::vector<c10::IValue>& values) {
  if (aligned.pattern->nse() < aligned.pattern->numel()) {
    return call_on(call, operands, rows, dense);
  }
  try {
    return call_on(call, operands, rows, dense);
  } catch (const c10::Error&) {
    std::vector<c10::IValue> none;
    for (const c10::IValue& value : values) {
      const at::Tensor t = value.toTensor();
      none.emplace_back(at::zeros(Dims(static_cast<std::size_t>(t.dim()), 1), t.options().requires_grad(false)));
    }
    return none;
  }
}

/// On one index set: op(values), op(fills). `dense` are strided operands that vary along dense dims only, as rows.
bool on_rows(Call& call, const Operands& operands, const std::vector<Components>& same, Join join,
             const std::vector<at::Tensor>& dense) {
  const FillKind kind = joint_kind(same, !dense.empty());
  std::optional<Aligned> combined;
  if (const auto with = dense.empty() ? combination(call) : std::nullopt) {
    combined = combine(same, join, *with);
  }
  std::vector<c10::IValue> values;
  const Aligned aligned = combined ? *combined : align(same, join);
  if (combined) {
    values.emplace_back(aligned.values.front());
  } else {
    values = call_on(call, operands, aligned.values, dense);
  }
  std::vector<c10::IValue> fills;
  if (kind != FillKind::undefined) {
    std::vector<at::Tensor> rows;
    const bool used = aligned.pattern->nse() < aligned.pattern->numel();
    const auto row_of = [&](const at::Tensor& t) { return used ? t : without_gradient(t); };
    for (const Components& c : same) {
      rows.push_back(row_of(fill_row(c)));
    }
    std::vector<at::Tensor> dense_rows;
    for (const at::Tensor& t : dense) {
      dense_rows.push_back(row_of(t));
    }
    fills = fills_on_host(call, operands, same);
    if (fills.empty()) {
      fills = fills_or_none(call, operands, rows, dense_rows, aligned, values);
    }
  }
  return give_rows(call, aligned.pattern, kind, values, fills);
}

/// Whether the fill stays 0 and entries beyond the intersection are 0 too, without a gradient.
bool intersects(const Operands& operands, Zero zero) {
  if (operands.sparse.size() != 2 || (zero != Zero::product && zero != Zero::conjunction)) {
    return false;
  }
  return zero_fill(operands.sparse[0]) && zero_fill(operands.sparse[1]) &&
         (zero == Zero::conjunction || all_finite({operands.sparse[0].values, operands.sparse[1].values}));
}

bool only_sparse(Call& call, const Operands& operands) {
  std::int64_t dense_dims = operands.sparse.front().dense_dim();
  bool same_split = true;
  for (const Components& c : operands.sparse) {
    same_split = same_split && c.pattern == operands.sparse.front().pattern && c.dense_dim() == dense_dims;
    dense_dims = std::min(dense_dims, c.dense_dim());
  }
  if (same_split) {
    return on_rows(call, operands, operands.sparse, Join::all, {});
  }
  const auto same = same_shape(operands.sparse, operands.shape, dense_dims);
  if (!same) {
    return Call::decline();
  }
  const bool both = intersects(operands, zero_rule(call.schema().name()));
  return on_rows(call, operands, *same, both ? Join::both : Join::all, {});
}

/// A strided operand with as many dims as the result.
at::Tensor unsqueezed(const at::Tensor& dense, std::size_t dims) {
  Dims shape(dims - static_cast<std::size_t>(dense.dim()), 1);
  shape.insert(shape.end(), dense.sizes().begin(), dense.sizes().end());
  return dense.reshape(shape);
}

/// The blocks of a strided operand at the entries of a pattern. It is never expanded, and so never its gradient.
at::Tensor rows_at(const at::Tensor& dense, const Pattern& pattern, std::size_t dims) {
  const at::Tensor full = unsqueezed(dense, dims);
  Dims sizes;
  std::vector<at::Tensor> indices;
  for (std::int64_t d = 0; d < pattern.dim(); ++d) {
    if (full.size(d) > 1 || (full.size(d) == 0)) {
      sizes.push_back(full.size(d));
      indices.push_back(pattern.indices().select(0, d));
    }
  }
  Dims blocks{product_of(sizes)};
  for (std::int64_t d = pattern.dim(); d < full.dim(); ++d) {
    blocks.push_back(full.size(d));
  }
  if (indices.empty()) {
    blocks[0] = 1;
    return full.reshape(blocks);
  }
  return full.reshape(blocks).index_select(0, index::linear_keys(at::stack(indices), sizes));
}

/// The fill of a result that is the same wherever no operand has an entry; nothing where it is not, or where a gradient
/// says otherwise.
std::optional<at::Tensor> constant_fill(const Call& call, const Operands& operands, Zero zero) {
  if (operands.dense_at.size() == 1 && operands.sparse.size() == 1 && zero != Zero::none &&
      zero_fill(operands.sparse.front()) && (zero != Zero::quotient || operands.sparse_at[0] == 0)) {
    const at::Tensor dense = call.tensor(operands.dense_at[0]);
    const bool stays = zero == Zero::conjunction ? true
                       : zero == Zero::product   ? all_finite(dense)
                                                 : all_true(at::logical_and(dense != 0, dense == dense));
    if (stays) {
      return at::zeros({}, dense.options());
    }
  }
  std::int64_t largest = 0;
  for (const std::size_t i : operands.dense_at) {
    if (needs_grad(call.tensor(i))) {
      return std::nullopt;
    }
    largest = std::max(largest, call.tensor(i).numel());
  }
  for (const Components& c : operands.sparse) {
    if (c.fill.kind != FillKind::scalar || needs_grad(c.fill.value)) {
      return std::nullopt;
    }
  }
  if (largest == 0 || largest >= product_of(operands.shape)) {
    return std::nullopt;
  }
  std::vector<at::Tensor> fills;
  for (const Components& c : operands.sparse) {
    fills.push_back(c.fill.value.reshape({1}));
  }
  const auto made = call_on(call, operands, fills, dense_operands(call, operands));
  const at::Tensor all = made.front().toTensor().reshape(-1);
  const at::Tensor one = all.select(0, 0);
  const bool constant =
      made.size() == 1 && all_true(at::logical_or(all == one, at::logical_and(all != all, one != one)));
  return constant ? std::optional<at::Tensor>(one.clone()) : std::nullopt;
}

/// Operands of what is overwritten at the entries: no gradient comes from there, not even 0 times an infinity.
std::vector<at::Tensor> beside_entries(std::vector<at::Tensor> operands, const Pattern& pattern, const Dims& shape) {
  if (std::none_of(operands.begin(), operands.end(), needs_grad)) {
    return operands;
  }
  Dims sizes(shape.size(), 1);
  std::copy_n(shape.begin(), static_cast<std::size_t>(pattern.dim()), sizes.begin());
  const auto entries = at::zeros({pattern.numel()}, operands.front().options().dtype(at::kBool).requires_grad(false))
                           .index_fill_(0, pattern.keys(), true)
                           .view(sizes);
  for (at::Tensor& t : operands) {
    t = needs_grad(t) ? at::where(entries, t.detach(), t) : t;
  }
  return operands;
}

/// What the fills make with the strided operands everywhere, overwritten where there are entries.
bool strided_result(Call& call, const Operands& operands, std::int64_t dense_dims) {
  const auto same = same_shape(operands.sparse, operands.shape, dense_dims);
  const Aligned aligned = align(*same, Join::all);
  std::vector<at::Tensor> dense, fills;
  for (const std::size_t i : operands.dense_at) {
    dense.push_back(rows_at(call.tensor(i), *aligned.pattern, operands.shape.size()));
  }
  for (const Components& c : operands.sparse) {
    fills.push_back(c.fill.value.reshape({1}));
  }
  const auto rows = call_on(call, operands, aligned.values, dense);
  check_dense_result(call.schema().name(), operands.shape, rows.front().toTensor().scalar_type());
  const auto bases = call_on(call, operands, beside_entries(std::move(fills), *aligned.pattern, operands.shape),
                             beside_entries(dense_operands(call, operands), *aligned.pattern, operands.shape));
  Dims blocks = rows.front().toTensor().sizes().vec();
  blocks[0] = aligned.pattern->numel();
  std::vector<c10::IValue> results;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (kept_aside(bases, k)) {
      results.emplace_back(bases[k]);
      continue;
    }
    const at::Tensor base = bases[k].toTensor().expand(operands.shape).clone(at::MemoryFormat::Contiguous).view(blocks);
    results.emplace_back(base.index_copy(0, aligned.pattern->keys(), rows[k].toTensor()).view(operands.shape));
  }
  return call.give(std::move(results));
}

/// Sparse operands and strided ones.
bool with_dense(Call& call, Operands& operands) {
  const std::size_t dims = operands.shape.size();
  std::int64_t dense_dims = operands.sparse.front().dense_dim();
  for (const Components& c : operands.sparse) {
    dense_dims = std::min(dense_dims, c.dense_dim());
  }
  const std::size_t sparse_dims = dims - static_cast<std::size_t>(dense_dims);
  bool blocks = true;
  for (const std::size_t i : operands.dense_at) {
    const at::Tensor wide = unsqueezed(call.tensor(i), dims);
    const auto sizes = wide.sizes().slice(0, sparse_dims);
    blocks = blocks && std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size == 1; });
  }
  std::vector<at::Tensor> dense;
  if (blocks) {
    const auto same = same_shape(operands.sparse, operands.shape, dense_dims);
    if (same) {
      for (const std::size_t i : operands.dense_at) {
        const at::Tensor full = unsqueezed(call.tensor(i), dims);
        Dims row{1};
        row.insert(row.end(), full.sizes().begin() + static_cast<std::ptrdiff_t>(sparse_dims), full.sizes().end());
        dense.push_back(full.reshape(row));
      }
      return on_rows(call, operands, *same, Join::all, dense);
    }
  }
  const FillKind kind = joint_kind(operands.sparse, false);
  std::optional<at::Tensor> constant;
  if (kind == FillKind::scalar) {
    constant = constant_fill(call, operands, zero_rule(call.schema().name()));
  }
  if (constant || kind == FillKind::undefined) {
    const auto same = same_shape(operands.sparse, operands.shape, dense_dims);
    if (same) {
      const Aligned aligned = align(*same, Join::all);
      for (const std::size_t i : operands.dense_at) {
        dense.push_back(rows_at(call.tensor(i), *aligned.pattern, dims));
      }
      const auto values = call_on(call, operands, aligned.values, dense);
      if (kind == FillKind::undefined) {
        return give_rows(call, aligned.pattern, kind, values, {});
      }
      const at::Tensor rows = values.front().toTensor();
      return call.give({aligned.pattern, rows, Fill::of(constant->to(rows.scalar_type()))});
    }
  }
  return kind == FillKind::scalar ? strided_result(call, operands, dense_dims) : Call::decline();
}

}  // namespace

namespace {

/// A small operand that would repeat its entries far more often than there are others, such as a vector along the last
/// dim of a large tensor, takes part as a strided one.
void spare_repetitions(Call& call, Operands& operands) {
  constexpr std::int64_t few = 1 << 12;
  std::int64_t entries = 0;
  for (const Components& c : operands.sparse) {
    entries += c.pattern->nse();
  }
  for (std::size_t k = operands.sparse.size(); k-- > 0 && operands.sparse.size() > 1;) {
    const Components& c = operands.sparse[k];
    const Dims own = c.shape();
    if (own == operands.shape || !c.has_fill()) {
      continue;
    }
    const double copies = static_cast<double>(product_of(operands.shape)) /
                          static_cast<double>(std::max<std::int64_t>(product_of(own), 1));
    if (copies * static_cast<double>(c.pattern->nse()) > static_cast<double>(8 * entries + few) &&
        product_of(own) <= entries + few) {
      const std::size_t place = operands.sparse_at[k];
      call.args[place] = densified(c);
      operands.dense_at.push_back(place);
      operands.sparse.erase(operands.sparse.begin() + static_cast<std::ptrdiff_t>(k));
      operands.sparse_at.erase(operands.sparse_at.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
}

}  // namespace

bool is_pointwise(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  const bool tensors = std::all_of(returns.begin(), returns.end(), [](const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::TensorType;
  });
  if (!tensors || op.hasTag(at::Tag::nondeterministic_seeded)) {
    return false;
  }
  return op.hasTag(at::Tag::pointwise) || untagged().contains(op.schema().name());
}

bool pointwise(Call& call) {
  Operands operands;
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    const c10::IValue& value = call.args[i];
    if (value.isTensorList() || value.isOptionalTensorList()) {
      return Call::decline();
    }
    if (!value.isTensor() || !value.toTensor().defined()) {
      continue;
    }
    const at::Tensor t = value.toTensor();
    if (is_sparse(t)) {
      if (t.dim() == 0 && components(t).has_fill()) {
        // A number: its place in type promotion is that of a 0-d tensor.
        call.args[i] = densified(components(t));
        continue;
      }
      operands.sparse_at.push_back(i);
      operands.sparse.push_back(without_duplicates(components(t)));
    } else if (t.dim() > 0) {
      operands.dense_at.push_back(i);
    } else {
      continue;
    }
    operands.shape = operands.shape.empty() && operands.sparse.size() + operands.dense_at.size() == 1
                         ? t.sizes().vec()
                         : at::infer_size(operands.shape, t.sizes());
  }
  if (operands.sparse.empty()) {
    return call.give(call.call(call.args));
  }
  spare_repetitions(call, operands);
  return operands.dense_at.empty() ? only_sparse(call, operands) : with_dense(call, operands);
}

}  // namespace lacewing::tensor
