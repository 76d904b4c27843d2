// How a form is computed on the CPU: a pure function of the call's sizes and strides. What changes an order of
// summation is chosen by the letters, extents and dtype of the output's own rows alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/schedule.h"
#include "kernels/form.h"
#include "kernels/long_sum.h"

namespace lacewing::kernels::cpu {

/// What a LongSum takes at most, in elements of its type.
inline constexpr std::int64_t kLongSumElements = 5;

struct FormSchedule {
  int scalars = 0;  ///< factors without a letter: multiplied first, and added up where terms share the others
  int scalar[kMaxFactors] = {};
  int lettered = 0;
  int factor[kMaxFactors] = {};  ///< those that have the vector letter come last
  int vectors = 0;               ///< how many do
  int vector = -1;               ///< the letter of the innermost loop; -1: there is no letter
  int outer = 0;                 ///< the letters around it, the outermost first
  int letter[kMaxLetters] = {};
  bool layouts = false;      ///< some rows have a layout: strides and extents change from term to term
  bool direct = false;       ///< sums are kept in the output
  std::int64_t part = 0;     ///< edges of a part of a sum over all edges
  std::int64_t parts = 1;    ///< whose sums are added by a tree of pairs
  bool may_be_long = false;  ///< rows may have more terms than a block of a long sum
  std::int64_t scratch = 0;  ///< for each thread: sums of one row, and what long sums of it keep
  std::int64_t work = 0;     ///< multiply-adds, about

  std::int64_t workspace(const FormArgs& args, int threads) const {
    return (scratch * threads + (parts > 1 ? parts * args.out_elements : 0)) * accumulate_size(args.type);
  }
};

inline bool has_letter(const Place& place, int letter) {
  return place.layout ? place.layout.column[letter] >= 0 || place.letter_stride[letter] != 0
                      : place.letter_stride[letter] != 0;
}

/// The letter whose loop reads and writes the most neighbours: unit strides count for it, others against it.
inline int vector_letter(const FormArgs& args) {
  int best = -1;
  std::int64_t best_score = 0;
  for (int letter = 0; letter < args.letters; ++letter) {
    const bool kept = letter < args.out_letters;
    // Sums of a row lie side by side in the order of its letters.
    std::int64_t score = !kept ? 0 : letter == args.out_letters - 1 ? 2 : -4;
    for (int f = 0; f < args.factors; ++f) {
      const Place& place = args.factor[f];
      if (has_letter(place, letter)) {
        score += place.layout || place.letter_stride[letter] == 1 ? 2 : -4;
      }
    }
    score = 64 * score +
            std::min<std::int64_t>(args.extent_from[letter] == FormArgs::kOwnExtent ? args.extent[letter] : 63, 63);
    if (best < 0 || score >= best_score) {
      best = letter;
      best_score = score;
    }
  }
  return best;
}

inline FormSchedule schedule_form(const FormArgs& args) {
  FormSchedule plan;
  plan.vector = vector_letter(args);
  for (int letter = 0; letter < args.letters; ++letter) {
    if (letter != plan.vector) {
      plan.letter[plan.outer++] = letter;
    }
  }
  const auto place_factors = [&](bool with_vector) {
    for (int f = 0; f < args.factors; ++f) {
      bool any = false;
      for (int letter = 0; letter < args.letters; ++letter) {
        any = any || has_letter(args.factor[f], letter);
      }
      const bool carries = plan.vector >= 0 && has_letter(args.factor[f], plan.vector);
      if (!any && !with_vector) {
        plan.scalar[plan.scalars++] = f;
      } else if (any && carries == with_vector) {
        plan.factor[plan.lettered++] = f;
        plan.vectors += with_vector ? 1 : 0;
      }
    }
  };
  place_factors(false);
  place_factors(true);
  plan.layouts = static_cast<bool>(args.out.layout);
  for (int f = 0; f < args.factors; ++f) {
    plan.layouts = plan.layouts || static_cast<bool>(args.factor[f].layout);
  }
  plan.direct = !is_narrow(args.type) && !args.out.layout;
  std::int64_t elements = args.row_elements;
  for (int letter = args.out_letters; letter < args.letters; ++letter) {
    elements *= args.extent_from[letter] == FormArgs::kOwnExtent ? args.extent[letter] : 1;
  }
  plan.work = args.edges * std::max(args.terms, args.rows) * elements;
  if (args.out_map == BatchMap::shared) {
    // The longer the row, the longer the part: parts then take a quarter of a byte for each edge and row, at most.
    plan.part = 1024 * std::max<std::int64_t>(1, args.row_elements / 64);
    plan.parts = std::max<std::int64_t>(1, (args.edges + plan.part - 1) / plan.part);
  }
  plan.may_be_long = args.terms > kSumBlock ||
                     (args.out_map == BatchMap::list && args.edges > kSumBlock / std::max<std::int64_t>(args.terms, 1));
  plan.scratch = (plan.direct && !plan.may_be_long ? 0 : args.row_elements) +
                 (plan.may_be_long ? kLongSumElements * args.row_elements : 0);
  return plan;
}

}  // namespace lacewing::kernels::cpu
