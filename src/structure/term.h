// One term of a product. Torch-free.
#pragma once

namespace lacewing::structure {

/// What terms are sorted by. A row of the first input, of the second, of the output.
enum Key : int { first = 0, second = 1, row = 2 };

/// An entry of scale, and the three rows: members are indexed by Key.
template <typename Index>
struct Term {
  Index key[3];
  Index entry;
};

}  // namespace lacewing::structure
