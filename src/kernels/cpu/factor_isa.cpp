// The contraction of pp-prop's factors: a block of neurons at a time, whose gy stays in cache while the entries of its
// columns are summed. Compiled once for each ISA level.
#include <algorithm>
#include <vector>

#include "kernels/cpu/etp_isa.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// Elements of gy in a block.
constexpr std::int64_t kTile = 8192;

template <typename T>
struct Block {
  using L = Lanes<T>;
  using Vec = typename L::Vec;

  const FactorArgs& args;
  std::int64_t first;
  std::int64_t last;
  T* gy;      ///< (last - first, batch)
  T* turned;  ///< the same size: g of one state, batch last

  /// Calls f(b, count) for the lanes of the batch.
  template <typename F>
  LACEWING_INLINE void lanes(F&& f) const {
    std::int64_t b = 0;
    for (; b + L::lanes <= args.batch; b += L::lanes) {
      f(b, L::lanes);
    }
    if (b < args.batch) {
      f(b, static_cast<int>(args.batch - b));
    }
  }

  void multiply() const {
    std::fill(gy, gy + (last - first) * args.batch, T{});
    for (std::int64_t a = 0; a < args.states; ++a) {
      const StateGradientView& g = args.g[a];
      if (g.data == nullptr) {
        continue;
      }
      const T* from = static_cast<const T*>(g.data) + first * g.neuron_stride;
      std::int64_t stride = g.neuron_stride;
      if (g.batch_stride != 1) {
        // Neurons run fastest on both sides of the loop: rows of g lie a power of two apart more often than not.
        for (std::int64_t b = 0; b < args.batch; ++b) {
          for (std::int64_t o = 0; o < last - first; ++o) {
            turned[o * args.batch + b] = from[o * g.neuron_stride + b * g.batch_stride];
          }
        }
        from = turned;
        stride = args.batch;
      }
      for (std::int64_t o = first; o < last; ++o) {
        const T* const ef = static_cast<const T*>(args.ef) + (o * args.states + a) * args.batch;
        const T* const row = from + (o - first) * stride;
        T* const to = gy + (o - first) * args.batch;
        lanes([&](std::int64_t b, int count) LACEWING_INLINE_LAMBDA {
          L::store(to + b, L::load(to + b, count) + L::load(ef + b, count) * L::load(row + b, count), count);
        });
      }
    }
  }

  LACEWING_INLINE Vec products(const FactorPart& part, std::int64_t p) const {
    const T* const x = static_cast<const T*>(part.x) + part.row[p] * args.batch;
    const T* const row = gy + (part.column[p] - first) * args.batch;
    Vec sum{};
    lanes([&](std::int64_t b, int count)
              LACEWING_INLINE_LAMBDA { sum += L::load(x + b, count) * L::load(row + b, count); });
    return sum;
  }

  void contract(const FactorPart& part) const {
    T* const grad = static_cast<T*>(part.grad);
    const T factor = static_cast<T>(args.factor);
    const std::int64_t end = part.segments[last];
    std::int64_t p = part.segments[first];
    // A vector's worth of entries at a time: their sums over the lanes come out side by side.
    for (; p + L::lanes <= end; p += L::lanes) {
      Vec sums[L::lanes];
      for (int i = 0; i < L::lanes; ++i) {
        sums[i] = products(part, p + i);
      }
      const Vec found = factor * sum_each<T, L::lanes / 2>(sums);
      if (part.order == nullptr) {
        Simd<T>::store(grad + p, Simd<T>::load(grad + p) + found);
      } else {
        for (int i = 0; i < L::lanes; ++i) {
          grad[part.order[p + i]] += found[i];
        }
      }
    }
    for (; p < end; ++p) {
      grad[part.order != nullptr ? part.order[p] : p] += factor * Simd<T>::sum(products(part, p));
    }
    if (part.bias_grad != nullptr) {
      for (std::int64_t o = first; o < last; ++o) {
        Vec sum{};
        lanes([&](std::int64_t b, int count)
                  LACEWING_INLINE_LAMBDA { sum += L::load(gy + (o - first) * args.batch + b, count); });
        static_cast<T*>(part.bias_grad)[o] += static_cast<T>(args.bias_factor) * Simd<T>::sum(sum);
      }
    }
  }
};

template <typename T>
void contract_typed(const FactorArgs& args, const CpuExecutor& executor) {
  const std::int64_t width = std::clamp<std::int64_t>(kTile / std::max<std::int64_t>(args.batch, 1), 1, 256);
  const std::int64_t blocks = (args.neurons + width - 1) / width;
  executor.parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> buffer(static_cast<std::size_t>(2 * width * args.batch));
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * width;
      const Block<T> now{args, first, std::min(first + width, args.neurons), buffer.data(),
                         buffer.data() + width * args.batch};
      now.multiply();
      for (int i = 0; i < args.part_count; ++i) {
        now.contract(args.parts[i]);
      }
    }
  });
}

}  // namespace

void contract_factors(const FactorArgs& args, const CpuExecutor& executor) {
  if (args.type == ScalarType::f64) {
    contract_typed<double>(args, executor);
  } else {
    contract_typed<float>(args, executor);
  }
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
