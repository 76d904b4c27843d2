// Settles the schedule and the ISA level of a call.
#include "kernels/cpu/at_level.h"
#include "kernels/cpu/product_isa.h"
#include "kernels/simplified.h"

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

/// Whether a product is one of gathered_isa.cpp: read in place, without a scale, each n by itself; single numbers, rows
/// times numbers, or dot products.
bool is_gathered(const ProductArgs& args, const Schedule& schedule) {
  if (is_narrow(args.type) || args.scale != nullptr || args.accumulate || schedule.x.access != Access::direct ||
      args.y.conjugate) {
    return false;
  }
  if (args.pattern == Pattern::vecsca && args.extent_a == 1) {
    return true;
  }
  if (!(args.type == ScalarType::f32 || args.type == ScalarType::f64) || args.terms.index1 == nullptr ||
      args.y.data == nullptr) {
    return false;
  }
  return args.pattern == Pattern::vecsca || (args.pattern == Pattern::inner && schedule.y.access == Access::direct &&
                                             args.terms.index2 != nullptr && args.z.stride_m == 1);
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
  if (is_gathered(simple, schedule)) {
    LACEWING_AT_LEVEL(gathered(simple, schedule, executor))
  }
  LACEWING_AT_LEVEL(product(simple, schedule, executor, workspace))
}

void scale_grad(const ScaleGradArgs& args, const CpuExecutor& executor, void* workspace) {
  const ScaleGradArgs grad = conjugated(args);
  const Schedule schedule = schedule_scale_grad(grad.product);
  LACEWING_AT_LEVEL(scale_grad(grad, schedule, executor, workspace))
}

}  // namespace lacewing::kernels::cpu
