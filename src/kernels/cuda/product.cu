// The formula on CUDA. Sums of gathered rows and dots of rows have kernels of their own; in the others one thread owns
// one output element and sums its terms in order (long_sum.h), so results are deterministic.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gather_sum.h"
#include "kernels/long_sum.h"
#include "kernels/simplified.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Output elements in the order of their memory: (n, row, a, b) with b fastest.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) product_kernel(ProductArgs args, TermsView<Index> terms) {
  using Acc = accumulate_t<T>;
  const bool z_has_a = args.z.stride_a != 0;
  const bool z_has_b = args.z.stride_b != 0;
  const std::int64_t out_a = z_has_a ? args.extent_a : 1;
  const std::int64_t out_b = z_has_b ? args.extent_b : 1;
  const std::int64_t sum_a = z_has_a ? 1 : args.extent_a;
  const std::int64_t sum_b = z_has_b ? 1 : args.extent_b;
  const std::int64_t sum_n = args.accumulate ? args.batch : 1;
  const std::int64_t total = (args.accumulate ? 1 : args.batch) * terms.rows * out_a * out_b;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    std::int64_t rest = i;
    const std::int64_t b0 = rest % out_b;
    rest /= out_b;
    const std::int64_t a0 = rest % out_a;
    rest /= out_a;
    const std::int64_t row = rest % terms.rows;
    const std::int64_t n0 = rest / terms.rows;
    LongSum<Acc> sum;
    for (std::int64_t n1 = 0; n1 < sum_n; ++n1) {
      for (std::int64_t term = terms.begin(row); term < terms.end(row); ++term) {
        const std::int64_t first = terms.first(term);
        const std::int64_t second = terms.second(term);
        Acc dense{};
        for (std::int64_t a1 = 0; a1 < sum_a; ++a1) {
          for (std::int64_t b1 = 0; b1 < sum_b; ++b1) {
            dense += value_at<T>(args.x, n0 + n1, first, a0 + a1, b0 + b1) *
                     value_at<T>(args.y, n0 + n1, second, a0 + a1, b0 + b1);
          }
        }
        sum += scale_at<T>(args, terms.entry(term)) * dense;
      }
    }
    T* const z = static_cast<T*>(const_cast<void*>(args.z.data));
    z[n0 * args.z.stride_n + row * args.z.stride_m + a0 * args.z.stride_a + b0 * args.z.stride_b] =
        narrow<T>(sum.value());
  }
}

/// The row that a term belongs to.
template <typename Index>
__device__ std::int64_t row_of(const TermsView<Index>& terms, std::int64_t term) {
  if (terms.segments == nullptr) {
    return term;
  }
  std::int64_t low = 0;
  std::int64_t high = terms.rows - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (terms.begin(middle) <= term) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// One block for each term: threads take (n, a, b) in a fixed pattern and are added by a fixed tree.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    scale_grad_kernel(ProductArgs args, TermsView<Index> terms, std::int64_t count, accumulate_t<T>* by_term, T* out) {
  using Acc = accumulate_t<T>;
  __shared__ alignas(16) unsigned char memory[kThreads * sizeof(Acc)];
  Acc* const parts = reinterpret_cast<Acc*>(memory);
  const std::int64_t inner = args.extent_a * args.extent_b;
  for (std::int64_t term = blockIdx.x; term < count; term += gridDim.x) {
    const std::int64_t row = row_of(terms, term);
    const std::int64_t first = terms.first(term);
    const std::int64_t second = terms.second(term);
    LongSum<Acc> sum;
    for (std::int64_t i = threadIdx.x; i < args.batch * inner; i += kThreads) {
      const std::int64_t n = i / inner;
      const std::int64_t a = i % inner / args.extent_b;
      const std::int64_t b = i % args.extent_b;
      sum += conj(value_at<T>(args.x, n, first, a, b) * value_at<T>(args.y, n, second, a, b)) *
             value_at<T>(args.z, n, row, a, b);
    }
    parts[threadIdx.x] = sum.value();
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) {
        parts[threadIdx.x] += parts[threadIdx.x + half];
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (by_term != nullptr) {
        by_term[term] = parts[0];
      } else {
        out[terms.entry(term)] = narrow<T>(parts[0]);
      }
    }
    __syncthreads();
  }
}

/// Where entries of scale repeat: each adds its terms in order.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) add_repeated_kernel(const accumulate_t<T>* by_term, const Index* segments,
                                                                const Index* terms, std::int64_t entries, T* out) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < entries; e += step) {
    LongSum<accumulate_t<T>> sum;
    for (Index i = segments[e]; i < segments[e + 1]; ++i) {
      sum += by_term[terms[i]];
    }
    out[e] = narrow<T>(sum.value());
  }
}

}  // namespace

std::int64_t scale_grad_workspace(const ScaleGradArgs& args) {
  constexpr std::int64_t kLargestAccumulator = 16;
  return args.product.terms.inverse_segments != nullptr ? args.product.terms.terms * kLargestAccumulator : 0;
}

std::int64_t product_workspace(const ProductArgs& given) {
  const ProductArgs args = simplified(given);
  return is_gather_sum(args) ? gather_sum_workspace(args) : 0;
}

void product(const ProductArgs& given, const CudaExecutor& executor, void* workspace) {
  const ProductArgs args = simplified(given);
  if (is_gather_sum(args)) {
    return gather_sum(args, executor, workspace);
  }
  if (is_entry_dots(args)) {
    return entry_dots(args, executor);
  }
  const std::int64_t elements = (args.accumulate ? 1 : args.batch) * args.terms.rows *
                                (args.z.stride_a != 0 ? args.extent_a : 1) * (args.z.stride_b != 0 ? args.extent_b : 1);
  visit_types(args.type, args.terms.wide, [&](auto scalar, auto index) {
    using Index = decltype(index);
    launch({"product", blocks_for(elements, kThreads), kThreads}, executor, product_kernel<decltype(scalar), Index>,
           args, TermsView<Index>(args.terms));
  });
}

void scale_grad(const ScaleGradArgs& grad, const CudaExecutor& executor, void* workspace) {
  const Terms& terms = grad.product.terms;
  visit_types(grad.product.type, terms.wide, [&](auto scalar, auto index) {
    using T = decltype(scalar);
    using Index = decltype(index);
    auto* const out = static_cast<T*>(grad.out);
    const bool repeated = terms.inverse_segments != nullptr;
    auto* const by_term = repeated ? static_cast<accumulate_t<T>*>(workspace) : nullptr;
    if (!repeated) {
      clear(out, terms.entries * static_cast<std::int64_t>(sizeof(T)), executor);
    }
    launch({"scale_grad", terms.terms, kThreads}, executor, scale_grad_kernel<T, Index>, grad.product,
           TermsView<Index>(terms), terms.terms, by_term, out);
    if (repeated) {
      launch({"add_repeated", blocks_for(terms.entries, kThreads), kThreads}, executor, add_repeated_kernel<T, Index>,
             by_term, static_cast<const Index*>(terms.inverse_segments), static_cast<const Index*>(terms.inverse_terms),
             terms.entries, out);
    }
  });
}

}  // namespace lacewing::kernels::cuda
