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

/// Counts the keys that both sets have.
struct CountVisit {
  std::int64_t common = 0;

  void operator()(std::int64_t, std::int64_t i, std::int64_t j) { common += (i | j) >= 0 ? 1 : 0; }
};

/// Writes down where they are. Without a branch: what is no match is overwritten.
template <typename Match>
struct MatchVisit {
  Match* matches;
  std::int64_t common = 0;

  void operator()(std::int64_t, std::int64_t i, std::int64_t j) {
    matches[common] = {i, j};
    common += (i | j) >= 0 ? 1 : 0;
  }
};

/// The element of an entry, or the fill.
template <typename Element>
struct Source {
  const Element* values;
  const Element* fill;

  explicit Source(const Elements& from)
      : values(static_cast<const Element*>(from.values)), fill(static_cast<const Element*>(from.fill)) {}
  Element operator[](std::int64_t i) const { return *(i >= 0 ? values + i : fill); }
};

/// An element of so many bytes.
template <std::size_t Bytes>
struct alignas(Bytes) Element {
  std::array<char, Bytes> bytes;
};

}  // namespace

/// Walks all parts, kAtOnce at a time: make(part) gives the visitor of a part, which done(part, visitor) gets back.
template <typename Make, typename Done>
void KeyMerge::walk_parts(const Make& make, const Done& done) const {
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
          PartWalk<Visit> walk = part_walk(part);
          walk.finish();
          done(part, walk.visit);
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
      std::int64_t part = begin;
      for (PartWalk<Visit>* const walk : {&w0, &w1, &w2, &w3}) {
        walk->finish();
        done(part++, walk->visit);
      }
    }
  });
}

/// Calls the visitors that make(part) gives on every key that is kept, in order.
template <typename Make>
void KeyMerge::visit_kept(const Make& make) const {
  if (kept_ == Kept::all) {
    walk_parts(make, [](std::int64_t, const auto&) {});
    return;
  }
  executor_.parallel_for(0, parts(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      const auto p = static_cast<std::size_t>(part);
      auto visit = make(part);
      for (std::int64_t k = 0; k < starts_[p + 1] - starts_[p]; ++k) {
        const Match match = matches_[p][static_cast<std::size_t>(k)];
        visit(a_.keys[match.in_a], match.in_a, match.in_b);
      }
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
  const auto count = [&](std::int64_t part, const auto& visit) {
    starts_[static_cast<std::size_t>(part) + 1] = visit.common;
  };
  if (kept_ == Kept::common) {
    matches_.resize(static_cast<std::size_t>(cut));
    walk_parts(
        [&](std::int64_t part) {
          const auto p = static_cast<std::size_t>(part);
          const std::int64_t most = std::min(cuts_a_[p + 1] - cuts_a_[p], cuts_b_[p + 1] - cuts_b_[p]);
          matches_[p] = std::make_unique_for_overwrite<Match[]>(static_cast<std::size_t>(most) + 1);
          return MatchVisit<Match>{matches_[p].get()};
        },
        count);
  } else {
    walk_parts([](std::int64_t) { return CountVisit{}; }, count);
  }
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    if (kept_ == Kept::all) {
      starts_[p] = cuts_a_[p] - cuts_a_[p - 1] + cuts_b_[p] - cuts_b_[p - 1] - starts_[p];
    }
    starts_[p] += starts_[p - 1];
  }
}

void KeyMerge::write(std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b) const {
  visit_kept([&](std::int64_t part) {
    return
        [=, next = starts_[static_cast<std::size_t>(part)]](std::int64_t key, std::int64_t i, std::int64_t j) mutable {
          keys[next] = key;
          in_a[next] = i;
          in_b[next] = j;
          ++next;
        };
  });
}

template <typename Element>
void KeyMerge::write_elements(std::int64_t* keys, const Elements& a, const Elements& b, void* a_out,
                              void* b_out) const {
  visit_kept([&](std::int64_t part) {
    return [=, x = Source<Element>(a), y = Source<Element>(b), to_a = static_cast<Element*>(a_out),
            to_b = static_cast<Element*>(b_out),
            next = starts_[static_cast<std::size_t>(part)]](std::int64_t key, std::int64_t i, std::int64_t j) mutable {
      keys[next] = key;
      to_a[next] = x[i];
      to_b[next] = y[j];
      ++next;
    };
  });
}

void KeyMerge::write(std::int64_t* keys, const Elements& a, const Elements& b, std::int64_t element_bytes, void* a_out,
                     void* b_out) const {
  switch (element_bytes) {
    case 1: return write_elements<Element<1>>(keys, a, b, a_out, b_out);
    case 2: return write_elements<Element<2>>(keys, a, b, a_out, b_out);
    case 4: return write_elements<Element<4>>(keys, a, b, a_out, b_out);
    case 8: return write_elements<Element<8>>(keys, a, b, a_out, b_out);
    default: return write_elements<Element<16>>(keys, a, b, a_out, b_out);
  }
}

template <typename Number, typename F>
void KeyMerge::write_combined(std::int64_t* keys, const Elements& a, const Elements& b, void* out, const F& f) const {
  visit_kept([&](std::int64_t part) {
    return [=, x = Source<Number>(a), y = Source<Number>(b), to = static_cast<Number*>(out),
            next = starts_[static_cast<std::size_t>(part)]](std::int64_t key, std::int64_t i, std::int64_t j) mutable {
      keys[next] = key;
      to[next] = f(x[i], y[j]);
      ++next;
    };
  });
}

template <typename Number>
void KeyMerge::write_numbers(std::int64_t* keys, const Elements& a, const Elements& b, Combine combine,
                             void* out) const {
  switch (combine) {
    case Combine::add: return write_combined<Number>(keys, a, b, out, [](Number x, Number y) { return x + y; });
    case Combine::subtract: return write_combined<Number>(keys, a, b, out, [](Number x, Number y) { return x - y; });
    case Combine::multiply: return write_combined<Number>(keys, a, b, out, [](Number x, Number y) { return x * y; });
  }
}

void KeyMerge::write(std::int64_t* keys, const Elements& a, const Elements& b, Combine combine, bool wide,
                     void* out) const {
  wide ? write_numbers<double>(keys, a, b, combine, out) : write_numbers<float>(keys, a, b, combine, out);
}

}  // namespace lacewing::structure
