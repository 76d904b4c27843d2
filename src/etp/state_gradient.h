// Where the gradient of a loss arrives: behind what a step or a window returned.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "autograd/node.h"
#include "etp/learning.h"

namespace lacewing::etp {

/// Shared by everything that a step or a window gave the caller: set once its turn is over.
using Past = std::shared_ptr<std::atomic<bool>>;

inline void check_present(const Past& past) {
  TORCH_CHECK(!*past,
              "[lacewing.etp.backward] the loss reaches the state of an earlier step or window, whose turn is over: "
              "call backward(loss) before the next step, or detach that state");
}

/// Stands behind what a step returns and keeps the gradients that arrive there: a leaf would copy them into the layout
/// of the state first. Its outputs are the state, each of the S states, and then the spikes as often as they were asked
/// for. A backward pass that is not the executor's may run in another thread while the executor looks.
class StateGradient : public torch::autograd::Node {
 public:
  StateGradient(std::int64_t states, Past past) : by_state_(static_cast<std::size_t>(states)), past_(std::move(past)) {}

  std::string name() const override { return "StateGradient"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    check_present(past_);
    const auto add = [](at::Tensor& sum, const at::Tensor& more) {
      sum = sum.defined() && more.defined() ? sum + more : more.defined() ? more : sum;
    };
    const std::lock_guard lock(arriving_);
    add(whole_, grads[0]);
    for (std::size_t i = 1; i < grads.size(); ++i) {
      add(i <= by_state_.size() ? by_state_[i - 1] : spikes_, grads[i]);
    }
    return {};
  }

  bool any() const {
    const std::lock_guard lock(arriving_);
    return spikes_.defined() || of_states();
  }

  bool only_spikes() const {
    const std::lock_guard lock(arriving_);
    return spikes_.defined() && !of_states();
  }

  /// That of the spikes, (B, O), or undefined; and forgets it.
  at::Tensor take_spikes() {
    const std::lock_guard lock(arriving_);
    return std::exchange(spikes_, at::Tensor());
  }

  /// What else has arrived, batch last; and forgets it.
  Gradient take() {
    const std::lock_guard lock(arriving_);
    Gradient out;
    out.whole = whole_.defined() ? whole_.movedim(0, -1) : whole_;
    if (any_single()) {
      for (at::Tensor& each : by_state_) {
        out.by_state.push_back(each.defined() ? each.movedim(0, -1) : each);
        each = at::Tensor();
      }
    }
    whole_ = at::Tensor();
    return out;
  }

 private:
  bool any_single() const {
    return std::any_of(by_state_.begin(), by_state_.end(), [](const at::Tensor& each) { return each.defined(); });
  }
  bool of_states() const { return whole_.defined() || any_single(); }

  mutable std::mutex arriving_;
  at::Tensor whole_;                  ///< (B, O, S)
  std::vector<at::Tensor> by_state_;  ///< (B, O) each, undefined where the loss does not reach
  at::Tensor spikes_;                 ///< (B, O)
  Past past_;
};

}  // namespace lacewing::etp
