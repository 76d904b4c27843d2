// The oracle: serial, one output element at a time, straight from the formula.
#include <vector>

#include "kernels/long_sum.h"
#include "kernels/terms.h"

namespace lacewing::kernels::reference {
namespace {

template <typename T, typename Index>
void product_typed(const ProductArgs& args) {
  using Acc = accumulate_t<T>;
  const TermsView<Index> terms(args.terms);
  const bool z_has_a = args.z.stride_a != 0;
  const bool z_has_b = args.z.stride_b != 0;
  const std::int64_t out_a = z_has_a ? args.extent_a : 1;
  const std::int64_t out_b = z_has_b ? args.extent_b : 1;
  const std::int64_t sum_a = z_has_a ? 1 : args.extent_a;
  const std::int64_t sum_b = z_has_b ? 1 : args.extent_b;
  const std::int64_t out_n = args.accumulate ? 1 : args.batch;
  const std::int64_t sum_n = args.accumulate ? args.batch : 1;
  T* const z = static_cast<T*>(args.output());
  for (std::int64_t n0 = 0; n0 < out_n; ++n0) {
    for (std::int64_t row = 0; row < terms.rows; ++row) {
      for (std::int64_t a0 = 0; a0 < out_a; ++a0) {
        for (std::int64_t b0 = 0; b0 < out_b; ++b0) {
          LongSum<Acc> sum;
          for (std::int64_t n1 = 0; n1 < sum_n; ++n1) {
            for (std::int64_t term = terms.begin(row); term < terms.end(row); ++term) {
              const Acc scale = scale_at<T>(args, terms.entry(term));
              for (std::int64_t a1 = 0; a1 < sum_a; ++a1) {
                for (std::int64_t b1 = 0; b1 < sum_b; ++b1) {
                  const Acc x = value_at<T>(args.x, n0 + n1, terms.first(term), a0 + a1, b0 + b1);
                  const Acc y = value_at<T>(args.y, n0 + n1, terms.second(term), a0 + a1, b0 + b1);
                  sum += scale * (x * y);
                }
              }
            }
          }
          z[n0 * args.z.stride_n + row * args.z.stride_m + a0 * args.z.stride_a + b0 * args.z.stride_b] =
              narrow<T>(sum.value());
        }
      }
    }
  }
}

template <typename T, typename Index>
void scale_grad_typed(const ScaleGradArgs& grad) {
  using Acc = accumulate_t<T>;
  const ProductArgs& args = grad.product;
  const TermsView<Index> terms(args.terms);
  std::vector<LongSum<Acc>> sums(static_cast<std::size_t>(args.terms.entries));
  for (std::int64_t row = 0; row < terms.rows; ++row) {
    for (std::int64_t term = terms.begin(row); term < terms.end(row); ++term) {
      LongSum<Acc>& sum = sums[static_cast<std::size_t>(terms.entry(term))];
      for (std::int64_t n = 0; n < args.batch; ++n) {
        for (std::int64_t a = 0; a < args.extent_a; ++a) {
          for (std::int64_t b = 0; b < args.extent_b; ++b) {
            const Acc x = value_at<T>(args.x, n, terms.first(term), a, b);
            const Acc y = value_at<T>(args.y, n, terms.second(term), a, b);
            sum += conj(x * y) * value_at<T>(args.z, n, row, a, b);
          }
        }
      }
    }
  }
  for (std::int64_t entry = 0; entry < args.terms.entries; ++entry) {
    static_cast<T*>(grad.out)[entry] = narrow<T>(sums[static_cast<std::size_t>(entry)].value());
  }
}

}  // namespace

void product(const ProductArgs& args) {
  visit_types(args.type, args.terms.wide,
              [&](auto scalar, auto index) { product_typed<decltype(scalar), decltype(index)>(args); });
}

void scale_grad(const ScaleGradArgs& args) {
  visit_types(args.product.type, args.product.terms.wide,
              [&](auto scalar, auto index) { scale_grad_typed<decltype(scalar), decltype(index)>(args); });
}

}  // namespace lacewing::kernels::reference
