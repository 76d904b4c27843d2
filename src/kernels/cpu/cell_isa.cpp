// Ready cells on the CPU: vectors over the batch. Compiled once for each ISA level.
#include <algorithm>

#include "kernels/cell_step.h"
#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Positions (neuron, batch) that are worth a thread of their own.
constexpr std::int64_t kGrain = 4096;

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
  const D y = D::variable(L::load(static_cast<const T*>(args.y) + neuron * batch + b, count), States);
  D next[States] = {};
  neuron_step<T, Vec, States + 1, States>(args.params, Vec{} + beta, y, h, next);
  for (int a = 0; a < States; ++a) {
    L::store(static_cast<T*>(args.next) + first + a * batch, next[a].value, count);
  }
  if (args.df != nullptr) {
    for (int a = 0; a < States; ++a) {
      L::store(static_cast<T*>(args.df) + first + a * batch, next[a].d[States], count);
      for (int c = 0; c < States; ++c) {
        L::store(static_cast<T*>(args.decay) + ((neuron * States + a) * States + c) * batch + b, next[a].d[c], count);
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

template <typename T>
void cell_typed(const CellArgs& args, const CpuExecutor& executor) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(args.batch, 1));
  visit_states(args.params, [&](auto states) {
    executor.parallel_for(0, args.neurons, grain, [&](std::int64_t begin, std::int64_t end) {
      constexpr int lanes = Lanes<T>::lanes;
      for (std::int64_t neuron = begin; neuron < end; ++neuron) {
        std::int64_t b = 0;
        for (; b + lanes <= args.batch; b += lanes) {
          step_lanes<T, decltype(states)::value>(args, neuron, b, lanes);
        }
        if (b < args.batch) {
          step_lanes<T, decltype(states)::value>(args, neuron, b, static_cast<int>(args.batch - b));
        }
      }
    });
  });
}

template <typename T>
void output_typed(const CellOutputArgs& args, const CpuExecutor& executor) {
  using L = Lanes<T>;
  using Vec = typename L::Vec;
  const std::int64_t states = states_of(args.params);
  const std::int64_t batch = args.batch;
  const bool adapts = args.params.kind == CellKind::alif;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(batch, 1));
  executor.parallel_for(0, args.neurons, grain, [&](std::int64_t begin, std::int64_t end) {
    const Vec zero{};
    const Vec one = zero + T{1};
    const Vec threshold = zero + static_cast<T>(args.params.threshold);
    for (std::int64_t neuron = begin; neuron < end; ++neuron) {
      const T beta = args.beta != nullptr ? static_cast<const T*>(args.beta)[neuron] : static_cast<T>(args.params.beta);
      const T* const h = static_cast<const T*>(args.h) + neuron * states * batch;
      T* const z = static_cast<T*>(args.z) + neuron * batch;
      for (std::int64_t b = 0; b < batch; b += L::lanes) {
        const int count = static_cast<int>(std::min<std::int64_t>(L::lanes, batch - b));
        Vec over = L::load(h + b, count) - threshold;
        if (adapts) {
          over = over + (zero - beta) * L::load(h + batch + b, count);
        }
        L::store(z + b, over > zero ? one : zero, count);
      }
    }
  });
}

}  // namespace

void cell_output(const CellOutputArgs& args, const CpuExecutor& executor) {
  if (args.type == ScalarType::f64) {
    output_typed<double>(args, executor);
  } else {
    output_typed<float>(args, executor);
  }
}

void cell_step(const CellArgs& args, const CpuExecutor& executor) {
  if (args.type == ScalarType::f64) {
    cell_typed<double>(args, executor);
  } else {
    cell_typed<float>(args, executor);
  }
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
