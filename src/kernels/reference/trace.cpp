// The oracle: serial, one element of the trace at a time, straight from the formula.
#include "kernels/trace.h"

#include <array>

namespace lacewing::kernels::reference {
namespace {

template <typename T>
void trace_typed(const TraceArgs& args) {
  using Acc = accumulate_t<T>;
  const std::int64_t states = args.states;
  const std::int64_t batch = args.batch;
  auto* const trace = static_cast<T*>(args.trace);
  const auto* const x = static_cast<const T*>(args.x);
  const auto* const df = static_cast<const T*>(args.df);
  const auto* const decay = static_cast<const T*>(args.decay);
  const auto* const g = static_cast<const T*>(args.g);
  for (std::int64_t p = 0; p < args.entries; ++p) {
    const std::int64_t column = args.column != nullptr ? args.column[p] : p;
    Acc sum{};
    for (std::int64_t b = 0; b < batch; ++b) {
      std::array<Acc, kMaxStates> old{};
      for (std::int64_t a = 0; a < states; ++a) {
        old[static_cast<std::size_t>(a)] = widen(trace[(p * states + a) * batch + b]);
      }
      for (std::int64_t a = 0; a < states; ++a) {
        T& entry = trace[(p * states + a) * batch + b];
        if (df != nullptr) {
          const Acc input = x != nullptr ? widen(x[args.row[p] * batch + b]) : Acc{1};
          Acc value = input * widen(df[(column * states + a) * batch + b]);
          for (std::int64_t c = 0; c < states; ++c) {
            value += widen(decay[((column * states + a) * states + c) * batch + b]) * old[static_cast<std::size_t>(c)];
          }
          entry = narrow<T>(value);
        }
        if (g != nullptr) {
          sum += widen(g[(column * states + a) * batch + b]) * widen(entry);
        }
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
