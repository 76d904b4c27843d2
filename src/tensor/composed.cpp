// Ops that other ops make up, where torch's own composition is not one: each part comes back to the rules.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/linalg_multi_dot.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/tensordot.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "tensor/call.h"
#include "tensor/construct.h"
#include "tensor/densify.h"

namespace lacewing::tensor {
namespace {

at::Tensor reduced_loss(const Call& call, const at::Tensor& loss) {
  const std::int64_t reduction = call.integer("reduction");
  return reduction == at::Reduction::Mean ? loss.mean() : reduction == at::Reduction::Sum ? loss.sum() : loss;
}

bool same_float(const Call& call) {
  return call.tensor(0).scalar_type() == call.tensor(1).scalar_type() &&
         at::isFloatingType(call.tensor(0).scalar_type()) && call.tensor(0).dim() > 0;
}

bool mse_loss(Call& call) {
  if (!same_float(call)) {
    return Call::decline();
  }
  const at::Tensor difference = call.tensor(0) - call.tensor(1);
  return call.give(reduced_loss(call, difference * difference));
}

/// smooth_l1_loss (divided by beta) and huber_loss: a parabola near 0, a line beyond.
bool smooth_loss(Call& call) {
  if (!same_float(call)) {
    return Call::decline();
  }
  const bool huber = call.has("delta");
  const double edge = call.arg(huber ? "delta" : "beta").toDouble();
  const at::Tensor difference = call.tensor(0) - call.tensor(1);
  const at::Tensor size = difference.abs();
  if (edge == 0) {
    return huber ? Call::decline() : call.give(reduced_loss(call, size));
  }
  const at::Tensor near = difference * difference * (huber ? 0.5 : 0.5 / edge);
  const at::Tensor far = (size - 0.5 * edge) * (huber ? edge : 1.0);
  return call.give(reduced_loss(call, at::where(size < edge, near, far)));
}

bool soft_margin_loss(Call& call) {
  return same_float(call) ? call.give(reduced_loss(call, at::log1p((call.tensor(0) * call.tensor(1)).neg().exp())))
                          : Call::decline();
}

bool cross_entropy_with_logits(Call& call) {
  if (!same_float(call)) {
    return Call::decline();
  }
  const at::Tensor x = call.tensor(0);
  const at::Tensor target = call.tensor(1);
  at::Tensor log = at::log_sigmoid(x);
  if (!call.arg("pos_weight").isNone()) {
    log = log * ((call.arg("pos_weight").toTensor() - 1) * target + 1);
  }
  at::Tensor loss = (1 - target) * x - log;
  if (!call.arg("weight").isNone()) {
    loss = loss * call.arg("weight").toTensor();
  }
  return call.give(reduced_loss(call, loss));
}

bool dist(Call& call) {
  return call.give(at::linalg_vector_norm(call.tensor(0) - call.tensor(1), call.arg("p").toScalar()));
}

bool norm(Call& call) {
  const at::Scalar p = call.arg("p").isNone() ? at::Scalar(2) : call.arg("p").toScalar();
  if (!call.has("dim")) {
    return call.give(at::linalg_vector_norm(call.tensor(0), p));
  }
  return call.give(at::linalg_vector_norm(call.tensor(0), p, call.arg("dim").toIntVector(), call.flag("keepdim")));
}

bool trace(Call& call) {
  TORCH_CHECK(call.tensor(0).dim() == 2, "trace: expected a matrix, but got tensor with dim ", call.tensor(0).dim());
  return call.give(call.tensor(0).diagonal().sum());
}

bool narrow_copy(Call& call) {
  const at::Tensor t = call.tensor(0);
  if (t.dim() == 0) {
    return Call::decline();
  }
  return call.give(t.narrow(call.integer("dim"), call.integer("start"), call.integer("length")));
}

bool glu(Call& call) {
  const at::Tensor t = call.tensor(0);
  if (t.dim() == 0) {
    return Call::decline();
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), t.dim());
  const std::int64_t half = t.size(dim) / 2;
  if (2 * half != t.size(dim)) {
    return Call::decline();
  }
  return call.give(t.narrow(dim, 0, half) * t.narrow(dim, half, half).sigmoid());
}

bool equal(Call& call) {
  const at::Tensor a = call.tensor(0);
  const at::Tensor b = call.tensor(1);
  if (a.scalar_type() != b.scalar_type()) {
    return Call::decline();
  }
  return call.give({c10::IValue(a.sizes() == b.sizes() && !a.ne(b).any().item<bool>())});
}

bool allclose(Call& call) {
  const at::Tensor close = at::isclose(call.tensor(0), call.tensor(1), call.arg("rtol").toDouble(),
                                       call.arg("atol").toDouble(), call.flag("equal_nan"));
  return call.give({c10::IValue(close.all().item<bool>())});
}

/// item(): the number that a tensor of one element is.
bool number(Call& call) {
  const Components c = coalesced(call.sparse());
  if (!c.has_fill() || product_of(c.shape()) != 1) {
    return Call::decline();
  }
  return call.give({c10::IValue((c.pattern->nse() > 0 ? c.values : c.fill.value).item())});
}

/// Ops of each element alone whose other arguments are tables: isin, bucketize.
bool by_table(Call& call) {
  if (!call.is_sparse_at(0) || call.is_sparse_at(1)) {
    return Call::decline();
  }
  const Components c = coalesced(call.sparse());
  const auto on = [&](const at::Tensor& t) {
    std::vector<c10::IValue> args = call.args;
    args[0] = t;
    return call.call(std::move(args)).front().toTensor();
  };
  return call.give(c.with(on(c.values), c.has_fill() ? on(c.fill.value) : at::Tensor()));
}

/// Distinct elements: of the entries, and the fill where an element lacks one.
bool unique(Call& call) {
  const Components c = coalesced(call.sparse());
  const std::int64_t missing = product_of(c.shape()) - c.values.numel();
  if (c.fill.kind != FillKind::scalar || call.flag("return_inverse") || c.dim() == 0 ||
      c.fill.value.ne(c.fill.value).item<bool>()) {
    return Call::decline();
  }
  at::Tensor elements = c.values.reshape(-1);
  if (missing > 0) {
    elements = at::cat({elements, c.fill.value.reshape(1)});
  }
  auto [found, inverse, counts] =
      at::_unique2(elements, call.flag("sorted"), /*return_inverse=*/true, call.flag("return_counts"));
  if (missing > 0 && call.flag("return_counts")) {
    counts = counts.index_add(0, inverse.slice(0, -1), at::full({1}, missing - 1, counts.options()));
  }
  return call.give({c10::IValue(found), c10::IValue(at::empty({0}, inverse.options())), c10::IValue(counts)});
}

/// The last three dims (channels, height, width) of an image.
struct Image {
  Dims lead;
  std::int64_t channels, height, width;

  explicit Image(const at::Tensor& t)
      : lead(t.sizes().begin(), t.sizes().end() - 3), channels(t.size(-3)), height(t.size(-2)), width(t.size(-1)) {}
  Dims shape(std::initializer_list<std::int64_t> tail) const {
    Dims result = lead;
    result.insert(result.end(), tail.begin(), tail.end());
    return result;
  }
  /// Lead dims stay, the others in the order given (counted from behind the lead).
  Dims order(std::initializer_list<std::int64_t> tail) const {
    Dims result = all_dims(static_cast<std::int64_t>(lead.size()));
    for (const std::int64_t d : tail) {
      result.push_back(static_cast<std::int64_t>(lead.size()) + d);
    }
    return result;
  }
};

bool pixel_shuffle(Call& call) {
  const at::Tensor t = call.tensor(0);
  const bool shuffle = call.schema().name() == "aten::pixel_shuffle";
  const std::int64_t r = call.integer(shuffle ? "upscale_factor" : "downscale_factor");
  if (t.dim() < 3 || t.numel() == 0 || r <= 0) {
    return Call::decline();
  }
  const Image i(t);
  if (shuffle) {
    if (i.channels % (r * r) != 0) {
      return Call::decline();
    }
    const std::int64_t channels = i.channels / (r * r);
    return call.give(t.reshape(i.shape({channels, r, r, i.height, i.width}))
                         .permute(i.order({0, 3, 1, 4, 2}))
                         .reshape(i.shape({channels, i.height * r, i.width * r})));
  }
  if (i.height % r != 0 || i.width % r != 0) {
    return Call::decline();
  }
  return call.give(t.reshape(i.shape({i.channels, i.height / r, r, i.width / r, r}))
                       .permute(i.order({0, 2, 4, 1, 3}))
                       .reshape(i.shape({i.channels * r * r, i.height / r, i.width / r})));
}

bool channel_shuffle(Call& call) {
  const at::Tensor t = call.tensor(0);
  const std::int64_t groups = call.integer("groups");
  if (t.dim() < 3 || groups <= 0 || t.size(1) % groups != 0 || t.numel() == 0) {
    return Call::decline();
  }
  Dims shape{t.size(0), groups, t.size(1) / groups};
  shape.insert(shape.end(), t.sizes().begin() + 2, t.sizes().end());
  return call.give(t.reshape(shape).transpose(1, 2).reshape(t.sizes()));
}

bool rot90(Call& call) {
  const at::Tensor t = call.tensor(0);
  const Dims dims = call.arg("dims").toIntVector();
  if (dims.size() != 2 || t.dim() < 2) {
    return Call::decline();
  }
  const std::int64_t a = wrap_dim(dims[0], t.dim());
  const std::int64_t b = wrap_dim(dims[1], t.dim());
  if (a == b) {
    return Call::decline();
  }
  switch ((call.integer("k") % 4 + 4) % 4) {
    case 1: return call.give(t.flip({b}).transpose(a, b));
    case 2: return call.give(t.flip({a, b}));
    case 3: return call.give(t.flip({a}).transpose(a, b));
    default: return call.give(t.clone());
  }
}

bool cross(Call& call) {
  at::Tensor a = call.tensor(0);
  at::Tensor b = call.tensor(1);
  if (a.dim() != b.dim() || a.dim() == 0 || a.scalar_type() != b.scalar_type()) {
    return Call::decline();
  }
  const Dims shape = at::infer_size(a.sizes(), b.sizes());
  const std::int64_t dim = wrap_dim(call.integer("dim"), a.dim());
  if (shape[at(dim)] != 3 || product_of(shape) == 0) {
    return Call::decline();
  }
  a = a.expand(shape);
  b = b.expand(shape);
  return call.give(a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim));
}

/// Every pair of entries of two tensors with fill 0 and finite numbers (0 times an infinity is not 0).
bool kron(Call& call) {
  if (!call.is_sparse_at(0) || !call.is_sparse_at(1)) {
    return Call::decline();
  }
  const Components a = coalesced(call.sparse(0));
  const Components b = coalesced(call.sparse(1));
  const auto fits = [](const Components& c) {
    return c.dense_dim() == 0 && c.dim() > 0 && zero_fill(c) && c.values.detach().isfinite().all().item<bool>();
  };
  if (a.dim() != b.dim() || !fits(a) || !fits(b)) {
    return Call::decline();
  }
  const std::int64_t left = a.pattern->nse();
  const std::int64_t right = b.pattern->nse();
  Dims sizes = multiplied("kron", a.pattern->sizes(), b.pattern->sizes());
  const auto indices = at::empty({a.dim(), left * right}, a.pattern->indices().options());
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    const std::int64_t size = b.pattern->sizes()[at(d)];
    at::Tensor row = indices.select(0, d).view({left, right});
    at::add_out(row, (a.pattern->indices().select(0, d) * size).unsqueeze(1),
                b.pattern->indices().select(0, d).unsqueeze(0));
  }
  const auto values = (a.values.unsqueeze(1) * b.values.unsqueeze(0)).reshape(-1);
  return call.give({Pattern::make(indices, std::move(sizes)), values, known_fill(0, values)});
}

bool matrix_power(Call& call) {
  const at::Tensor t = call.tensor(0);
  std::int64_t n = call.integer("n");
  // Products do not look at 0 times an infinity: here it counts in every element of a row and a column.
  if (t.dim() < 2 || t.size(-1) != t.size(-2) || n < 1 || (n > 1 && !all_finite(call.sparse().values))) {
    return Call::decline();
  }
  at::Tensor result;
  for (at::Tensor square = t; n > 0; n /= 2, square = n > 0 ? square.matmul(square) : square) {
    if (n % 2 == 1) {
      result = result.defined() ? result.matmul(square) : square;
    }
  }
  return call.give(result.is_same(t) ? t.clone() : result);
}

/// torch's composition goes past the dispatcher.
bool chain_matmul(Call& call) {
  const auto matrices = call.args[0].toTensorVector();
  const bool fits = matrices.size() > 1 &&
                    std::all_of(matrices.begin(), matrices.end(), [](const at::Tensor& t) { return t.dim() == 2; });
  return fits ? call.give(at::linalg_multi_dot(matrices)) : Call::decline();
}

/// torch's composition, but for elements that are not finite: then it subtracts and multiplies them everywhere.
bool cov(Call& call) {
  if (!call.is_sparse_at(0) || all_finite(call.sparse().values)) {
    return Call::decline();
  }
  return call.give(call.call_with([&](const at::Tensor& t) { return densified_for(call.schema().name(), t); }));
}

/// "ij,jk->ik" of two tensors, taken apart.
struct Equation {
  std::string left, right, out;

  /// Nothing where it says more than the sum of a product: an ellipsis, a diagonal, one operand or three.
  static std::optional<Equation> parse(std::string text) {
    std::erase(text, ' ');
    const std::size_t arrow = text.find("->");
    const std::string operands = text.substr(0, arrow);
    const std::size_t comma = operands.find(',');
    if (comma == std::string::npos || operands.find_first_of(",.", comma + 1) != std::string::npos ||
        text.find('.') != std::string::npos) {
      return std::nullopt;
    }
    Equation e{operands.substr(0, comma), operands.substr(comma + 1), ""};
    if (arrow != std::string::npos) {
      e.out = text.substr(arrow + 2);
    } else {
      for (const char c : e.left + e.right) {
        e.out += has(e.left, c) == has(e.right, c) ? "" : std::string(1, c);
      }
      std::sort(e.out.begin(), e.out.end());
    }
    for (std::string letters : {e.left, e.right, e.out}) {
      std::sort(letters.begin(), letters.end());
      if (std::adjacent_find(letters.begin(), letters.end()) != letters.end()) {
        return std::nullopt;
      }
    }
    return e;
  }
  static bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }
};

/// The sum of a product of a sparse tensor and a strided one, in which neither keeps a dim of the other: a tensordot,
/// which moves no index.
bool einsum(Call& call) {
  const auto tensors = call.arg("tensors").toTensorVector();
  const auto e = Equation::parse(call.arg("equation").toStringRef());
  if (!e || tensors.size() != 2 || is_sparse(tensors[0]) == is_sparse(tensors[1]) ||
      e->left.size() != static_cast<std::size_t>(tensors[0].dim()) ||
      e->right.size() != static_cast<std::size_t>(tensors[1].dim())) {
    return Call::decline();
  }
  Dims left, right, order;
  std::string rest;
  for (const char c : e->left + e->right) {
    const bool both = Equation::has(e->left, c) && Equation::has(e->right, c);
    if (both == Equation::has(e->out, c)) {
      return Call::decline();  // a dim of both that stays, or one of a single operand that does not
    }
    rest += both ? "" : std::string(1, c);
  }
  for (std::size_t i = 0; i < e->left.size(); ++i) {
    if (const std::size_t j = e->right.find(e->left[i]); j != std::string::npos) {
      left.push_back(static_cast<std::int64_t>(i));
      right.push_back(static_cast<std::int64_t>(j));
      if (tensors[0].size(left.back()) != tensors[1].size(right.back())) {
        return Call::decline();
      }
    }
  }
  if (left.empty() || rest.size() != e->out.size()) {
    return Call::decline();
  }
  for (const char c : e->out) {
    order.push_back(static_cast<std::int64_t>(rest.find(c)));
  }
  return call.give(at::tensordot(tensors[0], tensors[1], left, right).permute(order));
}

bool is_all_true(Call& call) { return call.give(call.tensor(0).all()); }
bool is_any_true(Call& call) { return call.give(call.tensor(0).any()); }

/// Of rows that are scaled to the length 1, or by 1 / eps where they are shorter than eps; the gradient is that of the
/// length in either case, as in torch.
bool cosine_similarity(Call& call) {
  const at::Tensor& a = call.tensor(0);
  const at::Tensor& b = call.tensor(1);
  const std::int64_t dim = call.integer("dim");
  if (a.sizes() != b.sizes() || a.dim() == 0 || a.scalar_type() != b.scalar_type() ||
      !at::isFloatingType(a.scalar_type())) {
    return Call::decline();
  }
  const double eps = call.arg("eps").toDouble();
  const auto scaled = [&](const at::Tensor& t) {
    const at::Tensor norm = at::linalg_vector_norm(t, 2, {dim}, /*keepdim=*/true);
    return t / (norm + (norm.clamp_min(eps) - norm).detach());
  };
  return call.give((scaled(a) * scaled(b)).sum({dim}));
}

constexpr RuleEntry kRules[] = {
    {"aten::chain_matmul", chain_matmul},
    {"aten::cov", cov},
    {"aten::_is_all_true", is_all_true},
    {"aten::_is_any_true", is_any_true},
    {"aten::cosine_similarity", cosine_similarity},
    {"aten::einsum", einsum},
    {"aten::mse_loss", mse_loss},
    {"aten::smooth_l1_loss", smooth_loss},
    {"aten::huber_loss", smooth_loss},
    {"aten::soft_margin_loss", soft_margin_loss},
    {"aten::binary_cross_entropy_with_logits", cross_entropy_with_logits},
    {"aten::dist", dist},
    {"aten::norm.Scalar", norm},
    {"aten::norm.ScalarOpt_dim", norm},
    {"aten::trace", trace},
    {"aten::narrow_copy", narrow_copy},
    {"aten::glu", glu},
    {"aten::equal", equal},
    {"aten::allclose", allclose},
    {"aten::_local_scalar_dense", number},
    {"aten::isin.Tensor_Tensor", by_table},
    {"aten::isin.Tensor_Scalar", by_table},
    {"aten::bucketize.Tensor", by_table},
    {"aten::_unique2", unique},
    {"aten::pixel_shuffle", pixel_shuffle},
    {"aten::pixel_unshuffle", pixel_shuffle},
    {"aten::channel_shuffle", channel_shuffle},
    {"aten::rot90", rot90},
    {"aten::linalg_cross", cross},
    {"aten::kron", kron},
    {"aten::linalg_matrix_power", matrix_power},
    {"aten::matrix_power", matrix_power},
};

}  // namespace

std::span<const RuleEntry> composed_rules() { return kRules; }

}  // namespace lacewing::tensor
