// The terms of one row of a form, for one edge, added to the sums of the row.
#pragma once

#include <algorithm>

#include "kernels/cpu/form_schedule.h"
#include "kernels/cpu/lanes.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

template <typename T>
class FormTerms {
 public:
  using Acc = accumulate_t<T>;

  FormTerms(const FormArgs& args, const FormSchedule& plan) : args_(args), plan_(plan) {
    for (int i = 0; i < plan.lettered; ++i) {
      std::copy_n(args.factor[plan.factor[i]].letter_stride, args.letters, stride_[i]);
    }
    std::copy_n(args.extent, args.letters, extent_);
    set_sum_strides();
  }

  /// Adds terms of `row` for an edge to its sums, which lie in the order of the output's letters.
  void add(std::int64_t edge, std::int64_t row, std::int64_t begin, std::int64_t end, Acc* sums) {
    if (args_.out.layout) {
      for (int letter = 0; letter < args_.out_letters; ++letter) {
        extent_[letter] = args_.out_extent(letter, row);
      }
      set_sum_strides();
    }
    base_sums_ = sums;
    laned_ = plan_.vector >= args_.out_letters && elements() <= kLaned;
    if (laned_) {
      std::fill_n(lane_sums_, elements() * lanes, Acc{});
    }
    for (std::int64_t term = begin; term < end;) {
      Acc coefficient = scalars(edge, term);
      std::int64_t next = term + 1;
      for (; next < end && same_rows(term, next); ++next) {
        coefficient += scalars(edge, next);
      }
      if (set_term(edge, term)) {
        add_term(coefficient, sums);
      }
      term = next;
    }
    for (std::int64_t i = 0; laned_ && i < elements(); ++i) {
      sums[i] += Simd<Acc>::sum(Simd<Acc>::load(lane_sums_ + i * lanes));
    }
  }

 private:
  static constexpr int lanes = Simd<Acc>::lanes;
  /// Rows of at most so many elements keep a vector of sums for each, while a letter is summed by vectors.
  static constexpr std::int64_t kLaned = 64;
  using Vec = typename Simd<Acc>::Vec;

  std::int64_t elements() const { return args_.out_letters == 0 ? 1 : sum_stride_[0] * extent_[0]; }

  void set_sum_strides() {
    std::int64_t stride = 1;
    for (int letter = args_.out_letters - 1; letter >= 0; --letter) {
      sum_stride_[letter] = stride;
      stride *= extent_[letter];
    }
  }

  Acc value(const Place& place, const T* p) const {
    const Acc v = widen(*p);
    return place.conjugate ? conj(v) : v;
  }

  const T* row_data(const Place& place, int f, std::int64_t edge, std::int64_t term) const {
    return static_cast<const T*>(place.data) + place.offset(place.list[edge], args_.row_of(f, term));
  }

  /// The product of the factors without letters.
  Acc scalars(std::int64_t edge, std::int64_t term) const {
    Acc product = one<Acc>();
    for (int i = 0; i < plan_.scalars; ++i) {
      const int f = plan_.scalar[i];
      product = product * value(args_.factor[f], row_data(args_.factor[f], f, edge, term));
    }
    return product;
  }

  /// Whether two terms differ in factors without letters alone.
  bool same_rows(std::int64_t a, std::int64_t b) const {
    for (int i = 0; i < plan_.lettered; ++i) {
      if (args_.row_of(plan_.factor[i], a) != args_.row_of(plan_.factor[i], b)) {
        return false;
      }
    }
    return true;
  }

  /// Where the lettered factors of a term lie; false where one of its extents is zero.
  bool set_term(std::int64_t edge, std::int64_t term) {
    for (int i = 0; i < plan_.lettered; ++i) {
      const int f = plan_.factor[i];
      base_[i] = row_data(args_.factor[f], f, edge, term);
    }
    if (!plan_.layouts) {
      return true;
    }
    for (int i = 0; i < plan_.lettered; ++i) {
      const Place& place = args_.factor[plan_.factor[i]];
      for (int letter = 0; letter < args_.letters; ++letter) {
        stride_[i][letter] = place.stride(letter, args_.row_of(plan_.factor[i], term));
      }
    }
    for (int letter = args_.out_letters; letter < args_.letters; ++letter) {
      extent_[letter] = args_.summed_extent(letter, term);
    }
    return std::all_of(extent_, extent_ + args_.letters, [](std::int64_t n) { return n > 0; });
  }

  /// All positions of the letters around the innermost one.
  void add_term(Acc coefficient, Acc* sums) {
    const T* p[kMaxFactors];
    std::copy_n(base_, plan_.lettered, p);
    std::int64_t at[kMaxLetters] = {};
    const int fixed = plan_.lettered - plan_.vectors;
    while (true) {
      Acc c = coefficient;
      for (int i = 0; i < fixed; ++i) {
        c = c * value(args_.factor[plan_.factor[i]], p[i]);
      }
      innermost(c, p + fixed, sums);
      int k = plan_.outer - 1;
      for (; k >= 0; --k) {
        const int letter = plan_.letter[k];
        const bool more = ++at[k] < extent_[letter];
        const std::int64_t steps = more ? 1 : 1 - extent_[letter];
        for (int i = 0; i < plan_.lettered; ++i) {
          p[i] += steps * stride_[i][letter];
        }
        sums += letter < args_.out_letters ? steps * sum_stride_[letter] : 0;
        if (more) {
          break;
        }
        at[k] = 0;
      }
      if (k < 0) {
        return;
      }
    }
  }

  /// The loop over the vector letter.
  void innermost(Acc c, const T* const* p, Acc* sums) {
    const int letter = plan_.vector;
    if (letter < 0) {
      *sums += c;
      return;
    }
    const bool kept = letter < args_.out_letters;
    if (plan_.vectors <= 3 && side_by_side(letter) && (!kept || sum_stride_[letter] == 1)) {
      switch (plan_.vectors) {
        case 0: return run<0>(kept, c, p, sums);
        case 1: return run<1>(kept, c, p, sums);
        case 2: return run<2>(kept, c, p, sums);
        default: return run<3>(kept, c, p, sums);
      }
    }
    const int first = plan_.lettered - plan_.vectors;
    Acc sum{};
    for (std::int64_t i = 0; i < extent_[letter]; ++i) {
      Acc product = c;
      for (int k = 0; k < plan_.vectors; ++k) {
        product = product * value(args_.factor[plan_.factor[first + k]], p[k] + i * stride_[first + k][letter]);
      }
      if (kept) {
        sums[i * sum_stride_[letter]] += product;
      } else {
        sum += product;
      }
    }
    if (!kept) {
      *sums += sum;
    }
  }

  /// Whether all factors with the letter are read in place, one element after the other.
  bool side_by_side(int letter) const {
    for (int i = plan_.lettered - plan_.vectors; i < plan_.lettered; ++i) {
      if (stride_[i][letter] != 1 || args_.factor[plan_.factor[i]].conjugate) {
        return false;
      }
    }
    return true;
  }

  /// The product of so many vectors at i.
  template <int Vectors>
  static LACEWING_INLINE Vec product(const T* const* p, std::int64_t i, int count) {
    const Vec last = Lanes<T>::load(p[Vectors - 1] + i, count);
    if constexpr (Vectors > 1) {
      return product<Vectors - 1>(p, i, count) * last;
    } else {
      return last;
    }
  }

  template <int Vectors>
  void run(bool kept, Acc c, const T* const* p, Acc* sums) {
    const std::int64_t n = extent_[plan_.vector];
    if (kept) {
      for (std::int64_t i = 0; i < n; i += lanes) {
        const int count = static_cast<int>(std::min<std::int64_t>(lanes, n - i));
        Vec v = Simd<Acc>::zero() + c;
        if constexpr (Vectors > 0) {
          v = v * product<Vectors>(p, i, count);
        }
        Lanes<Acc>::store(sums + i, Lanes<Acc>::load(sums + i, count) + v, count);
      }
    } else if constexpr (Vectors == 0) {
      for (std::int64_t i = 0; i < n; ++i) {
        *sums += c;
      }
    } else {
      Vec total = Simd<Acc>::zero();
      for (std::int64_t i = 0; i < n; i += lanes) {
        total += product<Vectors>(p, i, static_cast<int>(std::min<std::int64_t>(lanes, n - i)));
      }
      if (laned_) {
        Acc* const lane = lane_sums_ + (sums - base_sums_) * lanes;
        Simd<Acc>::store(lane, Simd<Acc>::load(lane) + total * c);
      } else {
        *sums += c * Simd<Acc>::sum(total);
      }
    }
  }

  const FormArgs& args_;
  const FormSchedule& plan_;
  std::int64_t extent_[kMaxLetters] = {};
  std::int64_t sum_stride_[kMaxLetters] = {};
  std::int64_t stride_[kMaxFactors][kMaxLetters] = {};  ///< of the lettered factors, in the schedule's order
  const T* base_[kMaxFactors] = {};
  bool laned_ = false;
  Acc* base_sums_ = nullptr;
  Acc lane_sums_[kLaned * lanes];
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
