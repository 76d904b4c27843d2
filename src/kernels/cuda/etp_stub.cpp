// Stands in for etp.cu in builds without CUDA.
#include <stdexcept>

#include "kernels/cell.h"
#include "kernels/trace.h"

namespace lacewing::kernels::cuda {
namespace {

[[noreturn]] void missing() {
  throw std::runtime_error(
      "[lacewing] this build has no CUDA kernels: build it where nvcc is found, or with -DLACEWING_CUDA=ON");
}

}  // namespace

void trace(std::span<const TraceArgs>, const CudaExecutor&) { missing(); }
void cell_step(const CellArgs&, const CudaExecutor&) { missing(); }

}  // namespace lacewing::kernels::cuda
