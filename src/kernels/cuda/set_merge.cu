// Two sets of keys as one, in two passes: how many keys are kept of each tile of the merged order, then the keys and
// what belongs to them. The merged order itself is never in memory.
#include "kernels/cuda/device/cub.h"
#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/device_index.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kEach = 8;  ///< keys of the merged order that a thread takes
constexpr int kTile = SetMerge::kTile;
static_assert(kTile == kThreads * kEach);

/// How many keys of a are among the first `place` of the merged order, where of two equal keys that of a comes first.
/// Read by lanes together.
template <typename Count, typename A, typename B>
__device__ __forceinline__ Count keys_of_a(Count place, Count a_count, Count b_count, const A& a, const B& b, int lane,
                                           int lanes, unsigned together) {
  const Count least = place > b_count ? place - b_count : 0;
  const Count most = place < a_count ? place : a_count;
  return last_where(least, most + 1, lane, lanes, together,
                    [&](Count taken) { return taken == least || a(taken - 1) <= b(place - taken); });
}

/// Where each tile of the merged order begins in a, found by a warp.
__global__ void __launch_bounds__(kThreads) cut_sets_kernel(const __grid_constant__ SetMerge merge) {
  constexpr int kWarps = kThreads / kWarp;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t both = merge.a_count + merge.b_count;
  for (std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; tile <= merge.tiles();
       tile += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t cut = keys_of_a(
        tile * kTile < both ? tile * kTile : both, merge.a_count, merge.b_count,
        [&](std::int64_t i) { return merge.a[i]; }, [&](std::int64_t i) { return merge.b[i]; }, lane, kWarp,
        kWholeWarp);
    if (lane == 0) {
      merge.cuts[tile] = cut;
    }
  }
}

/// A key that is kept, in a tile: where it lies in either set's part of it, or kNone.
struct Kept {
  static constexpr unsigned kNone = 0xffff;
  unsigned in_a, in_b;

  __device__ unsigned packed() const { return in_a << 16 | in_b; }
  static __device__ Kept of(unsigned packed) { return {packed >> 16, packed & 0xffff}; }
};

/// A block's tile: the keys of both sets that lie in it, with the one of a before it and the one of b after it, where
/// there are any: they tell whether a key is in both sets.
class Tile {
 public:
  static constexpr int kKeys = kTile + 2;

  /// `keys` are shared memory. All threads of a block come here.
  __device__ Tile(const SetMerge& merge, std::int64_t number, std::int64_t (&keys)[kKeys])
      : common_(merge.common), keys_(keys) {
    const auto thread = static_cast<int>(threadIdx.x);
    const std::int64_t both = merge.a_count + merge.b_count;
    const std::int64_t begin = number * kTile;
    const std::int64_t end = begin + kTile < both ? begin + kTile : both;
    a_begin_ = merge.cuts[number];
    b_begin_ = begin - a_begin_;
    a_count_ = static_cast<int>(merge.cuts[number + 1] - a_begin_);
    b_count_ = static_cast<int>(end - begin) - a_count_;
    const bool more_b = b_begin_ + b_count_ < merge.b_count;
    for (int i = thread; i < a_count_ + b_count_ + 2; i += kThreads) {
      const bool is_a = i <= a_count_;
      const std::int64_t at = is_a ? a_begin_ + i - 1 : b_begin_ + i - 1 - a_count_;
      const bool is_there = is_a ? at >= 0 : i <= a_count_ + b_count_ || more_b;
      keys[i] = is_there ? (is_a ? merge.a : merge.b)[at] : kNoKey;
    }
    __syncthreads();
  }

  /// Calls f(kept) for the keys that are kept of this thread's share of the merged order.
  template <typename F>
  __device__ __forceinline__ void each(F&& f) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const int both = a_count_ + b_count_;
    const int place = thread * kEach < both ? thread * kEach : both;
    // A lane searches for itself.
    int i = keys_of_a(
        place, a_count_, b_count_, [&](int at) { return a(at); }, [&](int at) { return b(at); }, 0, 1,
        1u << (threadIdx.x % kWarp));
    int j = place - i;
    for (int k = 0; k < kEach && i + j < both; ++k) {
      const std::int64_t in_a = a(i);
      const std::int64_t in_b = b(j);
      if (i < a_count_ && (j >= b_count_ || in_a <= in_b)) {
        const bool pair = in_a == in_b;
        if (pair || !common_) {
          f(Kept{static_cast<unsigned>(i), pair ? static_cast<unsigned>(j) : Kept::kNone});
        }
        ++i;
      } else {
        if (!common_ && a(i - 1) != in_b) {
          f(Kept{Kept::kNone, static_cast<unsigned>(j)});
        }
        ++j;
      }
    }
  }
  __device__ std::int64_t key(const Kept& kept) const {
    return kept.in_a != Kept::kNone ? a(static_cast<int>(kept.in_a)) : b(static_cast<int>(kept.in_b));
  }
  __device__ std::int64_t place_in_a(const Kept& kept) const {
    return kept.in_a != Kept::kNone ? a_begin_ + kept.in_a : -1;
  }
  __device__ std::int64_t place_in_b(const Kept& kept) const {
    return kept.in_b != Kept::kNone ? b_begin_ + kept.in_b : -1;
  }

 private:
  static constexpr std::int64_t kNoKey = -1;

  /// From -1, the key before, to a_count_: there the first of b is read, which nobody asks for.
  __device__ std::int64_t a(int i) const { return keys_[i + 1]; }
  /// To b_count_, the key after.
  __device__ std::int64_t b(int j) const { return keys_[a_count_ + 1 + j]; }

  bool common_;
  const std::int64_t* keys_;
  std::int64_t a_begin_ = 0;
  std::int64_t b_begin_ = 0;
  int a_count_ = 0;
  int b_count_ = 0;
};

/// The sum of what the threads before have; `all` becomes that of all of them.
__device__ __forceinline__ int sum_before(int mine, int (&of_warps)[kThreads / kWarp], int& all) {
  const auto warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  int upto = mine;
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = from_lane(upto, lane >= step ? lane - step : lane, kWarp, kWholeWarp);
    upto += lane >= step ? before : 0;
  }
  if (lane == kWarp - 1) {
    of_warps[warp] = upto;
  }
  __syncthreads();
  int before = 0;
  all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    before += w < warp ? of_warps[w] : 0;
    all += of_warps[w];
  }
  return before + upto - mine;
}

__global__ void __launch_bounds__(kThreads) count_kept_kernel(const __grid_constant__ SetMerge merge) {
  __shared__ std::int64_t keys[Tile::kKeys];
  __shared__ int of_warps[kThreads / kWarp];
  for (std::int64_t number = blockIdx.x; number < merge.tiles(); number += gridDim.x) {
    const Tile tile(merge, number, keys);
    int mine = 0;
    tile.each([&](const Kept&) { ++mine; });
    int all = 0;
    sum_before(mine, of_warps, all);
    if (threadIdx.x == 0) {
      merge.kept[number] = static_cast<std::uint64_t>(all);
    }
    __syncthreads();
  }
}

/// Calls f(place, in_a, in_b) for the keys that are kept, after they are written: neighbours by neighbouring threads.
template <typename F>
__device__ __forceinline__ void for_kept(const SetMerge& merge, F&& f) {
  __shared__ std::int64_t keys[Tile::kKeys];
  __shared__ int of_warps[kThreads / kWarp];
  __shared__ unsigned kept[kTile];
  for (std::int64_t number = blockIdx.x; number < merge.tiles(); number += gridDim.x) {
    const auto first = static_cast<std::int64_t>(number == 0 ? 0 : merge.kept[number - 1]);
    if (static_cast<std::int64_t>(merge.kept[number]) == first) {
      continue;
    }
    const Tile tile(merge, number, keys);
    int mine = 0;
    tile.each([&](const Kept&) { ++mine; });
    int all = 0;
    int place = sum_before(mine, of_warps, all);
    tile.each([&](const Kept& key) { kept[place++] = key.packed(); });
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
      const Kept key = Kept::of(kept[i]);
      merge.keys[first + i] = tile.key(key);
      f(first + i, tile.place_in_a(key), tile.place_in_b(key));
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    write_places_kernel(const __grid_constant__ SetMerge merge, std::int64_t* in_a, std::int64_t* in_b) {
  for_kept(merge, [&](std::int64_t place, std::int64_t at_a, std::int64_t at_b) {
    in_a[place] = at_a;
    in_b[place] = at_b;
  });
}

template <typename T>
__device__ __forceinline__ T element(const Elements& from, std::int64_t i) {
  return i >= 0 ? static_cast<const T*>(from.values)[i] : *static_cast<const T*>(from.fill);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    write_elements_kernel(const __grid_constant__ SetMerge merge, Elements a, Elements b, T* a_out, T* b_out) {
  for_kept(merge, [&](std::int64_t place, std::int64_t at_a, std::int64_t at_b) {
    a_out[place] = element<T>(a, at_a);
    b_out[place] = element<T>(b, at_b);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    write_combined_kernel(const __grid_constant__ SetMerge merge, Elements a, Elements b, Combine combine, T* out) {
  for_kept(merge, [&](std::int64_t place, std::int64_t at_a, std::int64_t at_b) {
    out[place] = combined(combine, element<T>(a, at_a), element<T>(b, at_b));
  });
}

template <typename... Parameters, typename... Arguments>
void launch_tiles(const char* name, const SetMerge& merge, const CudaExecutor& executor,
                  void (*kernel)(SetMerge, Parameters...), Arguments... arguments) {
  launch({name, merge.tiles(), kThreads}, executor, kernel, merge, arguments...);
}

template <typename T>
void write_combined(const SetMerge& merge, const Elements& a, const Elements& b, Combine combine, void* out,
                    const CudaExecutor& executor) {
  launch_tiles("write_combined", merge, executor, write_combined_kernel<T>, a, b, combine, static_cast<T*>(out));
}

}  // namespace

std::int64_t merge_workspace(const SetMerge& merge) { return running_sum_workspace<std::uint64_t>(merge.tiles()); }

void find_merged(const SetMerge& merge, const CudaExecutor& executor, void* workspace) {
  launch({"cut_sets", blocks_for(merge.tiles() + 1, kThreads / kWarp), kThreads}, executor, cut_sets_kernel, merge);
  launch_tiles("count_kept", merge, executor, count_kept_kernel);
  running_sum<std::uint64_t>(merge.kept, merge.tiles(), executor, workspace, merge_workspace(merge));
}

void write_merged(const SetMerge& merge, std::int64_t* in_a, std::int64_t* in_b, const CudaExecutor& executor) {
  launch_tiles("write_places", merge, executor, write_places_kernel, in_a, in_b);
}

void write_merged(const SetMerge& merge, const Elements& a, const Elements& b, std::int64_t element_bytes, void* a_out,
                  void* b_out, const CudaExecutor& executor) {
  visit_element(element_bytes, [&](auto bytes) {
    using T = decltype(bytes);
    launch_tiles("write_elements", merge, executor, write_elements_kernel<T>, a, b, static_cast<T*>(a_out),
                 static_cast<T*>(b_out));
  });
}

void write_merged(const SetMerge& merge, const Elements& a, const Elements& b, Combine combine, bool is_double,
                  void* out, const CudaExecutor& executor) {
  is_double ? write_combined<double>(merge, a, b, combine, out, executor)
            : write_combined<float>(merge, a, b, combine, out, executor);
}

}  // namespace lacewing::kernels::cuda
