// The ops of attention over edges on CPU, CUDA and Meta: from tensors to the kernels' arguments.
#include <cmath>

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "attention/calls.h"
#include "common/refuse_layouts.h"
#include "common/results.h"
#include "common/stream.h"
#include "kernels/edge_attention.h"
#include "structure/edge_views.h"

namespace lacewing::attention {
namespace {

constexpr const char* kForward = "edge_attention_heads";
constexpr const char* kBackward = "edge_attention_heads_backward";

/// A call whose tensors kernels can read: in one type, rows contiguous. Holds what was copied for that.
class Call {
 public:
  Call(const char* op, const Operands& in, const OptionalTensor& seed, const at::Tensor& edges,
       c10::SymIntArrayRef given, const Options& options, bool widens)
      : type_(widens ? at::toOpMathType(in.q.scalar_type()) : in.q.scalar_type()) {
    const EdgeSizes sizes = check_call(op, in, seed, edges, given, options);
    const auto known = [](const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); };
    check_memory(op, {{"q", in.q},
                      {"k", in.k},
                      {"v", in.v},
                      {"factor", in.factor.value_or(at::Tensor())},
                      {"bias", in.bias.value_or(at::Tensor())},
                      {"seed", seed.value_or(at::Tensor())},
                      {"edges", edges}});
    args.type = scalar_type(op, "q", type_);
    args.wide = known(sizes.wide) != 0;
    args.edges = known(sizes.edges);
    args.heads = in.q.size(1);
    args.pair_channels = in.q.dim() == 3 ? in.q.size(2) : -1;
    args.channels = in.v.size(2);
    args.q = rows(in.q);
    args.k = rows(in.k);
    args.v = rows(in.v);
    args.factor = numbers(in.factor);
    args.bias = numbers(in.bias);
    args.scale = options.scale;
    args.slope = options.slope;
    if (options.dropout > 0) {
      args.drop_below = drop_below(options.dropout);
      args.keep_scale = options.dropout < 1 ? 1 / (1 - options.dropout) : 0;
      args.seed = seed->const_data_ptr<std::int64_t>();
    }
    structure::EdgeViews views;
    views.edges = args.edges;
    views.wide = args.wide;
    views.map = {kernels::BatchMap::list, kernels::BatchMap::list};
    views.batch = {known(sizes.columns), known(sizes.rows)};
    views.sorted = known(sizes.sorted);
    TORCH_CHECK(edges.numel() == views.length() && edges.is_contiguous() &&
                    edges.scalar_type() == (views.wide ? at::kLong : at::kInt),
                "[lacewing.", op, "] sizes do not describe the edges, an array of ", edges.numel(), " integers");
    args.column = side(views, edges, 0);
    args.row = side(views, edges, 1);
  }

  /// (rows, heads[, channels]) as kernels read it.
  kernels::HeadRows rows(const at::Tensor& given) {
    at::Tensor tensor = given.to(type_);
    if (tensor.size(0) > 0 && !tensor.select(0, 0).is_contiguous()) {
      tensor = tensor.contiguous();
    }
    held_.push_back(tensor);
    return {tensor.const_data_ptr(), tensor.stride(0)};
  }

  /// A result in the type that the kernels write.
  at::Tensor result(at::IntArrayRef shape, const at::Tensor& like) const {
    return empty_result(shape, like.options().dtype(type_).requires_grad(false));
  }

  static std::uint64_t drop_below(double dropout) { return static_cast<std::uint64_t>(std::ldexp(dropout, 32)); }

  kernels::EdgeAttentionArgs args;

 private:
  kernels::EdgeNumbers numbers(const OptionalTensor& given) {
    if (!given) {
      return {};
    }
    // A tensor without elements has no memory, but is there.
    static constexpr double kNothing = 0;
    held_.push_back(given->to(type_));
    const at::Tensor& tensor = held_.back();
    return {tensor.numel() > 0 ? tensor.const_data_ptr() : &kNothing, tensor.stride(0), tensor.stride(1)};
  }

  static kernels::EdgeSide side(const structure::EdgeViews& views, const at::Tensor& edges, int role) {
    kernels::FormArgs form;
    const int roles[] = {role};
    views.read(edges.const_data_ptr(), role, roles, form);
    return {form.factor[0].list.data, form.edge_segments.data, form.edge_order.data,
            views.batch[static_cast<std::size_t>(role)]};
  }

  at::ScalarType type_;
  std::vector<at::Tensor> held_;
};

/// Space on the device that a kernel asks for; null for none.
at::Tensor space_for(std::int64_t bytes, const at::Tensor& like) {
  return bytes > 0 ? empty_result({bytes}, like.options().dtype(at::kByte).requires_grad(false)) : at::Tensor();
}
void* data_of(const at::Tensor& space) { return space.defined() ? space.mutable_data_ptr() : nullptr; }

OptionalTensor on_host(const OptionalTensor& tensor) { return tensor ? OptionalTensor(tensor->cpu()) : std::nullopt; }
Operands on_host(const Operands& in) {
  return {in.q.cpu(), in.k.cpu(), in.v.cpu(), on_host(in.factor), on_host(in.bias)};
}

/// The reference works on the host, in the tensors' own type; the tuned CPU kernels in the type of sums.
bool widens(const at::Tensor& q) { return q.is_cpu() && backend() != Backend::reference; }

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const OptionalTensor& factor, const OptionalTensor& bias,
                                           const OptionalTensor& seed, const at::Tensor& edges,
                                           c10::SymIntArrayRef sizes, double scale, double slope, double dropout) {
  if (backend() == Backend::reference && !q.is_cpu()) {
    const Operands host = on_host({q, k, v, factor, bias});
    const auto [out, lse] = forward(host.q, host.k, host.v, host.factor, host.bias, on_host(seed), edges.cpu(), sizes,
                                    scale, slope, dropout);
    return {out.to(q.device()), lse.to(q.device())};
  }
  const c10::DeviceGuard guard(q.device());
  const Call call(kForward, {q, k, v, factor, bias}, seed, edges, sizes, {scale, slope, dropout}, widens(q));
  const kernels::EdgeAttentionArgs& args = call.args;
  const at::Tensor out = call.result({args.row.rows, args.heads, args.channels}, v);
  const at::Tensor lse = empty_result({args.row.rows, args.heads},
                                      v.options().dtype(at::toOpMathType(v.scalar_type())).requires_grad(false));
  const kernels::EdgeAttentionForward work{args, out.mutable_data_ptr(), lse.mutable_data_ptr()};
  if (backend() == Backend::reference) {
    kernels::reference::edge_attention(work);
  } else if (q.is_cuda()) {
    const at::Tensor space = space_for(kernels::cuda::edge_attention_workspace(args), v);
    kernels::cuda::edge_attention(work, current_stream(q.device()), data_of(space));
  } else {
    kernels::cpu::edge_attention(work, torch_executor());
  }
  return {out.to(v.scalar_type()), lse};
}

/// The shape of a gradient: its operand's.
const at::Tensor& operand_at(const Operands& in, std::int64_t place) {
  const auto check = [&](bool given) {
    TORCH_CHECK(given, "[lacewing.", kBackward, "] wanted[...] = ", place,
                " names no argument: 0 to 4 are q, k, v, factor and bias, where they are given");
  };
  check(place >= 0 && place <= 4);
  check(place < 3 || (place == 3 ? in.factor.has_value() : in.bias.has_value()));
  return place == 0 ? in.q : place == 1 ? in.k : place == 2 ? in.v : place == 3 ? *in.factor : *in.bias;
}

void check_upstream(const Operands& in, const EdgeSizes& sizes, const at::Tensor& grad, const at::Tensor& lse,
                    const at::Tensor& delta) {
  const c10::SymInt heads = in.q.sym_size(1);
  const c10::SymInt shape[] = {sizes.rows, heads, in.v.sym_size(2)};
  const auto check = [&](const char* argument, const at::Tensor& tensor, at::ScalarType type,
                         c10::SymIntArrayRef expected) {
    TORCH_CHECK(tensor.dim() == static_cast<std::int64_t>(expected.size()) && tensor.sym_sizes() == expected &&
                    tensor.scalar_type() == type && tensor.device() == in.q.device(),
                "[lacewing.", kBackward, "] ", argument, " must have shape ", shape_text(expected), ", dtype ",
                dtype_text(type), " and be on ", in.q.device(), ", not ", shape_text(tensor.sym_sizes()), ", ",
                dtype_text(tensor.scalar_type()), ", ", tensor.device());
  };
  const at::ScalarType wide = at::toOpMathType(in.q.scalar_type());
  check("grad", grad, in.q.scalar_type(), shape);
  check("lse", lse, wide, c10::SymIntArrayRef(shape, 2));
  check("delta", delta, wide, c10::SymIntArrayRef(shape, 2));
}

std::vector<at::Tensor> backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const OptionalTensor& factor, const OptionalTensor& bias, const OptionalTensor& seed,
                                 const at::Tensor& grad, const at::Tensor& lse, const at::Tensor& delta,
                                 const at::Tensor& edges, c10::SymIntArrayRef sizes, double scale, double slope,
                                 double dropout, at::IntArrayRef wanted) {
  const Operands in{q, k, v, factor, bias};
  if (backend() == Backend::reference && !q.is_cpu()) {
    const Operands host = on_host(in);
    std::vector<at::Tensor> gradients =
        backward(host.q, host.k, host.v, host.factor, host.bias, on_host(seed), grad.cpu(), lse.cpu(), delta.cpu(),
                 edges.cpu(), sizes, scale, slope, dropout, wanted);
    for (at::Tensor& gradient : gradients) {
      gradient = gradient.to(q.device());
    }
    return gradients;
  }
  const c10::DeviceGuard guard(q.device());
  Call call(kBackward, in, seed, edges, sizes, {scale, slope, dropout}, widens(q));
  check_upstream(in, EdgeSizes::from(kBackward, sizes), grad, lse, delta);
  check_memory(kBackward, {{"grad", grad}, {"lse", lse}, {"delta", delta}});
  const at::Tensor own_lse = lse.contiguous();
  const at::Tensor own_delta = delta.contiguous();
  kernels::EdgeAttentionBackward work;
  work.grad = call.rows(grad);
  work.of = call.args;
  work.lse = own_lse.const_data_ptr();
  work.delta = own_delta.const_data_ptr();
  void** const places[] = {&work.of_q, &work.of_k, &work.of_v, &work.of_factor, &work.of_bias};
  std::vector<at::Tensor> gradients;
  for (const std::int64_t place : wanted) {
    const at::Tensor& operand = operand_at(in, place);
    gradients.push_back(call.result(operand.sizes(), operand));
    *places[place] = gradients.back().mutable_data_ptr();
  }
  if (backend() == Backend::reference) {
    kernels::reference::edge_attention_backward(work);
  } else if (q.is_cuda()) {
    const at::Tensor space = space_for(kernels::cuda::edge_attention_backward_workspace(work), v);
    kernels::cuda::edge_attention_backward(work, current_stream(q.device()), data_of(space));
  } else {
    kernels::cpu::edge_attention_backward(work, torch_executor());
  }
  for (at::Tensor& gradient : gradients) {
    gradient = gradient.to(q.scalar_type());
  }
  return gradients;
}

std::tuple<at::Tensor, at::Tensor> forward_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const OptionalTensor& factor, const OptionalTensor& bias,
                                                const OptionalTensor& seed, const at::Tensor& edges,
                                                c10::SymIntArrayRef sizes, double scale, double slope, double dropout) {
  const EdgeSizes known = check_call(kForward, {q, k, v, factor, bias}, seed, edges, sizes, {scale, slope, dropout});
  return {at::empty_symint({known.rows, q.sym_size(1), v.sym_size(2)}, v.options()),
          at::empty_symint({known.rows, q.sym_size(1)}, v.options().dtype(at::toOpMathType(v.scalar_type())))};
}

std::vector<at::Tensor> backward_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const OptionalTensor& factor, const OptionalTensor& bias,
                                      const OptionalTensor& seed, const at::Tensor& grad, const at::Tensor& lse,
                                      const at::Tensor& delta, const at::Tensor& edges, c10::SymIntArrayRef sizes,
                                      double scale, double slope, double dropout, at::IntArrayRef wanted) {
  const Operands in{q, k, v, factor, bias};
  check_upstream(in, check_call(kBackward, in, seed, edges, sizes, {scale, slope, dropout}), grad, lse, delta);
  std::vector<at::Tensor> gradients;
  for (const std::int64_t place : wanted) {
    gradients.push_back(at::empty_symint(operand_at(in, place).sym_sizes(), q.options()));
  }
  return gradients;
}

at::Tensor dropout(const at::Tensor& seed, std::int64_t edges, std::int64_t heads, double rate, at::ScalarType dtype) {
  check_memory("edge_dropout", "seed", seed);
  const c10::DeviceGuard guard(seed.device());
  const at::Tensor keep = at::empty({edges, heads}, seed.options().dtype(dtype));
  const kernels::EdgeDropout args{
      *find_scalar_type(dtype),           edges, heads, Call::drop_below(rate), rate < 1 ? 1 / (1 - rate) : 0,
      seed.const_data_ptr<std::int64_t>()};
  if (seed.is_cuda()) {
    kernels::cuda::edge_dropout(args, keep.mutable_data_ptr(), current_stream(seed.device()));
  } else {
    kernels::reference::edge_dropout(args, keep.mutable_data_ptr());
  }
  return keep;
}

at::Tensor dropout_meta(const at::Tensor& seed, c10::SymInt edges, c10::SymInt heads, double /*rate*/,
                        at::ScalarType dtype) {
  return at::empty_symint({std::move(edges), std::move(heads)}, seed.options().dtype(dtype));
}

void register_device(torch::Library& m) {
  m.impl("edge_attention_heads", forward);
  m.impl("edge_attention_heads_backward", backward);
  m.impl("edge_dropout", dropout);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(m,
                  "edge_attention_heads(Tensor q, Tensor k, Tensor v, Tensor? factor, Tensor? bias, Tensor? seed, "
                  "Tensor edges, SymInt[] sizes, float scale, float slope, float dropout) -> (Tensor, Tensor)");
  define_dense_op(m,
                  "edge_attention_heads_backward(Tensor q, Tensor k, Tensor v, Tensor? factor, Tensor? bias, Tensor? "
                  "seed, Tensor grad, Tensor lse, Tensor delta, Tensor edges, SymInt[] sizes, float scale, float "
                  "slope, float dropout, int[] wanted) -> Tensor[]");
  define_dense_op(m,
                  "edge_dropout(Tensor seed, SymInt edges, SymInt heads, float dropout, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) { register_device(m); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { register_device(m); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("edge_attention_heads", forward_meta);
  m.impl("edge_attention_heads_backward", backward_meta);
  m.impl("edge_dropout", dropout_meta);
}

}  // namespace lacewing::attention
