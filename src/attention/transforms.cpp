// vmap of attention over edges: what is mapped is more heads. Under dropout, whose numbers are those of edge and head,
// one after the other: each item of the batch is what it would be by itself. Autocast: q, k, v and the numbers of edges
// in its dtype, as torch's attention takes them.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "attention/calls.h"
#include "common/batched.h"

namespace lacewing::attention {
namespace {

/// The tensors of a call at one level of vmap.
class Mapped {
 public:
  explicit Mapped(std::vector<at::Tensor> given) : scope_{at::TensorList(given)} {
    for (const at::Tensor& tensor : given) {
      tensors_.push_back(scope_.unwrap(tensor));
      if (tensors_.back().batched) {
        size_ = tensors_.back().value.sym_size(0);
      }
    }
  }

  /// What op(tensors) gives for the whole batch, with the batch of each result wrapped.
  template <typename Op>
  std::vector<at::Tensor> run(bool one_by_one, Op&& op) const {
    std::vector<at::Tensor> results = one_by_one ? each(op) : as_heads(op);
    for (at::Tensor& result : results) {
      result = scope_.wrap(result, one_by_one ? 0 : 1);
    }
    return results;
  }

 private:
  template <typename Op>
  std::vector<at::Tensor> as_heads(Op&& op) const {
    std::vector<at::Tensor> folded;
    for (const Batched& tensor : tensors_) {
      folded.push_back(fold(tensor));
    }
    std::vector<at::Tensor> results = op(folded);
    for (at::Tensor& result : results) {
      c10::SymDimVector shape(result.sym_sizes().begin(), result.sym_sizes().end());
      const c10::SymInt heads = shape[1] / size_;
      shape[1] = heads;
      shape.insert(shape.begin() + 1, size_);
      result = result.view_symint(shape);
    }
    return results;
  }

  /// (rows or edges, batch * heads, ...); numbers without dims stay as they are.
  at::Tensor fold(const Batched& tensor) const {
    if (!tensor.value.defined() || tensor.value.dim() < 2) {
      return tensor.value;
    }
    at::Tensor rows;
    if (tensor.batched) {
      rows = tensor.value.movedim(0, 1);
    } else {
      rows = tensor.value.unsqueeze(1);
      c10::SymDimVector shape(rows.sym_sizes().begin(), rows.sym_sizes().end());
      shape[1] = size_;
      rows = rows.expand_symint(shape);
    }
    c10::SymDimVector shape(rows.sym_sizes().begin(), rows.sym_sizes().end());
    shape[1] = shape[1] * shape[2];
    shape.erase(shape.begin() + 2);
    return rows.reshape_symint(shape);
  }

  template <typename Op>
  std::vector<at::Tensor> each(Op&& op) const {
    const std::int64_t count = size_.guard_int(__FILE__, __LINE__);
    std::vector<std::vector<at::Tensor>> parts;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(count, 1); ++i) {
      std::vector<at::Tensor> one;
      for (const Batched& tensor : tensors_) {
        one.push_back(tensor.value.defined() ? tensor.at(i) : tensor.value);
      }
      std::vector<at::Tensor> results = op(one);
      parts.resize(results.size());
      for (std::size_t r = 0; r < results.size(); ++r) {
        parts[r].push_back(std::move(results[r]));
      }
    }
    std::vector<at::Tensor> stacked;
    for (const std::vector<at::Tensor>& part : parts) {
      stacked.push_back(at::stack(part).narrow(0, 0, count));
    }
    return stacked;
  }

  BatchScope scope_;
  std::vector<Batched> tensors_;
  c10::SymInt size_ = 1;
};

OptionalTensor optional(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

std::vector<at::Tensor> tensors_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const OptionalTensor& factor, const OptionalTensor& bias,
                                   const OptionalTensor& seed) {
  return {q, k, v, factor.value_or(at::Tensor()), bias.value_or(at::Tensor()), seed.value_or(at::Tensor())};
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const OptionalTensor& factor, const OptionalTensor& bias,
                                           const OptionalTensor& seed, const at::Tensor& edges,
                                           c10::SymIntArrayRef sizes, double scale, double slope, double dropout) {
  const Mapped mapped(tensors_of(q, k, v, factor, bias, seed));
  const auto results = mapped.run(dropout > 0, [&](const std::vector<at::Tensor>& t) {
    auto [out, lse] = forward_op().call(t[0], t[1], t[2], optional(t[3]), optional(t[4]), optional(t[5]), edges, sizes,
                                        scale, slope, dropout);
    return std::vector<at::Tensor>{out, lse};
  });
  return {results[0], results[1]};
}

std::vector<at::Tensor> backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const OptionalTensor& factor, const OptionalTensor& bias, const OptionalTensor& seed,
                                 const at::Tensor& grad, const at::Tensor& lse, const at::Tensor& delta,
                                 const at::Tensor& edges, c10::SymIntArrayRef sizes, double scale, double slope,
                                 double dropout, at::IntArrayRef wanted) {
  std::vector<at::Tensor> given = tensors_of(q, k, v, factor, bias, seed);
  given.insert(given.end(), {grad, lse, delta});
  return Mapped(given).run(dropout > 0, [&](const std::vector<at::Tensor>& t) {
    return backward_op().call(t[0], t[1], t[2], optional(t[3]), optional(t[4]), optional(t[5]), t[6], t[7], t[8], edges,
                              sizes, scale, slope, dropout, wanted);
  });
}

template <c10::DeviceType device>
std::tuple<at::Tensor, at::Tensor> autocast(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const OptionalTensor& factor, const OptionalTensor& bias,
                                            const OptionalTensor& seed, const at::Tensor& edges,
                                            c10::SymIntArrayRef sizes, double scale, double slope, double dropout) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const at::Tensor& tensor) { return at::autocast::cached_cast(type, tensor, device); };
  const auto cast_some = [&](const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(cast(*tensor)) : std::nullopt;
  };
  return forward_op().call(cast(q), cast(k), cast(v), cast_some(factor), cast_some(bias), seed, edges, sizes, scale,
                           slope, dropout);
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) {
  m.impl("edge_attention_heads", forward);
  m.impl("edge_attention_heads_backward", backward);
}

TORCH_LIBRARY_IMPL(lacewing, AutocastCPU, m) { m.impl("edge_attention_heads", autocast<c10::DeviceType::CPU>); }
TORCH_LIBRARY_IMPL(lacewing, AutocastCUDA, m) { m.impl("edge_attention_heads", autocast<c10::DeviceType::CUDA>); }

}  // namespace lacewing::attention
