// Sums over terms of a function of their indices: whatever the order of the terms, equal for equal sets of terms. Host
// and device.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>

namespace lacewing::kernels {

/// For each of the three views of a product's terms, and for the terms with their entries.
struct TermHash {
  std::uint64_t forward = 0;
  std::uint64_t backward1 = 0;
  std::uint64_t backward2 = 0;
  std::uint64_t order = 0;

  LACEWING_HOST_DEVICE static std::uint64_t mix(std::uint64_t v) {
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
    return v ^ (v >> 31);
  }
  LACEWING_HOST_DEVICE static std::uint64_t of(std::uint64_t index1, std::uint64_t index2, std::uint64_t row) {
    return mix((index1 + 1) * 0x9e3779b97f4a7c15ull + (index2 + 1) * 0xd1342543de82ef95ull +
               (row + 1) * 0xaf251af3b0f025b5ull);
  }

  LACEWING_HOST_DEVICE void add(std::int64_t first, std::int64_t second, std::int64_t row, std::int64_t entry,
                                bool unary) {
    const auto a = static_cast<std::uint64_t>(first);
    const auto b = static_cast<std::uint64_t>(second);
    const auto c = static_cast<std::uint64_t>(row);
    TermHash term;
    term.forward = of(a, b, c);
    term.backward1 = unary ? of(c, b, a) : of(b, c, a);
    term.backward2 = unary ? 0 : of(c, a, b);
    term.order = mix(term.forward + term.backward1 + term.backward2 +
                     (static_cast<std::uint64_t>(entry) + 1) * 0xda942042e4dd58b5ull);
    add(term);
  }
  LACEWING_HOST_DEVICE void add(const TermHash& other) {
    forward += other.forward;
    backward1 += other.backward1;
    backward2 += other.backward2;
    order += other.order;
  }
};

}  // namespace lacewing::kernels
