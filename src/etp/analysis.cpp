// Whether an algorithm's gradients are exact for a cell: what is known of it, and a probe with random signs.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/etp/executor.h>

namespace lacewing::etp {
namespace {

constexpr int kDraws = 3;
constexpr std::int64_t kBatch = 3;
/// Probing more positions than this says nothing new about most cells, but they may have parameters for each neuron.
constexpr double kTolerance = 1e-3;

Analysis refused(const std::string& why) { return {Exactness::refused, why}; }

/// The vector-Jacobian products of every state of the step for y and h, with the same signs at each position.
std::vector<at::Tensor> pulled_back(const Cell& cell, const at::Tensor& y, const at::Tensor& h,
                                    const at::Tensor& signs) {
  const at::Tensor input = y.detach().requires_grad_();
  const at::Tensor state = h.detach().requires_grad_();
  const at::Tensor next = cell.forward(input, state);
  std::vector<at::Tensor> out;
  for (std::int64_t a = 0; a < cell.states(); ++a) {
    const at::Tensor one = next.select(-1, a);
    const auto found = one.requires_grad()
                           ? torch::autograd::grad({one}, {input, state}, {signs}, /*retain_graph=*/true,
                                                   /*create_graph=*/false, /*allow_unused=*/true)
                           : torch::autograd::variable_list(2);
    out.push_back(found[0].defined() ? found[0] : at::zeros_like(input));
    out.push_back(found[1].defined() ? found[1] : at::zeros_like(state));
  }
  return out;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  const double size = std::max(a.abs().max().item<double>(), b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() <= kTolerance * size + 1e-12;
}

/// An Analysis where the probe says more than "position-wise".
std::optional<Analysis> probed(const Cell& cell, std::int64_t neurons, at::TensorOptions options) {
  const c10::AutoGradMode grad_mode(true);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{20261115});
  const at::TensorOptions on_host = at::TensorOptions().dtype(at::kDouble);
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, on_host).to(options); };
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
    const at::Tensor signs = draw({kBatch, neurons}).sign();
    const auto ones = pulled_back(cell, y, h, at::ones_like(y));
    const auto mixed = pulled_back(cell, y, h, signs);
    for (std::size_t i = 0; i < ones.size(); ++i) {
      const at::Tensor factor = ones[i].dim() == 3 ? signs.unsqueeze(-1) : signs;
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

Analysis analyze(const Cell& cell, std::int64_t neurons, bool recurrent, Algorithm algorithm,
                 at::TensorOptions options) {
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
