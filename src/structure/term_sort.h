// Terms as records, and their stable radix sort. Torch-free.
//
// The three views of a product are reached by rotation: sorting by index2, index1 and row gives the order
// (row, index1, index2); one more stable sort by index2 gives (index2, row, index1), and one more by index1 gives
// (index1, index2, row). So five single-key sorts serve all three views.
#pragma once

#include <bit>
#include <cstdint>

#include "structure/radix_sort.h"
#include "structure/term.h"

namespace lacewing::structure {

template <typename Index>
struct TermKey {
  Key key = Key::first;
  Index operator()(const Term<Index>& term) const { return term.key[key]; }
};

template <typename Index>
class TermSort : public RadixSort<Term<Index>, TermKey<Index>> {
 public:
  using RadixSort<Term<Index>, TermKey<Index>>::RadixSort;

  /// Stable, by one key whose values lie in [0, limit).
  void sort(Key key, std::int64_t limit) {
    this->sort_by({key}, limit < 2 ? 0 : std::bit_width(static_cast<std::uint64_t>(limit - 1)));
  }
};

}  // namespace lacewing::structure
