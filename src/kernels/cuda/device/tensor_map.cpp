#include "kernels/cuda/device/tensor_map.h"

#include <stdexcept>
#include <string>

#include "kernels/cuda/device/launch.h"

namespace lacewing::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's own, found at run time: nothing is linked for it.
Encode find_encode() {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
  if (found == nullptr) {
    throw std::runtime_error("[lacewing] the CUDA driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(found);
}

}  // namespace

CUtensorMap half_matrices(const void* data, std::int64_t matrices, std::int64_t rows, std::int64_t columns,
                          int box_rows) {
  static const Encode encode = find_encode();
  const auto count = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {count(columns), count(rows), count(matrices)};
  const cuuint64_t strides[] = {count(columns * 2), count(rows * columns * 2)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult error = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void*>(data), sizes, strides, box,
                                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {
    throw std::runtime_error("[lacewing] cuTensorMapEncodeTiled: error " + std::to_string(error));
  }
  return map;
}

}  // namespace lacewing::kernels::cuda
