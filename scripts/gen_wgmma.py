"""Writes src/kernels/cuda/device/wgmma.h: one wrapper for each width of wgmma.mma_async m64nNk16 and each type."""

import pathlib

COLUMNS = (64, 128, 256)
TYPES = {"Half": "f16", "BFloat16": "bf16"}

HEAD = """// Written by scripts/gen_wgmma.py.
//
// Wgmma<N, T, a_by_rows, b_by_columns>::mma(sums, a, b): sums += A B for A (64, 16) and B (16, N), both in shared
// memory, described by wgmma_operand. An operand lies there with its 16 products side by side, or, where a_by_rows
// (b_by_columns) is 1, with its rows (columns) side by side.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels::cuda {

/// Rows of 128 bytes, swizzled; bytes between blocks of 64 columns and between groups of eight rows.
__device__ __forceinline__ std::uint64_t wgmma_operand(std::uint32_t address, std::uint32_t block_bytes,
                                                       std::uint32_t group_bytes) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) | static_cast<std::uint64_t>(block_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(group_bytes >> 4) << 32 | kSwizzle128;
}

template <int N, typename T, int ARows, int BColumns>
struct Wgmma;

// clang-format off
"""


def wrapper(columns: int, name: str, suffix: str) -> str:
    registers = columns // 2
    places = ",".join(f"%{i}" for i in range(registers))
    operands = ",".join(f'"+f"(d[{i}])' for i in range(registers))
    a, b, trans_a, trans_b = range(registers, registers + 4)
    return (
        f"template <int ARows, int BColumns>\nstruct Wgmma<{columns}, {name}, ARows, BColumns> {{\n"
        f"  static __device__ __forceinline__ void mma(float (&d)[{registers}], std::uint64_t a, std::uint64_t b) {{\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{suffix}.{suffix} {{{places}}},'
        f'%{a},%{b},1,1,1,%{trans_a},%{trans_b};"\n'
        f'      : {operands} : "l"(a), "l"(b), "n"(ARows), "n"(BColumns));\n  }}\n}};\n'
    )


def main() -> None:
    path = pathlib.Path(__file__).parents[1] / "src/kernels/cuda/device/wgmma.h"
    wrappers = [wrapper(columns, name, suffix) for columns in COLUMNS for name, suffix in TYPES.items()]
    path.write_text(HEAD + "\n".join(wrappers) + "// clang-format on\n\n}  // namespace lacewing::kernels::cuda\n")


if __name__ == "__main__":
    main()
