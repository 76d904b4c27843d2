// One function for each instruction that C++ has no word for, under its own name and without logic. Addresses in shared
// memory are 32-bit numbers.
#pragma once

#include <cstdint>

#include <cuda.h>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "wait_%=;\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

/// What other threads have written to shared memory, for the engines that read it by themselves.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// 16 bytes, or zeros. The address may be any where nothing is read.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool reads) {
  asm volatile(
      "{\n.reg .pred ignore;\nsetp.eq.u32 ignore, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, ignore;\n}" ::"r"(
          to),
      "l"(from), "r"(static_cast<std::uint32_t>(reads))
      : "memory");
}

/// The same, of rows of more than 128 bytes.
__device__ __forceinline__ void cp_async_16_of_256(std::uint32_t to, const void* from, bool reads) {
  asm volatile(
      "{\n.reg .pred ignore;\nsetp.eq.u32 ignore, %2, 0;\n"
      "cp.async.cg.shared.global.L2::256B [%0], [%1], 16, ignore;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(reads))
      : "memory");
}

__device__ __forceinline__ void cp_async_8(std::uint32_t to, const void* from, bool reads) {
  asm volatile(
      "{\n.reg .pred ignore;\nsetp.eq.u32 ignore, %2, 0;\ncp.async.ca.shared.global [%0], [%1], 8, ignore;\n}" ::"r"(
          to),
      "l"(from), "r"(static_cast<std::uint32_t>(reads))
      : "memory");
}

/// Read where it stands: loads of a branch that is seldom taken cost no registers elsewhere.
__device__ __forceinline__ std::uint32_t ld_global_32(const void* from) {
  std::uint32_t value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

__device__ __forceinline__ float2 ld_global_f32x2(const void* from) {
  float2 pair;
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "l"(from));
  return pair;
}

__device__ __forceinline__ void prefetch_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line) : "memory");
}

/// The barrier hears of it when the copies of this thread so far are done.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Groups>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

/// A box of a tensor of three dims; the barrier gets its bytes.
__device__ __forceinline__ void cp_async_bulk_tensor_3d(std::uint32_t to, const CUtensorMap* map, int x, int y, int z,
                                                        std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

template <int Registers>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Groups>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}

/// sums += a b for fragments of 16 x 16 and 16 x 8.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Four matrices of 8 x 8, each transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// Two sums rounded to T, the first in the lower half.
template <typename T>
__device__ __forceinline__ std::uint32_t cvt_rn_x2(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

}  // namespace lacewing::kernels::cuda::ptx
