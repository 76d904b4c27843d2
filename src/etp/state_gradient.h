// Where the gradient of a loss arrives: behind what a step or a window returned.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "autograd/node.h"
#include "etp/learning.h"

namespace lacewing::etp {

/// Shared by everything that a step or a window gave the caller: set once its turn is over.
using Past = std::shared_ptr<bool>;

inline void check_present(const Past& past) {
  TORCH_CHECK(!*past,
              "[lacewing.etp.backward] the loss reaches the state of an earlier step or window, whose turn is over: "
              "call backward(loss) before the next step, or detach that state");
}

/// Stands behind what a step returns and keeps the gradients that arrive there: a leaf would copy them into the layout
/// of the state first. Its outputs are the state, each of the S states, and then the spikes as often as they were asked
/// for.
struct StateGradient : torch::autograd::Node {
  at::Tensor whole;                  ///< (B, O, S)
  std::vector<at::Tensor> by_state;  ///< (B, O) each, undefined where the loss does not reach
  at::Tensor spikes;                 ///< (B, O)

  StateGradient(std::int64_t states, Past past) : by_state(static_cast<std::size_t>(states)), past_(std::move(past)) {}

  std::string name() const override { return "StateGradient"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    check_present(past_);
    const auto add = [](at::Tensor& sum, const at::Tensor& more) {
      sum = sum.defined() && more.defined() ? sum + more : more.defined() ? more : sum;
    };
    add(whole, grads[0]);
    for (std::size_t i = 1; i < grads.size(); ++i) {
      add(i <= by_state.size() ? by_state[i - 1] : spikes, grads[i]);
    }
    return {};
  }

  bool any() const {
    return whole.defined() || spikes.defined() ||
           std::any_of(by_state.begin(), by_state.end(), [](const at::Tensor& each) { return each.defined(); });
  }

  bool only_spikes() const {
    return spikes.defined() && !whole.defined() &&
           std::none_of(by_state.begin(), by_state.end(), [](const at::Tensor& each) { return each.defined(); });
  }

  /// What has arrived, batch last; and forgets it.
  Gradient take() {
    Gradient out;
    out.whole = whole.defined() ? whole.movedim(0, -1) : whole;
    if (std::any_of(by_state.begin(), by_state.end(), [](const at::Tensor& each) { return each.defined(); })) {
      for (at::Tensor& each : by_state) {
        out.by_state.push_back(each.defined() ? each.movedim(0, -1) : each);
        each = at::Tensor();
      }
    }
    whole = at::Tensor();
    return out;
  }

 private:
  Past past_;
};

}  // namespace lacewing::etp
