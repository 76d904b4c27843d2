// The gradient of one term's scale: a trilinear form of x, y and the upstream gradient, summed over n.
#pragma once

#include "kernels/cpu/source.h"
#include "kernels/long_sum.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

template <typename T, typename Index>
class ScaleGradTerms {
 public:
  using Acc = accumulate_t<T>;
  using Lane = Simd<Acc>;
  using Vec = typename Lane::Vec;

  ScaleGradTerms(const ProductArgs& args, const Schedule& schedule, Acc* scratch)
      : args_(args),
        terms_(args.terms),
        x_(args.x, schedule.x, 0, args.x.stride_a, scratch),
        y_(args.y, schedule.y, args.y.stride_a,
           args.pattern == Pattern::outer || args.pattern == Pattern::vecmat ? args.y.stride_b : args.y.stride_a,
           scratch + schedule.x.scratch),
        z_(args.z, schedule.z, args.z.stride_a,
           args.pattern == Pattern::outer || args.pattern == Pattern::vecmat ? args.z.stride_b : args.z.stride_a,
           scratch + schedule.x.scratch + schedule.y.scratch) {}

  /// x and y come conjugated already.
  Acc run(std::int64_t row, std::int64_t term) const {
    const std::int64_t first = terms_.first(term);
    const std::int64_t second = terms_.second(term);
    LongSum<Acc> total;
    for (std::int64_t n = 0; n < args_.batch; ++n) {
      total += at(n, first, second, row);
    }
    return total.value();
  }

 private:
  LACEWING_INLINE Acc at(std::int64_t n, std::int64_t first, std::int64_t second, std::int64_t row) const {
    switch (args_.pattern) {
      case Pattern::mul: return dot3(x_.block(n, first), y_.block(n, second), z_.block(n, row), args_.extent_a);
      case Pattern::inner: return z_.scalar(n, row) * dot(x_.block(n, first), y_.block(n, second), args_.extent_a);
      case Pattern::vecsca: return y_.scalar(n, second) * dot(x_.block(n, first), z_.block(n, row), args_.extent_a);
      case Pattern::outer: return bilinear(x_.block(n, first), z_, z_.block(n, row), y_.block(n, second));
      case Pattern::vecmat: return bilinear(x_.block(n, first), y_, y_.block(n, second), z_.block(n, row));
    }
    return Acc{};
  }

  static LACEWING_INLINE Acc dot(const Acc* u, const Acc* v, std::int64_t extent) {
    Vec acc = Lane::zero();
    std::int64_t i = 0;
    for (; i + Lane::lanes <= extent; i += Lane::lanes) {
      acc += Lane::load(u + i) * Lane::load(v + i);
    }
    if (i < extent) {
      const int count = static_cast<int>(extent - i);
      acc += Lane::load_part(u + i, count) * Lane::load_part(v + i, count);
    }
    return Lane::sum(acc);
  }

  static LACEWING_INLINE Acc dot3(const Acc* u, const Acc* v, const Acc* w, std::int64_t extent) {
    Vec acc = Lane::zero();
    std::int64_t i = 0;
    for (; i + Lane::lanes <= extent; i += Lane::lanes) {
      acc += Lane::load(u + i) * Lane::load(v + i) * Lane::load(w + i);
    }
    if (i < extent) {
      const int count = static_cast<int>(extent - i);
      acc += Lane::load_part(u + i, count) * Lane::load_part(v + i, count) * Lane::load_part(w + i, count);
    }
    return Lane::sum(acc);
  }

  /// sum over a, b of u[a] * W[a, b] * v[b]
  LACEWING_INLINE Acc bilinear(const Acc* u, const Source<T>& matrix, const Acc* w, const Acc* v) const {
    const bool swap = matrix.transposed();
    const Acc* const outer = swap ? v : u;
    const Acc* const along = swap ? u : v;
    const std::int64_t lines = swap ? args_.extent_b : args_.extent_a;
    const std::int64_t extent = swap ? args_.extent_a : args_.extent_b;
    Acc total{};
    for (std::int64_t line = 0; line < lines; ++line) {
      total += outer[line] * dot(w + line * matrix.leading(), along, extent);
    }
    return total;
  }

  ProductArgs args_;
  TermsView<Index> terms_;
  Source<T> x_;
  Source<T> y_;
  Source<T> z_;
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
