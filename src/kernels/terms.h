// Reading the arrays of Terms by index width. Host and device.
#pragma once

#include "kernels/product.h"

namespace lacewing::kernels {

/// Terms with typed arrays.
template <typename Index>
struct TermsView {
  const Index* segments;
  const Index* index1;
  const Index* index2;
  const Index* order;
  const Index* by_index2;
  std::int64_t rows;

  explicit TermsView(const Terms& terms)
      : segments(static_cast<const Index*>(terms.segments)),
        index1(static_cast<const Index*>(terms.index1)),
        index2(static_cast<const Index*>(terms.index2)),
        order(static_cast<const Index*>(terms.order)),
        by_index2(static_cast<const Index*>(terms.by_index2)),
        rows(terms.rows) {}

  LACEWING_HOST_DEVICE std::int64_t begin(std::int64_t row) const {
    return segments != nullptr ? static_cast<std::int64_t>(segments[row]) : row;
  }
  LACEWING_HOST_DEVICE std::int64_t end(std::int64_t row) const {
    return segments != nullptr ? static_cast<std::int64_t>(segments[row + 1]) : row + 1;
  }
  LACEWING_HOST_DEVICE std::int64_t first(std::int64_t term) const {
    return index1 != nullptr ? static_cast<std::int64_t>(index1[term]) : term;
  }
  LACEWING_HOST_DEVICE std::int64_t second(std::int64_t term) const {
    return index2 != nullptr ? static_cast<std::int64_t>(index2[term]) : term;
  }
  LACEWING_HOST_DEVICE std::int64_t entry(std::int64_t term) const {
    return order != nullptr ? static_cast<std::int64_t>(order[term]) : term;
  }
};

/// The number one.
template <typename Acc>
LACEWING_HOST_DEVICE constexpr Acc one() {
  if constexpr (is_complex_v<Acc>) {
    return {1, 0};
  } else {
    return Acc{1};
  }
}

/// The value of an operand at (n, m, a, b), widened and conjugated as asked; 1 where the operand is absent.
template <typename T>
LACEWING_HOST_DEVICE accumulate_t<T> value_at(const Operand& operand, std::int64_t n, std::int64_t m, std::int64_t a,
                                              std::int64_t b) {
  using Acc = accumulate_t<T>;
  if (operand.data == nullptr) {
    return one<Acc>();
  }
  const std::int64_t offset = n * operand.stride_n + m * operand.stride_m + a * operand.stride_a + b * operand.stride_b;
  const Acc value = widen(static_cast<const T*>(operand.data)[offset]);
  return operand.conjugate ? conj(value) : value;
}

/// The scale of a term; 1 where scale is absent.
template <typename T>
LACEWING_HOST_DEVICE accumulate_t<T> scale_at(const ProductArgs& args, std::int64_t entry) {
  using Acc = accumulate_t<T>;
  if (args.scale == nullptr) {
    return one<Acc>();
  }
  const Acc value = widen(static_cast<const T*>(args.scale)[entry]);
  return args.conjugate_scale ? conj(value) : value;
}

/// Calls f(T{}, Index{}) for the floating or complex type and the index width at hand.
template <typename F>
void visit_types(ScalarType type, bool wide, F&& f) {
  const auto by_width = [&](auto scalar) {
    if (wide) {
      f(scalar, std::int64_t{});
    } else {
      f(scalar, std::int32_t{});
    }
  };
  switch (type) {
    case ScalarType::f16: return by_width(Half{});
    case ScalarType::bf16: return by_width(BFloat16{});
    case ScalarType::f32: return by_width(float{});
    case ScalarType::f64: return by_width(double{});
    case ScalarType::c64: return by_width(Complex<float>{});
    case ScalarType::c128: return by_width(Complex<double>{});
    default: return;  // the ops layer admits no other type
  }
}

}  // namespace lacewing::kernels
