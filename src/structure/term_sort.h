// Terms as records, and their stable radix sort. Torch-free.
//
// The three views of a product are reached by rotation: sorting by index2, index1 and row gives the order
// (row, index1, index2); one more stable sort by index2 gives (index2, row, index1), and one more by index1 gives
// (index1, index2, row). So five single-key sorts serve all three views.
#pragma once

#include "structure/radix_sort.h"

namespace lacewing::structure {

/// One term: an entry of scale, a row of each input, a row of the output. Members are indexed by Key.
template <typename Index>
struct Term {
  Index key[3];
  Index entry;
};

enum Key : int { first = 0, second = 1, row = 2 };

/// A buffer of terms whose memory is not initialised.
template <typename Index>
class TermSort : public RadixSort<Term<Index>> {
 public:
  using RadixSort<Term<Index>>::RadixSort;

  /// Stable, by one key whose values lie in [0, limit).
  void sort(Key key, std::int64_t limit) {
    this->sort_by([key](const Term<Index>& term) { return term.key[key]; }, limit);
  }
};

}  // namespace lacewing::structure
