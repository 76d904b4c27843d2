// Whether an algorithm's gradients are exact for a cell: what is known of it, and a probe with random signs.
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/etp/executor.h>

#include "etp/learning.h"

namespace lacewing::etp {
namespace {

constexpr int kDraws = 3;
constexpr std::int64_t kBatch = 3;

Analysis refused(const std::string& why) { return {Exactness::refused, why}; }

/// The rounding and the smallest normal number of a dtype.
struct Precision {
  double epsilon;
  double smallest;
};

template <typename T>
constexpr Precision precision_of{std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::min()};

Precision precision(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return {0x1p-10, 0x1p-14};
    case at::kBFloat16: return {0x1p-7, std::numeric_limits<float>::min()};
    case at::kFloat: return precision_of<float>;
    default: return precision_of<double>;
  }
}

/// The vector-Jacobian products of every state of the step for y and h, with the same factors at each position.
std::vector<at::Tensor> pulled_back(const Cell& cell, const at::Tensor& y, const at::Tensor& h,
                                    const at::Tensor& factors) {
  const at::Tensor input = y.detach().requires_grad_();
  const at::Tensor state = h.detach().requires_grad_();
  const at::Tensor next = cell.forward(input, state);
  std::vector<at::Tensor> out;
  for (std::int64_t a = 0; a < cell.states(); ++a) {
    const at::Tensor one = next.select(-1, a);
    const auto found = one.requires_grad()
                           ? torch::autograd::grad({one}, {input, state}, {factors}, /*retain_graph=*/true,
                                                   /*create_graph=*/false, /*allow_unused=*/true)
                           : torch::autograd::variable_list(2);
    out.push_back(found[0].defined() ? found[0] : at::zeros_like(input));
    out.push_back(found[1].defined() ? found[1] : at::zeros_like(state));
  }
  return out;
}

/// Position by position, so that no large derivative hides a small one. A backward pass is linear, and signs and powers
/// of two are exact: where positions do not mix, both are equal to the last bit, short of subnormal numbers.
bool close(const at::Tensor& a, const at::Tensor& b) {
  const auto [epsilon, smallest] = precision(a.scalar_type());
  const at::Tensor wide_a = a.to(at::kDouble);
  const at::Tensor wide_b = b.to(at::kDouble);
  const at::Tensor room = 16 * epsilon * at::maximum(wide_a.abs(), wide_b.abs()) + 1024 * epsilon * smallest;
  return (wide_a - wide_b).abs().le(room).all().item<bool>();
}

/// To rounding, beside the largest: sums inside a primitive may round.
bool near(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kDouble);
  const double room = 32 * precision(a.scalar_type()).epsilon * (a.numel() > 0 ? wide.abs().max().item<double>() : 0);
  return (wide - b.to(at::kDouble)).abs().le(room).all().item<bool>();
}

/// The same numbers in every run and on every device.
class Draws {
 public:
  explicit Draws(at::TensorOptions options) : options_(options) {}

  at::Tensor operator()(at::IntArrayRef sizes) {
    return at::randn(sizes, generator_, at::TensorOptions().dtype(at::kDouble)).to(options_);
  }
  /// Signs, with magnitudes of 1, 2, ... 128: two positions that mix hardly ever draw the same in all rounds.
  at::Tensor factors(at::IntArrayRef sizes) {
    return (*this)(sizes).sign() * ((*this)(sizes).abs() * 4).floor().clamp_max(7).exp2();
  }

 private:
  at::TensorOptions options_;
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{20261115});
};

/// An Analysis where the probe says more than "position-wise".
std::optional<Analysis> probed(const Cell& cell, std::int64_t neurons, at::TensorOptions options) {
  const c10::AutoGradMode grad_mode(true);
  Draws draw(options);
  const std::int64_t states = cell.states();
  bool moves = false;
  for (int round = 0; round < kDraws; ++round) {
    const at::Tensor y = draw({kBatch, neurons});
    const at::Tensor h = draw({kBatch, neurons, states});
    const at::Tensor next = cell.forward(y, h);
    if (next.sizes() != h.sizes()) {
      return refused("a step from a state of shape " + shape_text(h.sizes()) + " gives " + shape_text(next.sizes()));
    }
    if (!at::isfinite(next).all().item<bool>()) {
      return refused("a step from a random state is not finite");
    }
    if (!next.equal(cell.forward(y, h))) {
      return refused("two steps from the same state differ: the cell is random or keeps a state of its own");
    }
    const at::Tensor factors = draw.factors({kBatch, neurons});
    const auto ones = pulled_back(cell, y, h, at::ones_like(y));
    const auto mixed = pulled_back(cell, y, h, factors);
    if (const auto decay = cell.shared_decay()) {
      at::Tensor expected = at::zeros_like(h);
      expected.select(-1, 0).fill_(*decay);
      if (!close(ones[0], at::ones_like(y)) || !close(ones[1], expected)) {
        return refused("shared_decay() does not hold: the first state is not m h_0 + y + terms without a derivative");
      }
    }
    for (std::size_t i = 0; i < ones.size(); ++i) {
      const at::Tensor factor = ones[i].dim() == 3 ? factors.unsqueeze(-1) : factors;
      moves = moves || ones[i].abs().max().item<double>() > 0;
      if (!close(factor * ones[i], mixed[i])) {
        return Analysis{Exactness::approximate,
                        "the cell mixes positions: its Jacobian by position is not the whole of it (a random-sign "
                        "probe differs from the all-ones one)"};
      }
    }
  }
  if (!moves) {
    return refused("the new state does not depend on y or h in a way that autograd sees");
  }
  return std::nullopt;
}

}  // namespace

std::optional<Analysis> analyze_rules(const Connection& connection, std::int64_t inputs, std::int64_t outputs,
                                      at::TensorOptions options) {
  const Primitive& primitive = *connection.primitive;
  if (primitive.one_output_each() || outputs == 0) {
    return std::nullopt;
  }
  Draws draw(options);
  const at::Tensor x = draw({kBatch, inputs});
  const at::Tensor factors = draw.factors({kBatch, outputs});
  const Values values = detached(connection);
  const Values wanted = primitive.each_xy_to_dw(x, factors, values);
  const Values found = primitive.yw_to_w(factors, primitive.each_xy_to_dw(x, at::ones_like(factors), values));
  for (const auto& [key, expected] : wanted) {
    const auto other = found.find(key);
    const bool fits = other != found.end() && other->second.sizes() == expected.sizes();
    if (!fits || !near(expected, other->second)) {
      return Analysis{Exactness::approximate, "by the rules of " + primitive.name() + ", " + key +
                                                  " acts on several outputs, which the trace of D-RTRL cannot tell "
                                                  "apart, or yw_to_w is not g[col p] * trace[p]"};
    }
  }
  return std::nullopt;
}

Analysis analyze(const Cell& cell, std::int64_t neurons, bool recurrent, Algorithm algorithm,
                 at::TensorOptions options) {
  TORCH_CHECK(neurons >= 0, "[lacewing.etp.analyze] the number of neurons must not be negative, not ", neurons);
  TORCH_CHECK(at::isFloatingType(c10::typeMetaToScalarType(options.dtype())),
              "[lacewing.etp.analyze] states are floating, not ",
              dtype_text(c10::typeMetaToScalarType(options.dtype())));
  if (!cell.position_wise() && neurons > 0) {
    if (auto found = probed(cell, neurons, options)) {
      return *found;
    }
  }
  if (algorithm == Algorithm::pp_prop) {
    return {Exactness::approximate, "pp-prop factorises the trace: exact for one step, approximate beyond"};
  }
  if (recurrent) {
    return {Exactness::approximate,
            "there are recurrent weights: D-RTRL follows the diagonal of the recurrence and leaves out paths through "
            "other neurons"};
  }
  return {Exactness::exact, "the recurrence is diagonal by position"};
}

}  // namespace lacewing::etp
