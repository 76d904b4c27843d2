#include "structure/key_merge.h"

#include <algorithm>
#include <array>

#include "structure/fixed_parts.h"

namespace lacewing::structure {
namespace {

/// Parts that a thread walks through at a time: each step waits for its loads, and the steps of others fill the wait.
constexpr std::int64_t kAtOnce = 4;

/// One part of both sets, and a visitor of its keys: visit(key, in_a, in_b), -1 where absent.
template <typename Visit>
struct PartWalk {
  const std::int64_t* a;
  const std::int64_t* b;
  std::int64_t i, j, a_end, b_end;
  Visit visit;

  bool both() const { return i < a_end && j < b_end; }
  void step() {
    const std::int64_t x = a[i];
    const std::int64_t y = b[j];
    const bool take_a = x <= y;
    const bool take_b = y <= x;
    visit(take_a ? x : y, take_a ? i : -1, take_b ? j : -1);
    i += take_a;
    j += take_b;
  }
  void finish() {
    while (both()) {
      step();
    }
    for (; i < a_end; ++i) {
      visit(a[i], i, -1);
    }
    for (; j < b_end; ++j) {
      visit(b[j], -1, j);
    }
  }
};

/// An element of so many bytes.
template <std::size_t Bytes>
struct alignas(Bytes) Element {
  std::array<char, Bytes> bytes;
};

}  // namespace

/// Walks all parts, kAtOnce at a time: make(part) gives the visitor of a part.
template <typename Make>
void KeyMerge::walk_parts(const Make& make) const {
  using Visit = decltype(make(0));
  const auto part_walk = [&](std::int64_t part) {
    const auto p = static_cast<std::size_t>(part);
    return PartWalk<Visit>{a_.keys, b_.keys, cuts_a_[p], cuts_b_[p], cuts_a_[p + 1], cuts_b_[p + 1], make(part)};
  };
  executor_.parallel_for(0, (parts() + kAtOnce - 1) / kAtOnce, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t group = first; group < last; ++group) {
      const std::int64_t begin = group * kAtOnce;
      if (begin + kAtOnce > parts()) {
        for (std::int64_t part = begin; part < parts(); ++part) {
          part_walk(part).finish();
        }
        continue;
      }
      PartWalk<Visit> w0 = part_walk(begin);
      PartWalk<Visit> w1 = part_walk(begin + 1);
      PartWalk<Visit> w2 = part_walk(begin + 2);
      PartWalk<Visit> w3 = part_walk(begin + 3);
      while (w0.both() && w1.both() && w2.both() && w3.both()) {
        w0.step();
        w1.step();
        w2.step();
        w3.step();
      }
      w0.finish();
      w1.finish();
      w2.finish();
      w3.finish();
    }
  });
}

KeyMerge::KeyMerge(KeySet a, KeySet b, Kept kept, const CpuExecutor& executor)
    : a_(a), b_(b), kept_(kept), executor_(executor) {
  const bool by_a = a.count >= b.count;
  const KeySet& lead = by_a ? a : b;
  const KeySet& other = by_a ? b : a;
  auto& lead_cuts = by_a ? cuts_a_ : cuts_b_;
  auto& other_cuts = by_a ? cuts_b_ : cuts_a_;
  const std::int64_t cut = parts_for(a.count + b.count);
  for (std::int64_t p = 0; p <= cut; ++p) {
    const std::int64_t at = lead.count * p / cut;
    lead_cuts.push_back(at);
    other_cuts.push_back(p == 0 ? 0
                         : at >= lead.count
                             ? other.count
                             : std::lower_bound(other.keys, other.keys + other.count, lead.keys[at]) - other.keys);
  }
  other_cuts.back() = other.count;
  starts_.assign(static_cast<std::size_t>(cut) + 1, 0);
  walk_parts([&](std::int64_t part) {
    std::int64_t* const common = &starts_[static_cast<std::size_t>(part) + 1];
    return [common](std::int64_t, std::int64_t i, std::int64_t j) { *common += (i | j) >= 0 ? 1 : 0; };
  });
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    if (kept_ == Kept::all) {
      starts_[p] = cuts_a_[p] - cuts_a_[p - 1] + cuts_b_[p] - cuts_b_[p - 1] - starts_[p];
    }
    starts_[p] += starts_[p - 1];
  }
}

void KeyMerge::write(std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b) const {
  const bool all = kept_ == Kept::all;
  walk_parts([&, all](std::int64_t part) {
    return
        [=, next = starts_[static_cast<std::size_t>(part)]](std::int64_t key, std::int64_t i, std::int64_t j) mutable {
          if (all || (i | j) >= 0) {
            keys[next] = key;
            in_a[next] = i;
            in_b[next] = j;
            ++next;
          }
        };
  });
}

template <typename Element>
void KeyMerge::write_elements(std::int64_t* keys, const Elements& a, const Elements& b) const {
  const bool all = kept_ == Kept::all;
  const auto* const a_values = static_cast<const Element*>(a.values);
  const auto* const b_values = static_cast<const Element*>(b.values);
  const auto* const a_fill = static_cast<const Element*>(a.fill);
  const auto* const b_fill = static_cast<const Element*>(b.fill);
  auto* const a_out = static_cast<Element*>(a.out);
  auto* const b_out = static_cast<Element*>(b.out);
  walk_parts([&, all](std::int64_t part) {
    return
        [=, next = starts_[static_cast<std::size_t>(part)]](std::int64_t key, std::int64_t i, std::int64_t j) mutable {
          if (all || (i | j) >= 0) {
            keys[next] = key;
            a_out[next] = *(i >= 0 ? a_values + i : a_fill);
            b_out[next] = *(j >= 0 ? b_values + j : b_fill);
            ++next;
          }
        };
  });
}

void KeyMerge::write(std::int64_t* keys, const Elements& a, const Elements& b, std::int64_t element_bytes) const {
  switch (element_bytes) {
    case 1: return write_elements<Element<1>>(keys, a, b);
    case 2: return write_elements<Element<2>>(keys, a, b);
    case 4: return write_elements<Element<4>>(keys, a, b);
    case 8: return write_elements<Element<8>>(keys, a, b);
    default: return write_elements<Element<16>>(keys, a, b);
  }
}

}  // namespace lacewing::structure
