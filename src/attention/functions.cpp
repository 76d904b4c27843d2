// The public op, made of edge_attention_heads at every key: leading batch dims become heads.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/randint.h>
#include <torch/library.h>

#include <lacewing/attention.h>
#include <lacewing/dispatch/torch.h>

#include "attention/calls.h"
#include "common/refuse_layouts.h"

namespace lacewing {
namespace attention {
namespace {

constexpr const char* kOp = "edge_attention";

using PublicSignature = at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const OptionalTensor& factor, const OptionalTensor& bias, const OptionalTensor& seed,
                                   const at::Tensor& edges, c10::SymIntArrayRef sizes, std::string_view maps,
                                   std::optional<double> scale, std::optional<double> negative_slope, double dropout);

constexpr double kGatSlope = 0.2;

/// The batch of a call: the leading dims of v, in front of (columns, heads, channels).
class Batch {
 public:
  explicit Batch(const at::Tensor& v) {
    TORCH_CHECK(v.dim() >= 3, "[lacewing.", kOp, "] v must have shape ([batch], columns, heads, channels), not ",
                shape_text(v.sym_sizes()));
    const auto sizes = v.sym_sizes();
    sizes_.assign(sizes.begin(), sizes.end() - 3);
    heads_ = sizes[sizes.size() - 2];
  }

  std::int64_t dims() const { return static_cast<std::int64_t>(sizes_.size()); }
  const c10::SymInt& heads() const { return heads_; }

  /// ([batch], rows, heads, ...) has this batch, rows and heads.
  void check(const char* argument, const at::Tensor& tensor, const c10::SymInt& rows, const char* what) const {
    const auto sizes = tensor.sym_sizes();
    const std::size_t at = sizes_.size();
    TORCH_CHECK(std::equal(sizes_.begin(), sizes_.end(), sizes.begin()) && sizes[at + 1] == heads_, "[lacewing.", kOp,
                "] ", argument, " of shape ", shape_text(sizes), " does not fit v: it has ", heads_,
                " heads and the batch ", shape_text(c10::SymIntArrayRef(sizes_)));
    TORCH_CHECK(sizes[at] == rows, "[lacewing.", kOp, "] ", argument, " of shape ", shape_text(sizes), " has ",
                sizes[at], " ", what, ", but the edges were built for ", rows);
  }

  /// ([batch], rows, heads, ...) as (rows, batch * heads, ...).
  at::Tensor fold(const at::Tensor& tensor) const {
    if (sizes_.empty()) {
      return tensor;
    }
    const at::Tensor moved = tensor.movedim(dims(), 0);
    std::vector<c10::SymInt> shape{moved.sym_size(0), heads_};
    for (const c10::SymInt& size : sizes_) {
      shape[1] = shape[1] * size;
    }
    const auto rest = moved.sym_sizes().slice(sizes_.size() + 2);
    shape.insert(shape.end(), rest.begin(), rest.end());
    return moved.reshape_symint(shape);
  }

  at::Tensor unfold(const at::Tensor& tensor) const {
    if (sizes_.empty()) {
      return tensor;
    }
    std::vector<c10::SymInt> shape{tensor.sym_size(0)};
    shape.insert(shape.end(), sizes_.begin(), sizes_.end());
    shape.push_back(heads_);
    shape.push_back(tensor.sym_size(2));
    return tensor.view_symint(shape).movedim(0, dims());
  }

  /// Numbers of edges, (edges,), or broadcast to ([batch], edges, heads).
  OptionalTensor numbers(const char* argument, const OptionalTensor& given, const c10::SymInt& edges) const {
    if (!given) {
      return std::nullopt;
    }
    const at::Tensor column = given->dim() == 1 ? given->unsqueeze(1) : *given;
    const auto sizes = column.sym_sizes();
    std::vector<c10::SymInt> shape = sizes_;
    shape.push_back(edges);
    shape.push_back(heads_);
    bool fits = column.dim() >= 2 && sizes.size() <= shape.size() && sizes[sizes.size() - 2] == edges;
    for (std::size_t d = 1; fits && d <= sizes.size(); ++d) {
      fits = sizes[sizes.size() - d] == shape[shape.size() - d] || (d != 2 && sizes[sizes.size() - d] == 1);
    }
    TORCH_CHECK(fits, "[lacewing.", kOp, "] ", argument, " must have shape (", edges,
                ",) for the edges, or one that broadcasts to ", shape_text(c10::SymIntArrayRef(shape)), ", not ",
                shape_text(given->sym_sizes()));
    return fold(column.expand_symint(shape));
  }

 private:
  std::vector<c10::SymInt> sizes_;
  c10::SymInt heads_;
};

/// The dtype of all floating point operands together.
at::ScalarType common_type(const Operands& in) {
  at::native::ResultTypeState state;
  const auto add = [&](const char* argument, const at::Tensor& tensor) {
    check_float(kOp, argument, tensor);
    state = at::native::update_result_type_state(tensor, state);
  };
  add("q", in.q);
  add("k", in.k);
  add("v", in.v);
  for (const auto& [argument, numbers] : {std::pair("factor", &in.factor), std::pair("bias", &in.bias)}) {
    if (*numbers) {
      add(argument, **numbers);
    }
  }
  return at::native::result_type(state);
}

at::Tensor edge_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& factor,
                          const OptionalTensor& bias, const OptionalTensor& seed, const at::Tensor& edges,
                          c10::SymIntArrayRef given_sizes, std::string_view maps, std::optional<double> scale,
                          std::optional<double> negative_slope, double dropout) {
  check_dense(kOp, {{"q", q},
                    {"k", k},
                    {"v", v},
                    {"factor", factor.value_or(at::Tensor())},
                    {"bias", bias.value_or(at::Tensor())},
                    {"seed", seed.value_or(at::Tensor())},
                    {"edges", edges}});
  TORCH_CHECK(maps == "@@", "[lacewing.", kOp,
              "] edges must be Edges(maps=(source,), out=destination): one list of columns and one of rows");
  const EdgeSizes sizes = EdgeSizes::from(kOp, given_sizes);
  const at::ScalarType type = common_type({q, k, v, factor, bias});
  const Batch batch(v);
  const bool dot = q.dim() == v.dim();
  TORCH_CHECK(dot || q.dim() == v.dim() - 1, "[lacewing.", kOp,
              "] q must have shape ([batch], rows, heads, channels) or ([batch], rows, heads) beside v of shape ",
              shape_text(v.sym_sizes()), ", not ", shape_text(q.sym_sizes()));
  TORCH_CHECK(k.dim() == q.dim() && (!dot || k.sym_size(-1) == q.sym_size(-1)), "[lacewing.", kOp, "] k of shape ",
              shape_text(k.sym_sizes()), " does not fit q of shape ", shape_text(q.sym_sizes()),
              ": both have channels, equally many, or neither");
  batch.check("q", q, sizes.rows, "rows");
  batch.check("k", k, sizes.columns, "rows");
  batch.check("v", v, sizes.columns, "rows");
  TORCH_CHECK(dot || !scale, "[lacewing.", kOp, "] scale is that of dot products, but q and k have no channels");
  Options options{1, negative_slope.value_or(dot ? 1 : kGatSlope), dropout};
  if (dot) {
    // Channels may be symbolic: their number becomes a constant of what is compiled.
    const std::int64_t channels = scale ? 1 : q.sym_size(-1).guard_int(__FILE__, __LINE__);
    options.scale = scale.value_or(channels > 0 ? 1 / std::sqrt(static_cast<double>(channels)) : 1);
  }
  check_options(kOp, options);
  OptionalTensor number = dropout > 0 ? seed : std::nullopt;
  if (dropout > 0 && !number) {
    number = at::randint(std::numeric_limits<std::int64_t>::max(), {}, v.options().dtype(at::kLong));
  }
  const auto in_type = [&](const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(tensor->to(type)) : std::nullopt;
  };
  const auto [out, lse] = forward_op().call(batch.fold(q.to(type)), batch.fold(k.to(type)), batch.fold(v.to(type)),
                                            in_type(batch.numbers("factor", factor, sizes.edges)),
                                            in_type(batch.numbers("bias", bias, sizes.edges)), number, edges,
                                            given_sizes, options.scale, options.slope, options.dropout);
  return batch.unfold(out);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def(
      "edge_attention(Tensor q, Tensor k, Tensor v, Tensor? factor, Tensor? bias, Tensor? seed, Tensor edges, SymInt[] "
      "sizes, str maps, float? scale, float? negative_slope, float dropout) -> Tensor",
      edge_attention);
}

}  // namespace attention

at::Tensor edge_attention(const Edges& edges, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const EdgeAttentionOptions& options) {
  const std::vector<c10::SymInt> sizes(edges.sizes.begin(), edges.sizes.end());
  return typed_op<"edge_attention", attention::PublicSignature>().call(
      q, k, v, options.factor, options.bias, options.seed, edges.array, sizes, edges.maps, options.scale,
      options.negative_slope, options.dropout);
}

}  // namespace lacewing
