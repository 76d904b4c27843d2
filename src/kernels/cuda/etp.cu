// Traces and cells on CUDA. A group of lanes owns one entry of the trace and runs over the batch; its sum for the
// gradient is a fixed tree of shuffles, so results are deterministic.
#include "kernels/cell_step.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/trace.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// `group` lanes, a power of two up to 32, share an entry. States is known at compile time where it is small, or 0.
template <typename T, int States>
__global__ void __launch_bounds__(kThreads) trace_kernel(TraceArgs args, int group) {
  using Acc = accumulate_t<T>;
  constexpr int kRows = States > 0 ? States : static_cast<int>(kMaxStates);
  const int states = States > 0 ? States : static_cast<int>(args.states);
  const int first = static_cast<int>(args.first_own());
  const std::int64_t own = args.own_states();
  const std::int64_t batch = args.batch;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x / group;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int lane = static_cast<int>(thread % group);
  auto* const trace = static_cast<T*>(args.trace);
  const auto* const input_rows = static_cast<const T*>(first > 0 ? args.shared_after : args.x);
  const auto* const before = static_cast<const T*>(args.shared_before);
  const auto* const df = static_cast<const T*>(args.df);
  const auto* const decay = static_cast<const T*>(args.decay);
  const auto* const g = static_cast<const T*>(args.g);
  // All lanes of a warp run the same number of rounds: the shuffles below need them.
  const std::int64_t rounds = (args.entries + step - 1) / step;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t p = round * step + thread / group;
    Acc sum{};
    if (p < args.entries) {
      const std::int64_t column = args.column != nullptr ? args.column[p] : p;
      for (std::int64_t b = lane; b < batch; b += group) {
        const Acc input = input_rows != nullptr ? widen(input_rows[args.row[p] * batch + b]) : Acc{1};
        Acc e[kRows];
        for (int a = 0; a < states; ++a) {
          e[a] = a < first ? input : widen(trace[(p * own + a - first) * batch + b]);
        }
        if (df != nullptr) {
          if (first > 0) {
            e[0] = widen(before[args.row[p] * batch + b]);
          }
          T next[kRows];
          for (int a = 0; a < states; ++a) {
            if (a < first) {
              continue;
            }
            const Acc direct = widen(df[(column * states + a) * batch + b]);
            Acc value = input * direct;
            for (int c = 0; c < states; ++c) {
              Acc from = widen(decay[((column * states + a) * states + c) * batch + b]);
              if (c < first) {
                from -= static_cast<Acc>(args.shared_decay) * direct;  // what y does comes with u' already
              }
              value += from * e[c];
            }
            next[a] = narrow<T>(value);
          }
          for (int a = 0; a < states; ++a) {
            if (a >= first) {
              trace[(p * own + a - first) * batch + b] = next[a];
            }
            e[a] = a < first ? input : widen(next[a]);
          }
        }
        if (g != nullptr) {
          for (int a = 0; a < states; ++a) {
            sum += widen(g[(column * states + a) * batch + b]) * e[a];
          }
        }
      }
    }
    if (g != nullptr) {
      for (int offset = group / 2; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset, group);
      }
      if (lane == 0 && p < args.entries) {
        static_cast<Acc*>(args.grad)[args.order != nullptr ? args.order[p] : p] += sum;
      }
    }
  }
}

template <typename T, int States>
__global__ void __launch_bounds__(kThreads) cell_kernel(CellArgs args) {
  using D = Dual<T, T, States + 1>;
  const std::int64_t batch = args.batch;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.neurons * batch;
       i += step) {
    const std::int64_t neuron = i / batch;
    const std::int64_t b = i % batch;
    const std::int64_t first = neuron * States * batch + b;
    const T beta = args.beta != nullptr ? static_cast<const T*>(args.beta)[neuron] : static_cast<T>(args.params.beta);
    D h[States];
    for (int a = 0; a < States; ++a) {
      h[a] = D::variable(static_cast<const T*>(args.h)[first + a * batch], a);
    }
    D next[States] = {};
    neuron_step<T, T, States + 1, States>(args.params, beta, D::variable(static_cast<const T*>(args.y)[i], States), h,
                                          next);
    T old[States];
    for (int a = 0; a < States; ++a) {
      static_cast<T*>(args.next)[first + a * batch] = next[a].value;
      old[a] = args.ef != nullptr ? static_cast<const T*>(args.ef)[first + a * batch] : T{};
    }
    for (int a = 0; a < States; ++a) {
      if (args.df != nullptr) {
        static_cast<T*>(args.df)[first + a * batch] = next[a].d[States];
        for (int c = 0; c < States; ++c) {
          static_cast<T*>(args.decay)[((neuron * States + a) * States + c) * batch + b] = next[a].d[c];
        }
      }
      if (args.ef != nullptr) {
        T decayed{};
        for (int c = 0; c < States; ++c) {
          decayed += next[a].d[c] * old[c];
        }
        static_cast<T*>(args.ef)[first + a * batch] =
            static_cast<T>(args.alpha) * decayed + static_cast<T>(1 - args.alpha) * next[a].d[States];
      }
    }
  }
}

template <typename T, int States>
void launch_trace(const TraceArgs& args, const CudaExecutor& executor) {
  int group = 1;
  while (group < 32 && group < args.batch) {
    group *= 2;
  }
  launch({"trace", blocks_for(args.entries * group, kThreads), kThreads}, executor, trace_kernel<T, States>, args,
         group);
}

}  // namespace

void trace(std::span<const TraceArgs> steps, const CudaExecutor& executor) {
  for (const TraceArgs& args : steps) {
    visit_real(args.type, [&](auto scalar) {
      using T = decltype(scalar);
      switch (args.states) {
        case 1: return launch_trace<T, 1>(args, executor);
        case 2: return launch_trace<T, 2>(args, executor);
        case 3: return launch_trace<T, 3>(args, executor);
        default: return launch_trace<T, 0>(args, executor);
      }
    });
  }
}

void cell_step(const CellArgs& args, const CudaExecutor& executor) {
  const Launch shape{"cell_step", blocks_for(args.neurons * args.batch, kThreads), kThreads};
  visit_states(args.params, [&](auto states) {
    constexpr int kStates = decltype(states)::value;
    launch(shape, executor, args.type == ScalarType::f64 ? cell_kernel<double, kStates> : cell_kernel<float, kStates>,
           args);
  });
}

}  // namespace lacewing::kernels::cuda
