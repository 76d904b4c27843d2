// CUDA's words for kernels that run on the host: each thread of a block is a fiber, blocks run one after the other. So
// their logic is tested where there is no GPU: indices, ends, barriers, the order of sums. Not their speed, and not
// races between blocks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace cuda_on_host {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// One block: its threads in turn, each until it waits or ends.
class Block {
 public:
  /// Calls body() once for each thread of each block.
  template <typename Body>
  static void run_grid(unsigned blocks, unsigned threads, Body&& body) {
    run_blocks(blocks, threads, [](void* context) { (*static_cast<Body*>(context))(); }, &body);
  }

  /// Waits for all threads of the block, or of the warp.
  static void wait_for_block();
  /// What a lane of the warp has put, of the neighbouring lanes that `together` names: each of them must come.
  static std::uint64_t exchange(std::uint64_t bits, unsigned from, unsigned together);
  /// Which lanes of the warp vote yes, of those that `together` names.
  static unsigned ballot(bool yes, unsigned together);
  /// Whether any thread of the block votes yes.
  static bool any_of_block(bool yes);

 private:
  static void run_blocks(unsigned blocks, unsigned threads, void (*body)(void*), void* context);
};

}  // namespace cuda_on_host

inline cuda_on_host::Index3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { cuda_on_host::Block::wait_for_block(); }
inline int __syncthreads_or(int yes) { return cuda_on_host::Block::any_of_block(yes != 0) ? 1 : 0; }
inline unsigned __ballot_sync(unsigned together, bool yes) { return cuda_on_host::Block::ballot(yes, together); }
inline void __syncwarp() { cuda_on_host::Block::ballot(false, 0xffffffffu); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }

namespace cuda_on_host {
template <typename V>
V exchanged(V value, unsigned from, unsigned together) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(V));
  bits = Block::exchange(bits, from, together);
  std::memcpy(&value, &bits, sizeof(V));
  return value;
}
}  // namespace cuda_on_host

template <typename V>
V __shfl_xor_sync(unsigned together, V value, int mask) {
  return cuda_on_host::exchanged(value, (threadIdx.x & 31u) ^ static_cast<unsigned>(mask), together);
}

template <typename V>
V __shfl_sync(unsigned together, V value, int lane, int width) {
  const unsigned first = (threadIdx.x & 31u) & ~(static_cast<unsigned>(width) - 1);
  return cuda_on_host::exchanged(value, first + static_cast<unsigned>(lane), together);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }

template <typename V>
V __ldcs(const V* from) {
  return *from;
}

template <typename V>
void __stcs(V* to, V value) {
  *to = value;
}

template <typename V>
V atomicAdd(V* to, V value) {
  const V before = *to;
  *to += value;
  return before;
}

template <typename V>
V atomicMax(V* to, V value) {
  const V before = *to;
  *to = before < value ? value : before;
  return before;
}

template <typename V>
V atomicOr(V* to, V value) {
  const V before = *to;
  *to |= value;
  return before;
}

template <typename V>
V max(V a, V b) {
  return a < b ? b : a;
}

template <typename V>
V min(V a, V b) {
  return b < a ? b : a;
}

using cudaError_t = int;
