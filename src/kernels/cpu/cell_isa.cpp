// Ready cells on the CPU: vectors over the batch. Compiled once for each ISA level.
#include <algorithm>

#include "kernels/cell_step.h"
#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Positions (neuron, batch) that are worth a thread of their own.
constexpr std::int64_t kGrain = 4096;

/// The product of one neuron's weights with lanes [b, b + count) of x; four chains hide the latency of the additions.
template <typename T>
LACEWING_INLINE typename Lanes<T>::Vec weighted_sum(const CellInput& input, std::int64_t neuron, std::int64_t batch,
                                                    std::int64_t b, int count) {
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  const T* const weight = static_cast<const T*>(input.weight);
  const T* const x = static_cast<const T*>(input.x) + b;
  const std::int64_t end = input.segments[neuron + 1];
  std::int64_t p = input.segments[neuron];
  const auto term = [&](std::int64_t k) LACEWING_INLINE_LAMBDA {
    const T w = weight[input.order != nullptr ? input.order[k] : k];
    return w * L::load(x + input.row[k] * batch, count);
  };
  Vec sums[4] = {};
  for (; p + 4 <= end; p += 4) {
    for (int i = 0; i < 4; ++i) {
      sums[i] += term(p + i);
    }
  }
  for (; p < end; ++p) {
    sums[0] += term(p);
  }
  const Vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return input.bias != nullptr ? sum + static_cast<const T*>(input.bias)[neuron] : sum;
}

/// v - threshold - beta * a: positive where a state spikes.
template <typename T, int States>
LACEWING_INLINE typename Lanes<T>::Vec over_threshold(const CellParams& params, T beta,
                                                      const typename Lanes<T>::Vec (&h)[States]) {
  const auto over = h[0] - static_cast<T>(params.threshold);
  return States >= 2 && params.kind == CellKind::alif ? over - beta * h[States >= 2 ? 1 : 0] : over;
}

template <typename T, int States>
LACEWING_INLINE void step_lanes(const CellArgs& args, std::int64_t neuron, std::int64_t b, int count) {
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  using D = Dual<T, Vec, States + 1>;
  const std::int64_t batch = args.batch;
  const std::int64_t first = neuron * States * batch + b;
  const T beta = args.beta != nullptr ? static_cast<const T*>(args.beta)[neuron] : static_cast<T>(args.params.beta);
  D h[States];
  for (int a = 0; a < States; ++a) {
    h[a] = D::variable(L::load(static_cast<const T*>(args.h) + first + a * batch, count), a);
  }
  Vec input = args.y != nullptr ? L::load(static_cast<const T*>(args.y) + neuron * batch + b, count) : Vec{};
  for (int i = 0; i < args.input_count; ++i) {
    input += weighted_sum<T>(args.inputs[i], neuron, batch, b, count);
  }
  const D y = D::variable(input, States);
  D next[States] = {};
  neuron_step<T, Vec, States + 1, States>(args.params, Vec{} + beta, y, h, next);
  if (args.next != nullptr) {
    for (int a = 0; a < States; ++a) {
      L::store(static_cast<T*>(args.next) + first + a * batch, next[a].value, count);
    }
  }
  if (args.sum != nullptr) {
    L::store(static_cast<T*>(args.sum) + neuron * batch + b, input, count);
  }
  if (args.z != nullptr) {
    Vec values[States];
    for (int a = 0; a < States; ++a) {
      values[a] = next[a].value;
    }
    const Vec over = over_threshold<T, States>(args.params, beta, values);
    L::store(static_cast<T*>(args.z) + neuron * batch + b, over > Vec{} ? Vec{} + T{1} : Vec{}, count);
  }
  if (args.df != nullptr) {
    const std::int64_t row = (neuron - args.first) * States;
    for (int a = 0; a < States; ++a) {
      L::store(static_cast<T*>(args.df) + (row + a) * batch + b, next[a].d[States], count);
      for (int c = 0; c < States; ++c) {
        L::store(static_cast<T*>(args.decay) + ((row + a) * States + c) * batch + b, next[a].d[c], count);
      }
    }
  }
  if (args.ef != nullptr) {
    const Vec alpha = Vec{} + static_cast<T>(args.alpha);
    const Vec fresh = Vec{} + static_cast<T>(1 - args.alpha);
    T* const ef = static_cast<T*>(args.ef) + first;
    Vec old[States];
    for (int a = 0; a < States; ++a) {
      old[a] = L::load(ef + a * batch, count);
    }
    for (int a = 0; a < States; ++a) {
      Vec decayed = next[a].d[0] * old[0];
      for (int c = 1; c < States; ++c) {
        decayed += next[a].d[c] * old[c];
      }
      L::store(ef + a * batch, alpha * decayed + fresh * next[a].d[States], count);
    }
  }
}

template <typename T, int States>
void step_neurons(const CellArgs& args, std::int64_t begin, std::int64_t end) {
  constexpr int lanes = Lanes<T>::lanes;
  for (std::int64_t neuron = begin; neuron < end; ++neuron) {
    std::int64_t b = 0;
    for (; b + lanes <= args.batch; b += lanes) {
      step_lanes<T, States>(args, neuron, b, lanes);
    }
    if (b < args.batch) {
      step_lanes<T, States>(args, neuron, b, static_cast<int>(args.batch - b));
    }
  }
}

template <typename T, int States>
void spike_gradient_typed(const SpikeGradientArgs& args, std::int64_t begin, std::int64_t end) {
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  const std::int64_t batch = args.batch;
  const T* const gz = static_cast<const T*>(args.gz);
  for (std::int64_t neuron = begin; neuron < end; ++neuron) {
    const T beta = args.beta != nullptr ? static_cast<const T*>(args.beta)[neuron] : static_cast<T>(args.params.beta);
    const std::int64_t first = neuron * States * batch;
    for (std::int64_t b = 0; b < batch; b += L::lanes) {
      const int count = static_cast<int>(std::min<std::int64_t>(L::lanes, batch - b));
      Vec h[States];
      for (int a = 0; a < States; ++a) {
        h[a] = L::load(static_cast<const T*>(args.h) + first + a * batch + b, count);
      }
      const T* const from = gz + neuron * args.gz_neuron + b * args.gz_batch;
      Vec arriving{};
      if (args.gz_batch == 1) {
        arriving = L::load(from, count);
      } else {
        for (int i = 0; i < count; ++i) {
          arriving[i] = from[i * args.gz_batch];
        }
      }
      const Vec slope = surrogate_slope<T>(args.params, over_threshold<T, States>(args.params, beta, h));
      const Vec membrane = arriving * slope;
      T* const to = static_cast<T*>(args.g) + (neuron - args.first) * States * batch + b;
      for (int a = 0; a < States; ++a) {
        const bool adapts = a == 1 && args.params.kind == CellKind::alif;
        L::store(to + a * batch, a == 0 ? membrane : adapts ? -beta * membrane : Vec{}, count);
      }
    }
  }
}

/// Neurons that are worth a thread of their own.
std::int64_t grain_of(std::int64_t batch) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(batch, 1));
}

}  // namespace

void cell_neurons(const CellArgs& args, std::int64_t begin, std::int64_t end) {
  visit_states(args.params, [&](auto states) {
    if (args.type == ScalarType::f64) {
      step_neurons<double, decltype(states)::value>(args, begin, end);
    } else {
      step_neurons<float, decltype(states)::value>(args, begin, end);
    }
  });
}

void spike_gradient_neurons(const SpikeGradientArgs& args, std::int64_t begin, std::int64_t end) {
  visit_states(args.params, [&](auto states) {
    if (args.type == ScalarType::f64) {
      spike_gradient_typed<double, decltype(states)::value>(args, begin, end);
    } else {
      spike_gradient_typed<float, decltype(states)::value>(args, begin, end);
    }
  });
}

void cell_step(const CellArgs& args, const CpuExecutor& executor) {
  executor.parallel_for(0, args.neurons, grain_of(args.batch),
                        [&](std::int64_t begin, std::int64_t end) { cell_neurons(args, begin, end); });
}

void spike_gradient(const SpikeGradientArgs& args, const CpuExecutor& executor) {
  executor.parallel_for(0, args.neurons, grain_of(args.batch),
                        [&](std::int64_t begin, std::int64_t end) { spike_gradient_neurons(args, begin, end); });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
