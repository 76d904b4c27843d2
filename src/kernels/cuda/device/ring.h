// Stages of shared memory that one warpgroup fills and others read: a barrier of each says that it is full, another
// that it is empty.
#pragma once

#include "kernels/cuda/device/ptx.h"

namespace lacewing::kernels::cuda {

/// A stage, and the round of its barriers.
template <int Stages>
struct RingPlace {
  int stage = 0;
  std::uint32_t round = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      round ^= 1u;
    }
  }
};

template <int Stages, int StageBytes>
class Ring {
 public:
  using Place = RingPlace<Stages>;

  /// In dynamic shared memory of Stages * (StageBytes + 16) + 1024 bytes. Every thread of the block makes one.
  __device__ __forceinline__ Ring(const void* shared, std::uint32_t fillers, std::uint32_t readers)
      : stages_((ptx::shared_address(shared) + 1023u) & ~1023u), barriers_(stages_ + Stages * StageBytes) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < Stages; ++s) {
        ptx::mbarrier_init(full(s), fillers);
        ptx::mbarrier_init(empty(s), readers);
      }
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }

  __device__ __forceinline__ std::uint32_t stage(int s) const { return stages_ + s * StageBytes; }
  __device__ __forceinline__ std::uint32_t full(int s) const { return barriers_ + 8 * s; }

  /// Who fills waits here; a first round finds all stages empty.
  __device__ __forceinline__ void wait_empty(Place place) const {
    ptx::mbarrier_wait(empty(place.stage), place.round ^ 1u);
  }
  __device__ __forceinline__ void wait_full(Place place) const { ptx::mbarrier_wait(full(place.stage), place.round); }
  /// One lane of each warp that reads.
  __device__ __forceinline__ void release(int s) const {
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive(empty(s));
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t empty(int s) const { return barriers_ + 8 * (Stages + s); }

  std::uint32_t stages_;
  std::uint32_t barriers_;
};

}  // namespace lacewing::kernels::cuda
