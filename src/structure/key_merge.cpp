#include "structure/key_merge.h"

#include <algorithm>

#include "common/deal.h"
#include "structure/fixed_parts.h"

namespace lacewing::structure {
namespace {

/// One part of both sets, and a visitor of its keys. Which set has the next key is not to be guessed, so that a step
/// has no branch: visit.step(key, i, j, in_a, in_b) gets places in both sets, and 1 or 0 for whether the key is there.
/// Behind the end of one set, visit.rest(key, i, j) gets -1 for that set. Each step waits for its loads, so that a
/// thread walks through Visit::at_once parts at a time, as many as the processor has registers for.
template <typename Visit>
struct PartWalk {
  const std::int64_t* a;
  const std::int64_t* b;
  std::int64_t i, j, a_end, b_end;
  Visit visit;

  /// Steps that reach no end, whatever the keys are.
  std::int64_t free_steps() const { return std::min(a_end - i, b_end - j); }
  [[gnu::always_inline]] void step() {
    const std::int64_t x = a[i];
    const std::int64_t y = b[j];
    // x <= y and y <= x by the signs of differences, which no compiler makes a branch of: keys are not negative.
    const std::int64_t in_a = ((y - x) >> 63) + 1;
    const std::int64_t in_b = ((x - y) >> 63) + 1;
    visit.step(y ^ ((x ^ y) & -in_a), i, j, in_a, in_b);
    i += in_a;
    j += in_b;
  }
  void finish() {
    for (std::int64_t steps = free_steps(); steps > 0; steps = free_steps()) {
      for (; steps > 0; --steps) {
        step();
      }
    }
    for (; i < a_end; ++i) {
      visit.rest(a[i], i, -1);
    }
    for (; j < b_end; ++j) {
      visit.rest(b[j], -1, j);
    }
  }
};

/// By value: a walk whose address is taken leaves the registers.
template <typename Visit>
Visit finished(PartWalk<Visit> walk) {
  walk.finish();
  return walk.visit;
}

template <typename Done, typename... Walks>
void walk_together(std::int64_t part, const Done& done, Walks... walks) {
  for (std::int64_t steps = std::min({walks.free_steps()...}); steps > 0; steps = std::min({walks.free_steps()...})) {
    for (; steps > 0; --steps) {
      (walks.step(), ...);
    }
  }
  (done(part++, finished(walks)), ...);
}

/// Counts the keys that both sets have.
struct CountVisit {
  static constexpr int at_once = 4;
  std::int64_t common = 0;

  void step(std::int64_t, std::int64_t, std::int64_t, std::int64_t in_a, std::int64_t in_b) { common += in_a & in_b; }
  void rest(std::int64_t, std::int64_t, std::int64_t) {}
};

/// Writes down where they are; what is no match is overwritten.
template <typename Match>
struct MatchVisit {
  static constexpr int at_once = 4;
  Match* matches;
  std::int64_t common = 0;

  void step(std::int64_t, std::int64_t i, std::int64_t j, std::int64_t in_a, std::int64_t in_b) {
    matches[common] = {i, j};
    common += in_a & in_b;
  }
  void rest(std::int64_t, std::int64_t, std::int64_t) {}
};

/// The element of an entry, or the fill.
template <typename Element>
struct Source {
  const Element* values;
  const Element* fill;

  explicit Source(const Elements& from)
      : values(static_cast<const Element*>(from.values)), fill(static_cast<const Element*>(from.fill)) {}
  const Element& at(std::int64_t i) const { return i >= 0 ? values[i] : *fill; }
  /// By arithmetic with the addresses, which no compiler makes a branch of.
  const Element& at(std::int64_t i, std::int64_t present) const {
    const auto value = reinterpret_cast<std::uintptr_t>(values + i);
    const auto otherwise = reinterpret_cast<std::uintptr_t>(fill);
    return *reinterpret_cast<const Element*>(otherwise ^ ((value ^ otherwise) & -static_cast<std::uintptr_t>(present)));
  }
};

/// Writes keys and places.
struct PlaceVisit {
  static constexpr int at_once = 2;
  std::int64_t *keys, *in_a, *in_b;

  void step(std::int64_t key, std::int64_t i, std::int64_t j, std::int64_t is_in_a, std::int64_t is_in_b) {
    rest(key, i | (is_in_a - 1), j | (is_in_b - 1));
  }
  void rest(std::int64_t key, std::int64_t i, std::int64_t j) {
    *keys++ = key;
    *in_a++ = i;
    *in_b++ = j;
  }
};

/// Writes keys, and the elements of both sets.
template <typename Element>
struct ElementVisit {
  static constexpr int at_once = 2;
  std::int64_t* keys;
  Source<Element> a, b;
  Element *a_out, *b_out;

  void step(std::int64_t key, std::int64_t i, std::int64_t j, std::int64_t in_a, std::int64_t in_b) {
    *keys++ = key;
    *a_out++ = a.at(i, in_a);
    *b_out++ = b.at(j, in_b);
  }
  void rest(std::int64_t key, std::int64_t i, std::int64_t j) {
    *keys++ = key;
    *a_out++ = a.at(i);
    *b_out++ = b.at(j);
  }
};

/// Writes keys, and what F makes of both elements.
template <typename Number, typename F>
struct CombineVisit {
  static constexpr int at_once = 2;
  std::int64_t* keys;
  Source<Number> a, b;
  Number* out;
  F f;

  void step(std::int64_t key, std::int64_t i, std::int64_t j, std::int64_t in_a, std::int64_t in_b) {
    *keys++ = key;
    *out++ = f(a.at(i, in_a), b.at(j, in_b));
  }
  void rest(std::int64_t key, std::int64_t i, std::int64_t j) {
    *keys++ = key;
    *out++ = f(a.at(i), b.at(j));
  }
};

}  // namespace

/// Walks all parts, some at a time: make(part) gives the visitor of a part, which done(part, visitor) gets back.
template <typename Make, typename Done>
void KeyMerge::walk_parts(const Make& make, const Done& done) const {
  using Visit = decltype(make(0));
  constexpr std::int64_t at_once = Visit::at_once;
  const auto walk = [&](std::int64_t part) {
    const auto p = static_cast<std::size_t>(part);
    return PartWalk<Visit>{a_.keys, b_.keys, cuts_a_[p], cuts_b_[p], cuts_a_[p + 1], cuts_b_[p + 1], make(part)};
  };
  deal_tasks(executor_, (parts() + at_once - 1) / at_once, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first * at_once; part < std::min(last * at_once, parts()); part += at_once) {
      if (part + at_once > parts()) {
        for (std::int64_t single = part; single < parts(); ++single) {
          walk_together(single, done, walk(single));
        }
      } else if constexpr (at_once == 2) {
        walk_together(part, done, walk(part), walk(part + 1));
      } else {
        walk_together(part, done, walk(part), walk(part + 1), walk(part + 2), walk(part + 3));
      }
    }
  });
}

/// Calls the visitors that make(place of a part's first key) gives on every key that is kept, in order.
template <typename Make>
void KeyMerge::visit_kept(const Make& make) const {
  if (kept_ == Kept::all) {
    walk_parts([&](std::int64_t part) { return make(starts_[static_cast<std::size_t>(part)]); },
               [](std::int64_t, const auto&) {});
    return;
  }
  deal_tasks(executor_, parts(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      const auto p = static_cast<std::size_t>(part);
      auto visit = make(starts_[p]);
      for (std::int64_t k = 0; k < starts_[p + 1] - starts_[p]; ++k) {
        const Match match = matches_[p][static_cast<std::size_t>(k)];
        visit.rest(a_.keys[match.in_a], match.in_a, match.in_b);
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
  visit_kept([&](std::int64_t start) { return PlaceVisit{keys + start, in_a + start, in_b + start}; });
}

template <typename Element>
void KeyMerge::write_elements(std::int64_t* keys, const Elements& a, const Elements& b, void* a_out,
                              void* b_out) const {
  visit_kept([&](std::int64_t start) {
    return ElementVisit<Element>{keys + start, Source<Element>(a), Source<Element>(b),
                                 static_cast<Element*>(a_out) + start, static_cast<Element*>(b_out) + start};
  });
}

void KeyMerge::write(std::int64_t* keys, const Elements& a, const Elements& b, std::int64_t element_bytes, void* a_out,
                     void* b_out) const {
  kernels::visit_element(element_bytes,
                         [&](auto element) { write_elements<decltype(element)>(keys, a, b, a_out, b_out); });
}

template <typename Number, typename F>
void KeyMerge::write_combined(std::int64_t* keys, const Elements& a, const Elements& b, void* out, const F& f) const {
  visit_kept([&](std::int64_t start) {
    return CombineVisit<Number, F>{keys + start, Source<Number>(a), Source<Number>(b),
                                   static_cast<Number*>(out) + start, f};
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
