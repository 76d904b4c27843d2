// Stands in for product.cu in builds without CUDA.
#include <stdexcept>

#include "kernels/product.h"

namespace lacewing::kernels::cuda {
namespace {

[[noreturn]] void missing() {
  throw std::runtime_error(
      "[lacewing] this build has no CUDA kernels: build it where nvcc is found, or with -DLACEWING_CUDA=ON");
}

}  // namespace

std::int64_t scale_grad_workspace(const ScaleGradArgs&) { missing(); }
void product(const ProductArgs&, const CudaExecutor&) { missing(); }
void scale_grad(const ScaleGradArgs&, const CudaExecutor&, void*) { missing(); }

}  // namespace lacewing::kernels::cuda
