// Measured in native code beside ours: a kernel map by a hash table with one probe per tap, rows gathered and added by
// plain loops, and the FMA rate.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <vector>

namespace {

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t key_of(std::int64_t b, std::int64_t x, std::int64_t y, std::int64_t z) {
  constexpr std::int64_t kShift = 1 << 16;
  return (static_cast<std::uint64_t>(b) << 51) | (static_cast<std::uint64_t>(x + kShift) << 34) |
         (static_cast<std::uint64_t>(y + kShift) << 17) | static_cast<std::uint64_t>(z + kShift);
}

}  // namespace

/// The pairs of a submanifold 3x3x3 kernel over (b, x, y, z) rows, tap after tap, by open addressing at a load of at
/// most one half. `source` and `target` hold 27 * rows each; returns the number of pairs. Probes run on all threads.
extern "C" std::int64_t hash_kernel_map(const std::int32_t* voxels, std::int64_t rows, std::int32_t* source,
                                        std::int32_t* target) {
  constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::uint64_t capacity = 1;
  while (capacity < 2 * static_cast<std::uint64_t>(rows)) {
    capacity *= 2;
  }
  std::vector<std::uint64_t> keys(capacity, kEmpty);
  std::vector<std::int32_t> values(capacity);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int32_t* const v = voxels + 4 * i;
    const std::uint64_t key = key_of(v[0], v[1], v[2], v[3]);
    std::uint64_t slot = mixed(key) & (capacity - 1);
    while (keys[slot] != kEmpty) {
      slot = (slot + 1) & (capacity - 1);
    }
    keys[slot] = key;
    values[slot] = static_cast<std::int32_t>(i);
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(27 * rows));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int32_t* const v = voxels + 4 * i;
    int tap = 0;
    for (int dx = -1; dx <= 1; ++dx) {
      for (int dy = -1; dy <= 1; ++dy) {
        for (int dz = -1; dz <= 1; ++dz, ++tap) {
          const std::uint64_t key = key_of(v[0], v[1] + dx, v[2] + dy, v[3] + dz);
          std::uint64_t slot = mixed(key) & (capacity - 1);
          while (keys[slot] != kEmpty && keys[slot] != key) {
            slot = (slot + 1) & (capacity - 1);
          }
          table[static_cast<std::size_t>(tap * rows + i)] = keys[slot] == key ? values[slot] : -1;
        }
      }
    }
  }
  std::int64_t pairs = 0;
  for (int tap = 0; tap < 27; ++tap) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int32_t found = table[static_cast<std::size_t>(tap * rows + i)];
      if (found >= 0) {
        source[pairs] = found;
        target[pairs++] = static_cast<std::int32_t>(i);
      }
    }
  }
  return pairs;
}

/// to[k] = from[index[k]], rows of so many floats.
extern "C" void gather_rows(const float* from, float* to, const std::int32_t* index, std::int64_t rows,
                            std::int64_t channels) {
#pragma omp parallel for schedule(static)
  for (std::int64_t k = 0; k < rows; ++k) {
    std::memcpy(to + k * channels, from + index[k] * channels, static_cast<std::size_t>(channels) * sizeof(float));
  }
}

/// to[index[k]] += from[k], distinct indices.
extern "C" void scatter_add_rows(const float* from, float* to, const std::int32_t* index, std::int64_t rows,
                                 std::int64_t channels) {
#pragma omp parallel for schedule(static)
  for (std::int64_t k = 0; k < rows; ++k) {
    float* const row = to + index[k] * channels;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      row[c] += from[k * channels + c];
    }
  }
}

/// Single-precision operations per second of independent multiply-adds in registers, on so many threads: the best of
/// many short loops over a quarter of a second, so that another process that takes a core for a while does not lower
/// it.
extern "C" double fma_rate(int threads) {
  constexpr std::int64_t kSteps = 2'000'000;
  constexpr int kChains = 12;
#if defined(__AVX512F__)
  constexpr int kLanes = 16;
#else
  constexpr int kLanes = 8;
#endif
  typedef float Vector __attribute__((vector_size(4 * kLanes)));
  using Clock = std::chrono::steady_clock;
  double best = 0;
  const auto begin = Clock::now();
  while (Clock::now() - begin < std::chrono::milliseconds(250)) {
    float sink = 0;
    const auto start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    {
      Vector sums[kChains];
      for (int i = 0; i < kChains; ++i) {
        sums[i] = Vector{} + static_cast<float>(i);  // apart, or the compiler would keep one of them
      }
      Vector a = Vector{} + 0.5f;
      Vector b = Vector{} + 1.0f;
      for (std::int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) {
          sums[i] = sums[i] * a + b;
        }
        asm volatile("" : "+v"(a), "+v"(b));
      }
      for (const Vector& sum : sums) {
        sink += sum[0];
      }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = 2.0 * kLanes * kChains * kSteps * threads / seconds;
    best = rate > best && sink > 0 ? rate : best;
  }
  return best;
}
