// Whether an algorithm's gradients are exact for a cell and its recurrence: what is known of them, and a probe with
// random signs.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/etp/executor.h>

#include "etp/learning.h"
#include "etp/probe.h"

namespace lacewing::etp {
namespace {

Finding refused(const std::string& why) { return {{Exactness::refused, why}, false}; }

Finding needs_leave(const std::string& why) { return {{Exactness::approximate, why}, true}; }

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

/// What the probe finds beside "position-wise".
std::optional<Finding> probed(const Cell& cell, std::int64_t neurons, at::TensorOptions options) {
  const c10::AutoGradMode grad_mode(true);
  Draws draw(options);
  const std::int64_t states = cell.states();
  bool moves = false;
  for (int round = 0; round < kDraws; ++round) {
    const at::Tensor y = draw({kProbeBatch, neurons});
    const at::Tensor h = draw({kProbeBatch, neurons, states});
    const at::Tensor next = cell.forward(y, h);
    if (next.sizes() != h.sizes()) {
      return refused("a step from a state of shape " + shape_text(h.sizes()) + " gives " + shape_text(next.sizes()));
    }
    if (!at::isfinite(next).all().item<bool>()) {
      return refused("a step from a random state is not finite");
    }
    if (!next.equal(cell.forward(y, h))) {
      return needs_leave("two steps from the same state differ: the cell is random or keeps a state of its own");
    }
    const at::Tensor factors = draw.factors({kProbeBatch, neurons});
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
        return needs_leave(
            "the cell mixes positions: its Jacobian by position is not the whole of it (a random-sign probe differs "
            "from the all-ones one)");
      }
    }
  }
  if (!moves) {
    return refused("the new state does not depend on y or h in a way that autograd sees");
  }
  return std::nullopt;
}

/// Whether a step reaches leaves other than y and h, or what is fed back does.
bool has_parameters(const Cell& cell, std::int64_t neurons, bool recurrent, at::TensorOptions options) {
  if (cell.ready() != nullptr) {
    return false;
  }
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor h = at::zeros({kProbeBatch, neurons, cell.states()}, options);
  return cell.forward(at::zeros({kProbeBatch, neurons}, options), h).requires_grad() ||
         (recurrent && cell.output(h).requires_grad());
}

}  // namespace

at::Tensor own_path(const Cell& cell, const Primitive& recurrent, const Values& values, const at::Tensor& h,
                    const at::Tensor& factors) {
  const c10::AutoGradMode grad_mode(true);
  const at::Tensor state = h.detach().requires_grad_();
  const at::Tensor y = recurrent.forward(cell.output(state), values);
  if (!y.requires_grad()) {
    return at::zeros_like(state);
  }
  const auto found = torch::autograd::grad({y}, {state}, {factors}, /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  return found[0].defined() ? found[0] : at::zeros_like(state);
}

bool leads_to_itself_alone(const Cell& cell, const Connection& recurrent, std::int64_t neurons,
                           at::TensorOptions options) {
  const auto known = recurrent.primitive->by_position(recurrent.trainable);
  if (neurons == 0 || known == false || (known && cell.position_wise())) {
    return neurons == 0 || *known;
  }
  Draws draw(options);
  for (int round = 0; round < kDraws; ++round) {
    const at::Tensor h = draw({kProbeBatch, neurons, cell.states()});
    const at::Tensor factors = draw.factors({kProbeBatch, neurons});
    const Values values = draw.values(recurrent, 0.1);
    const auto path = [&](const at::Tensor& f) { return own_path(cell, *recurrent.primitive, values, h, f); };
    if (!close(factors.unsqueeze(-1) * path(at::ones_like(factors)), path(factors))) {
      return false;
    }
  }
  return true;
}

Finding analyze_network(const Cell& cell, std::int64_t neurons, Recurrence recurrence, Algorithm algorithm,
                        at::TensorOptions options) {
  if (!cell.position_wise() && neurons > 0) {
    if (auto found = probed(cell, neurons, options)) {
      return *found;
    }
  }
  if (algorithm == Algorithm::pp_prop) {
    return {{Exactness::approximate, "pp-prop factorises the trace: exact for one step, approximate beyond"}, false};
  }
  if (recurrence == Recurrence::between_neurons) {
    return {{Exactness::approximate,
             "there are recurrent weights between neurons: D-RTRL leaves out the paths through recurrent weights"},
            false};
  }
  if (neurons > 0 && has_parameters(cell, neurons, recurrence != Recurrence::none, options)) {
    return {{Exactness::approximate,
             "the cell has parameters of its own, which get their same-step gradient alone: exact for the weights, "
             "approximate for those parameters"},
            false};
  }
  return {{Exactness::exact, "the recurrence is diagonal by position"}, false};
}

Analysis analyze(const Cell& cell, std::int64_t neurons, bool recurrent, Algorithm algorithm,
                 at::TensorOptions options) {
  TORCH_CHECK(neurons >= 0, "[lacewing.etp.analyze] the number of neurons must not be negative, not ", neurons);
  TORCH_CHECK(at::isFloatingType(c10::typeMetaToScalarType(options.dtype())),
              "[lacewing.etp.analyze] states are floating, not ",
              dtype_text(c10::typeMetaToScalarType(options.dtype())));
  return analyze_network(cell, neurons, recurrent ? Recurrence::between_neurons : Recurrence::none, algorithm, options)
      .analysis;
}

}  // namespace lacewing::etp
