// Settles the schedule and the ISA level of a call.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/product_isa.h"

namespace lacewing::kernels::cpu {
namespace {

/// x and y conjugated, as the gradient of scale reads them.
ScaleGradArgs conjugated(ScaleGradArgs grad) {
  ProductArgs& args = grad.product;
  const bool complex = args.type == ScalarType::c64 || args.type == ScalarType::c128;
  args.x.conjugate = complex && !args.x.conjugate;
  args.y.conjugate = complex && !args.y.conjugate;
  return grad;
}

void run(const ProductArgs& args, const CpuExecutor& executor, void* workspace) {
  const Schedule schedule = schedule_product(args);
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::product(args, schedule, executor, workspace);
    case Isa::avx2: return avx2::product(args, schedule, executor, workspace);
#endif
    default: return baseline::product(args, schedule, executor, workspace);
  }
}

}  // namespace

std::int64_t product_workspace(const ProductArgs& args, int threads) {
  const ProductArgs simple = simplified(args);
  return schedule_product(simple).workspace(simple, threads);
}

std::int64_t scale_grad_workspace(const ScaleGradArgs& args, int threads) {
  const ScaleGradArgs grad = conjugated(args);
  const bool repeated = grad.product.terms.inverse_segments != nullptr;
  return (schedule_scale_grad(grad.product).scratch * threads + (repeated ? grad.product.terms.terms : 0)) *
         accumulate_size(grad.product.type);
}

void product(const ProductArgs& args, const CpuExecutor& executor, void* workspace) {
  const ProductArgs simple = simplified(args);
  const std::int64_t width = channel_block(simple);
  if (width >= simple.extent_a) {
    return run(simple, executor, workspace);
  }
  for (std::int64_t a = 0; a < simple.extent_a; a += width) {
    ProductArgs block = simple;
    const std::int64_t bytes = a * element_size(simple.type);
    block.extent_a = std::min(width, simple.extent_a - a);
    block.x.data = static_cast<const char*>(simple.x.data) + bytes * simple.x.stride_a;
    block.z.data = static_cast<const char*>(simple.z.data) + bytes * simple.z.stride_a;
    run(block, executor, workspace);
  }
}

void scale_grad(const ScaleGradArgs& args, const CpuExecutor& executor, void* workspace) {
  const ScaleGradArgs grad = conjugated(args);
  const Schedule schedule = schedule_scale_grad(grad.product);
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::scale_grad(grad, schedule, executor, workspace);
    case Isa::avx2: return avx2::scale_grad(grad, schedule, executor, workspace);
#endif
    default: return baseline::scale_grad(grad, schedule, executor, workspace);
  }
}

}  // namespace lacewing::kernels::cpu
