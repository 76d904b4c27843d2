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

Schedule schedule_scale_grad(const ProductArgs& args) {
  Schedule plan;
  plan.x = plan_vector(args, args.x, args.extent_a, args.x.stride_a, false);
  switch (args.pattern) {
    case Pattern::mul:
      plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, false);
      plan.z = plan_vector(args, args.z, args.extent_a, args.z.stride_a, false);
      break;
    case Pattern::outer:
      plan.y = plan_vector(args, args.y, args.extent_b, args.y.stride_b, false);
      plan.z = plan_matrix(args, args.z, false);
      break;
    case Pattern::inner: plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, false); break;
    case Pattern::vecmat:
      plan.y = plan_matrix(args, args.y, false);
      plan.z = plan_vector(args, args.z, args.extent_b, args.z.stride_b, false);
      break;
    case Pattern::vecsca: plan.z = plan_vector(args, args.z, args.extent_a, args.z.stride_a, false); break;
  }
  plan.scratch = plan.x.scratch + plan.y.scratch + plan.z.scratch;
  plan.work = args.batch * args.terms.terms * args.extent_a * args.extent_b;
  return plan;
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
  const Schedule schedule = schedule_product(simple);
  switch (isa()) {
#if LACEWING_HAVE_X86_ISA
    case Isa::avx512: return avx512::product(simple, schedule, executor, workspace);
    case Isa::avx2: return avx2::product(simple, schedule, executor, workspace);
#endif
    default: return baseline::product(simple, schedule, executor, workspace);
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
