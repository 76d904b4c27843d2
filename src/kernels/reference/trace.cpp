// The oracle: serial, one element of the trace at a time, straight from the formula.
#include "kernels/trace.h"

#include <array>

namespace lacewing::kernels::reference {
namespace {

template <typename T>
void trace_typed(const TraceArgs& args) {
  using Acc = accumulate_t<T>;
  const std::int64_t states = args.states;
  const std::int64_t first = args.first_own();
  const std::int64_t own = args.own_states();
  const std::int64_t batch = args.batch;
  auto* const trace = static_cast<T*>(args.trace);
  const auto* const x = static_cast<const T*>(args.x);
  const auto* const before = static_cast<const T*>(args.shared_before);
  const auto* const after = static_cast<const T*>(args.shared_after);
  const auto* const df = static_cast<const T*>(args.df);
  const auto* const decay = static_cast<const T*>(args.decay);
  const auto* const g = static_cast<const T*>(args.g);
  for (std::int64_t p = 0; p < args.entries; ++p) {
    const std::int64_t column = args.column != nullptr ? args.column[p] : p;
    Acc sum{};
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto element = [&](const T* rows) { return widen(rows[args.row[p] * batch + b]); };
      std::array<Acc, kMaxStates> e{};
      for (std::int64_t a = first; a < states; ++a) {
        e[static_cast<std::size_t>(a)] = widen(trace[(p * own + a - first) * batch + b]);
      }
      if (df != nullptr) {
        const Acc input = after != nullptr ? element(after) : x != nullptr ? element(x) : Acc{1};
        e[0] = after != nullptr ? element(before) : e[0];
        std::array<Acc, kMaxStates> next{};
        for (std::int64_t a = first; a < states; ++a) {
          const Acc direct = widen(df[(column * states + a) * batch + b]);
          Acc value = input * direct;
          for (std::int64_t c = 0; c < states; ++c) {
            const Acc from = widen(decay[((column * states + a) * states + c) * batch + b]);
            // What y does comes with u' already.
            const Acc twice = c < first ? static_cast<Acc>(args.shared_decay) * direct : Acc{};
            value += (from - twice) * e[static_cast<std::size_t>(c)];
          }
          T& entry = trace[(p * own + a - first) * batch + b];
          entry = narrow<T>(value);
          next[static_cast<std::size_t>(a)] = widen(entry);
        }
        e = next;
      }
      e[0] = after != nullptr ? element(after) : e[0];
      for (std::int64_t a = 0; g != nullptr && a < states; ++a) {
        sum += widen(g[(column * states + a) * batch + b]) * e[static_cast<std::size_t>(a)];
      }
    }
    if (g != nullptr) {
      static_cast<Acc*>(args.grad)[args.order != nullptr ? args.order[p] : p] += sum;
    }
  }
}

}  // namespace

void trace(std::span<const TraceArgs> steps) {
  for (const TraceArgs& args : steps) {
    visit_real(args.type, [&](auto scalar) { trace_typed<decltype(scalar)>(args); });
  }
}

}  // namespace lacewing::kernels::reference
