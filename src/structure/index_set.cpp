#include "structure/index_set.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <vector>

#include "structure/radix_sort.h"

namespace lacewing::structure {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

/// A key and the entry that it belongs to.
template <typename Index>
struct KeyedEntry {
  Index key;
  Index entry;
};

template <typename Index>
struct EntryKey {
  Index operator()(const KeyedEntry<Index>& r) const { return r.key; }
};

template <typename Index>
void sort_keys_as(const std::int64_t* keys, std::int64_t count, std::int64_t limit, std::int64_t* order,
                  std::int64_t* sorted, const CpuExecutor& executor) {
  RadixSort<KeyedEntry<Index>, EntryKey<Index>> records(count, executor);
  records.for_parts([&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      records.data()[e] = {static_cast<Index>(keys[e]), static_cast<Index>(e)};
    }
  });
  records.sort_by({}, limit < 2 ? 0 : std::bit_width(static_cast<std::uint64_t>(limit - 1)));
  records.for_runs([&](std::int64_t, std::int64_t begin, const KeyedEntry<Index>* run, std::int64_t length) {
    for (std::int64_t e = 0; e < length; ++e) {
      order[begin + e] = static_cast<std::int64_t>(run[e].entry);
      sorted[begin + e] = static_cast<std::int64_t>(run[e].key);
    }
    return true;
  });
}

std::vector<std::int64_t> strides_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t k = sizes.size(); k-- > 1;) {
    strides[k - 1] = strides[k] * sizes[k];
  }
  return strides;
}

/// Calls f(part, begin, end) on fixed parts of [0, count): a cut that depends on the count alone.
template <typename F>
void for_fixed_parts(std::int64_t parts, std::int64_t count, const CpuExecutor& executor, const F& f) {
  executor.parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      f(part, count * part / parts, count * (part + 1) / parts);
    }
  });
}

std::int64_t parts_for(std::int64_t count) { return std::clamp<std::int64_t>(count / kGrain, 1, 64); }

/// Where two sets are cut so that part p of either holds the same range of keys.
struct Cuts {
  std::vector<std::int64_t> a, b;

  Cuts(const std::int64_t* a_keys, std::int64_t a_count, const std::int64_t* b_keys, std::int64_t b_count) {
    const bool by_a = a_count >= b_count;
    const std::int64_t parts = parts_for(a_count + b_count);
    const std::int64_t* const lead = by_a ? a_keys : b_keys;
    const std::int64_t* const other = by_a ? b_keys : a_keys;
    const std::int64_t lead_count = by_a ? a_count : b_count;
    const std::int64_t other_count = by_a ? b_count : a_count;
    auto& lead_cuts = by_a ? a : b;
    auto& other_cuts = by_a ? b : a;
    for (std::int64_t p = 0; p <= parts; ++p) {
      const std::int64_t cut = lead_count * p / parts;
      lead_cuts.push_back(cut);
      other_cuts.push_back(p == 0              ? 0
                           : cut >= lead_count ? other_count
                                               : std::lower_bound(other, other + other_count, lead[cut]) - other);
    }
    other_cuts.back() = other_count;
  }
  std::int64_t parts() const { return static_cast<std::int64_t>(a.size()) - 1; }
};

/// Walks through part p of both sets in order of the keys: visit(key, in_a, in_b), -1 where absent.
template <typename Visit>
void walk(const Cuts& cuts, std::int64_t part, const std::int64_t* a, const std::int64_t* b, const Visit& visit) {
  const auto p = static_cast<std::size_t>(part);
  std::int64_t i = cuts.a[p];
  std::int64_t j = cuts.b[p];
  const std::int64_t a_end = cuts.a[p + 1];
  const std::int64_t b_end = cuts.b[p + 1];
  while (i < a_end && j < b_end) {
    const std::int64_t x = a[i];
    const std::int64_t y = b[j];
    visit(std::min(x, y), x <= y ? i : -1, y <= x ? j : -1);
    i += x <= y;
    j += y <= x;
  }
  for (; i < a_end; ++i) {
    visit(a[i], i, -1);
  }
  for (; j < b_end; ++j) {
    visit(b[j], -1, j);
  }
}

/// Counts what `keep` keeps in each part, then writes it.
template <typename Keep>
std::int64_t merge(const std::int64_t* a, std::int64_t a_count, const std::int64_t* b, std::int64_t b_count,
                   std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b, const CpuExecutor& executor,
                   const Keep& keep) {
  const Cuts cuts(a, a_count, b, b_count);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(cuts.parts()) + 1, 0);
  executor.parallel_for(0, cuts.parts(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t count = 0;
      walk(cuts, part, a, b, [&](std::int64_t, std::int64_t i, std::int64_t j) { count += keep(i, j) ? 1 : 0; });
      starts[static_cast<std::size_t>(part) + 1] = count;
    }
  });
  for (std::size_t p = 1; p < starts.size(); ++p) {
    starts[p] += starts[p - 1];
  }
  executor.parallel_for(0, cuts.parts(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      std::int64_t next = starts[static_cast<std::size_t>(part)];
      walk(cuts, part, a, b, [&](std::int64_t key, std::int64_t i, std::int64_t j) {
        if (keep(i, j)) {
          keys[next] = key;
          in_a[next] = i;
          in_b[next] = j;
          ++next;
        }
      });
    }
  });
  return starts.back();
}

}  // namespace

bool checked_product(std::span<const std::int64_t> sizes, std::int64_t& product) {
  product = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) {
      product = 0;
      return true;
    }
  }
  for (const std::int64_t size : sizes) {
    if (product > std::numeric_limits<std::int64_t>::max() / size) {
      return false;
    }
    product *= size;
  }
  return true;
}

void linear_keys(const IndexMatrix& indices, std::span<const std::int64_t> sizes, std::int64_t* keys,
                 const CpuExecutor& executor) {
  const auto strides = strides_of(sizes);
  executor.parallel_for(0, indices.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::fill(keys + begin, keys + end, 0);
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const std::int64_t stride = strides[k];
      for (std::int64_t e = begin; e < end; ++e) {
        keys[e] += stride * indices.at(static_cast<std::int64_t>(k), e);
      }
    }
  });
}

void unravel_keys(const std::int64_t* keys, std::int64_t count, std::span<const std::int64_t> sizes, std::int64_t* out,
                  const CpuExecutor& executor) {
  executor.parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      std::int64_t rest = keys[e];
      for (std::size_t k = sizes.size(); k-- > 0;) {
        const std::int64_t quotient = rest / sizes[k];
        out[static_cast<std::int64_t>(k) * count + e] = rest - quotient * sizes[k];
        rest = quotient;
      }
    }
  });
}

std::int64_t first_outside(const IndexMatrix& indices, std::span<const std::int64_t> sizes,
                           const CpuExecutor& executor) {
  std::atomic<std::int64_t> first{indices.count};
  executor.parallel_for(0, indices.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const auto size = static_cast<std::uint64_t>(sizes[k]);
      for (std::int64_t e = begin; e < end; ++e) {
        if (static_cast<std::uint64_t>(indices.at(static_cast<std::int64_t>(k), e)) >= size) {
          std::int64_t seen = first.load();
          while (e < seen && !first.compare_exchange_weak(seen, e)) {
          }
          break;
        }
      }
    }
  });
  return first.load();
}

Sortedness sortedness(const std::int64_t* keys, std::int64_t count, const CpuExecutor& executor) {
  std::atomic<bool> sorted{true};
  std::atomic<bool> strict{true};
  executor.parallel_for(1, std::max<std::int64_t>(count, 1), kGrain, [&](std::int64_t begin, std::int64_t end) {
    bool rises = true;
    bool distinct = true;
    for (std::int64_t e = begin; e < end && rises; ++e) {
      rises = keys[e - 1] <= keys[e];
      distinct = distinct && keys[e - 1] != keys[e];
    }
    if (!rises) {
      sorted = false;
    }
    if (!distinct) {
      strict = false;
    }
  });
  return !sorted ? Sortedness::unsorted : strict ? Sortedness::strict : Sortedness::sorted;
}

void sort_keys(const std::int64_t* keys, std::int64_t count, std::int64_t limit, std::int64_t* order,
               std::int64_t* sorted, const CpuExecutor& executor) {
  constexpr std::int64_t narrow = std::int64_t{1} << 32;
  if (limit <= narrow && count <= narrow) {
    sort_keys_as<std::uint32_t>(keys, count, limit, order, sorted, executor);
  } else {
    sort_keys_as<std::int64_t>(keys, count, limit, order, sorted, executor);
  }
}

std::int64_t find_runs(const std::int64_t* sorted, std::int64_t count, std::int64_t* segments,
                       const CpuExecutor& executor) {
  const auto begins = [&](std::int64_t e) { return e == 0 || sorted[e - 1] != sorted[e]; };
  const std::int64_t parts = parts_for(count);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(parts) + 1, 0);
  for_fixed_parts(parts, count, executor, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t runs = 0;
    for (std::int64_t e = begin; e < end; ++e) {
      runs += begins(e) ? 1 : 0;
    }
    starts[static_cast<std::size_t>(part) + 1] = runs;
  });
  for (std::size_t p = 1; p < starts.size(); ++p) {
    starts[p] += starts[p - 1];
  }
  for_fixed_parts(parts, count, executor, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t next = starts[static_cast<std::size_t>(part)];
    for (std::int64_t e = begin; e < end; ++e) {
      if (begins(e)) {
        segments[next++] = e;
      }
    }
  });
  segments[starts.back()] = count;
  return starts.back();
}

std::int64_t merge_keys(const std::int64_t* a, std::int64_t a_count, const std::int64_t* b, std::int64_t b_count,
                        std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b, const CpuExecutor& executor) {
  return merge(a, a_count, b, b_count, keys, in_a, in_b, executor, [](std::int64_t, std::int64_t) { return true; });
}

std::int64_t intersect_keys(const std::int64_t* a, std::int64_t a_count, const std::int64_t* b, std::int64_t b_count,
                            std::int64_t* keys, std::int64_t* in_a, std::int64_t* in_b, const CpuExecutor& executor) {
  return merge(a, a_count, b, b_count, keys, in_a, in_b, executor,
               [](std::int64_t i, std::int64_t j) { return i >= 0 && j >= 0; });
}

}  // namespace lacewing::structure
