// Tiles that a block computes, one after the other, and the taps of each: what copies and what multiplies walk over.
#pragma once

#include "kernels/cuda/conv_tables.h"

namespace lacewing::kernels::cuda {

/// The lists of a part's tiles, for kernels.
struct TileList {
  const TileTaps* tiles;
  std::int32_t count;
  std::int32_t words;
};

/// Where a worker's n-th tile lies in the list: all workers begin with the heaviest ones and end with the lightest.
struct InStep {
  int worker, workers;

  __device__ __forceinline__ InStep(const TileList&, int number, int count) : worker(number), workers(count) {}
  __device__ __forceinline__ int operator()(int n) const { return worker + workers * n; }
};

/// Each begins with another round, so that some multiply while others move rows; all end with the tiles that make no
/// whole round.
struct InTurns {
  int worker, workers, rounds, first;

  __device__ __forceinline__ InTurns(const TileList& list, int number, int count)
      : worker(number),
        workers(count),
        rounds(list.count / count),
        first(static_cast<int>(static_cast<std::int64_t>(number) * rounds / count)) {}
  __device__ __forceinline__ int operator()(int n) const {
    const int turned = n + first;
    return worker + workers * (n >= rounds ? n : turned >= rounds ? turned - rounds : turned);
  }
};

/// A worker's tiles, a word of taps at a time; the next word is read ahead.
template <typename Places>
class TileWalk {
 public:
  __device__ __forceinline__ TileWalk(const TileList& list, int worker, int workers)
      : list_(list), place_(list, worker, workers), now_(load(0, 0)), ahead_(now_) {
    read_ahead();
  }

  __device__ __forceinline__ bool in_tiles() const { return place_(round_) < list_.count; }
  __device__ __forceinline__ const TileTaps& operator*() const { return now_; }
  __device__ __forceinline__ const TileTaps* operator->() const { return &now_; }
  /// The one that follows; its tile may be beyond the last.
  __device__ __forceinline__ const TileTaps& ahead() const { return ahead_; }
  __device__ __forceinline__ int word() const { return word_; }
  __device__ __forceinline__ bool is_last_word() const { return word_ + 1 == list_.words; }
  __device__ __forceinline__ void advance() {
    next(round_, word_);
    now_ = ahead_;
    read_ahead();
  }

 private:
  __device__ __forceinline__ void next(int& round, int& word) const {
    if (++word == list_.words) {
      word = 0;
      ++round;
    }
  }
  __device__ __forceinline__ TileTaps load(int round, int word) const {
    const int at = place_(round);
    if (at >= list_.count) {
      return {};
    }
    return __builtin_bit_cast(TileTaps, __ldg(reinterpret_cast<const int4*>(list_.tiles) + at * list_.words + word));
  }
  __device__ __forceinline__ void read_ahead() {
    int round = round_;
    int word = word_;
    next(round, word);
    ahead_ = load(round, word);
  }

  const TileList& list_;
  Places place_;
  int round_ = 0;
  int word_ = 0;
  TileTaps now_;
  TileTaps ahead_;
};

/// The taps that any of the groups needs.
template <int Groups>
__device__ __forceinline__ std::uint32_t any_taps(const TileTaps& tile) {
  std::uint32_t any = tile.taps[0];
#pragma unroll
  for (int g = 1; g < Groups; ++g) {
    any |= tile.taps[g];
  }
  return any;
}

}  // namespace lacewing::kernels::cuda
