// A team of threads owns a column of a segment: eight lanes, or a block where the segment is long. Which of the two
// follows from the segment's length alone, and so does the order of its sum: each thread adds every n-th row, and
// threads are added by a tree.
#include <cmath>
#include <limits>

#include "kernels/cuda/device/launch.h"
#include "kernels/segment_rows.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;
constexpr std::int64_t kLong = 1024;  ///< rows of a segment that are worth a block

template <typename T, typename Index>
struct Segments {
  const T* values;
  const Index* order;
  const Index* segments;
  std::int64_t groups, width;

  __device__ std::int64_t begin(std::int64_t g) const { return segments != nullptr ? segments[g] : g; }
  __device__ std::int64_t end(std::int64_t g) const { return segments != nullptr ? segments[g + 1] : g + 1; }
  __device__ std::int64_t row(std::int64_t k) const { return order != nullptr ? order[k] : k; }
  __device__ bool is_long(std::int64_t g) const { return end(g) - begin(g) >= kLong; }
};

struct Plus {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};

/// The more extreme of two, NaN above all.
struct MoreExtreme {
  bool largest;

  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a != a || (b == b && (largest ? a > b : a < b)) ? a : b;
  }
};

/// Neighbouring lanes of a warp.
struct Lanes {
  static constexpr int kSize = kLanes;
  int thread;

  template <typename V, typename F>
  __device__ V all(V value, F&& f) const {
    for (int mask = 1; mask < kSize; mask *= 2) {
      value = f(value, __shfl_xor_sync(0xffffffffu, value, mask));
    }
    return value;
  }
};

/// A block, over shared memory.
template <typename V>
struct Block {
  static constexpr int kSize = kThreads;
  int thread;
  V* shared;

  template <typename F>
  __device__ V all(V value, F&& f) const {
    shared[thread] = value;
    __syncthreads();
    for (int half = kSize / 2; half > 0; half /= 2) {
      if (thread < half) {
        shared[thread] = f(shared[thread], shared[thread + half]);
      }
      __syncthreads();
    }
    value = shared[0];
    __syncthreads();
    return value;
  }
};

template <typename T>
struct Extreme {
  bool largest;
  T* out;

  template <typename Team, typename Index>
  __device__ void operator()(const Team& team, const Segments<T, Index>& s, std::int64_t g, std::int64_t c,
                             std::int64_t begin, std::int64_t end) const {
    const MoreExtreme more{largest};
    // Where a thread has no row of its own, it takes the first.
    auto found = begin < end ? widen(s.values[s.row(begin) * s.width + c]) : accumulate_t<T>{};
    for (std::int64_t k = begin + team.thread; k < end; k += Team::kSize) {
      found = more(found, widen(s.values[s.row(k) * s.width + c]));
    }
    found = team.all(found, more);
    if (team.thread == 0 && begin < end) {
      out[g * s.width + c] = narrow<T>(found);
    }
  }
};

template <typename T>
struct Softmax {
  bool logarithm;
  T* out;

  template <typename Team, typename Index>
  __device__ void operator()(const Team& team, const Segments<T, Index>& s, std::int64_t, std::int64_t c,
                             std::int64_t begin, std::int64_t end) const {
    using Acc = accumulate_t<T>;
    using std::exp;
    using std::log;
    const MoreExtreme more{/*largest=*/true};
    const auto value = [&](std::int64_t k) { return widen(s.values[s.row(k) * s.width + c]); };
    Acc largest = begin < end ? value(begin) : Acc{};
    for (std::int64_t k = begin + team.thread; k < end; k += Team::kSize) {
      largest = more(largest, value(k));
    }
    largest = team.all(largest, more);
    Acc sum{};
    for (std::int64_t k = begin + team.thread; k < end; k += Team::kSize) {
      sum += exp(value(k) - largest);
    }
    sum = team.all(sum, Plus{});
    const Acc log_sum = logarithm ? log(sum) : Acc{};
    for (std::int64_t k = begin + team.thread; k < end; k += Team::kSize) {
      const Acc shifted = value(k) - largest;
      out[s.row(k) * s.width + c] = narrow<T>(logarithm ? shifted - log_sum : exp(shifted) / sum);
    }
  }
};

template <typename T, typename Index, typename Work>
__global__ void __launch_bounds__(kThreads)
    short_segments_kernel(const __grid_constant__ Segments<T, Index> s, const __grid_constant__ Work work) {
  constexpr int kTeams = kThreads / kLanes;
  const Lanes team{static_cast<int>(threadIdx.x) % kLanes};
  const std::int64_t items = s.groups * s.width;
  const std::int64_t blocks = (items + kTeams - 1) / kTeams;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {  // equal rounds for all lanes
    const std::int64_t item = block * kTeams + threadIdx.x / kLanes;
    const std::int64_t g = s.width == 1 ? item : item / s.width;
    const bool mine = item < items && !s.is_long(g);
    work(team, s, g, item - g * s.width, mine ? s.begin(g) : 0, mine ? s.end(g) : 0);
  }
}

/// A block looks at as many segments as it has threads, then works on the long ones among them.
template <typename T, typename Index, typename Work>
__global__ void __launch_bounds__(kThreads)
    long_segments_kernel(const __grid_constant__ Segments<T, Index> s, const __grid_constant__ Work work) {
  using Acc = accumulate_t<T>;
  __shared__ Acc memory[kThreads];
  __shared__ int found[kThreads];
  __shared__ int count;
  const Block<Acc> team{static_cast<int>(threadIdx.x), memory};
  const std::int64_t blocks = (s.groups + kThreads - 1) / kThreads;
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    if (threadIdx.x == 0) {
      count = 0;
    }
    __syncthreads();
    if (const std::int64_t g = block * kThreads + threadIdx.x; g < s.groups && s.is_long(g)) {
      found[atomicAdd(&count, 1)] = static_cast<int>(threadIdx.x);
    }
    __syncthreads();
    for (int k = 0; k < count; ++k) {
      const std::int64_t g = block * kThreads + found[k];
      for (std::int64_t c = 0; c < s.width; ++c) {
        work(team, s, g, c, s.begin(g), s.end(g));
      }
    }
    __syncthreads();
  }
}

template <typename T, typename Work>
void run(const SegmentRows& rows, const Work& work, const CudaExecutor& executor) {
  const auto with = [&](auto index) {
    using Index = decltype(index);
    const Segments<T, Index> s{static_cast<const T*>(rows.values), static_cast<const Index*>(rows.order),
                               static_cast<const Index*>(rows.segments), rows.groups, rows.width};
    launch({"short_segments", blocks_for(rows.groups * rows.width, kThreads / kLanes), kThreads}, executor,
           short_segments_kernel<T, Index, Work>, s, work);
    if (rows.segments != nullptr) {
      launch({"long_segments", blocks_for(rows.groups, kThreads), kThreads}, executor,
             long_segments_kernel<T, Index, Work>, s, work);
    }
  };
  rows.wide ? with(std::int64_t{}) : with(std::int32_t{});
}

template <typename F>
void visit_float(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::f16: return f(Half{});
    case ScalarType::bf16: return f(BFloat16{});
    case ScalarType::f64: return f(double{});
    default: return f(float{});
  }
}

}  // namespace

void segment_extreme(const SegmentRows& rows, bool largest, void* out, const CudaExecutor& executor) {
  const auto with = [&](auto scalar) {
    using T = decltype(scalar);
    run<T>(rows, Extreme<T>{largest, static_cast<T*>(out)}, executor);
  };
  rows.type == ScalarType::i64 ? with(std::int64_t{}) : visit_float(rows.type, with);
}

void segment_softmax(const SegmentRows& rows, bool logarithm, void* out, const CudaExecutor& executor) {
  visit_float(rows.type, [&](auto scalar) {
    using T = decltype(scalar);
    run<T>(rows, Softmax<T>{logarithm, static_cast<T*>(out)}, executor);
  });
}

}  // namespace lacewing::kernels::cuda
