// In place of form.cu where there is no CUDA.
#include <stdexcept>

#include "kernels/form.h"

namespace lacewing::kernels::cuda {

void form(const FormArgs&, const CudaExecutor&) {
  throw std::runtime_error("[lacewing] this build has no CUDA kernels");
}

}  // namespace lacewing::kernels::cuda
