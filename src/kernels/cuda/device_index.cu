// Index structures on the device. Sorts and running sums are CUB's (device/cub.h), the rest one pass each. Sums
// of integers alone are added by atomics: they are the same in any order.
#include "kernels/cuda/device/cub.h"
#include "kernels/cuda/device/items.h"
#include "kernels/cuda/device/workspace.h"
#include "kernels/device_index.h"
#include "kernels/term_hash.h"

namespace lacewing::kernels::cuda {
namespace {

/// Blocks whose threads read many items before their words meet.
Launch reading(const char* name, std::int64_t items) {
  return {name, blocks_for(items, 16 * kItemThreads), kItemThreads};
}

template <typename F>
void by_width(bool wide, F&& f) {
  if (wide) {
    f(std::uint64_t{});
  } else {
    f(std::uint32_t{});
  }
}

int bits_of(std::int64_t limit) {
  int bits = 1;
  while (bits < 63 && (std::int64_t{1} << bits) < limit) {
    ++bits;
  }
  return bits;
}

template <typename Key, typename Payload>
__global__ void __launch_bounds__(kItemThreads)
    number_kernel(const std::int64_t* keys, Key* narrowed, Payload* places, std::int64_t count) {
  for_items(count, [&](std::int64_t i) {
    if (narrowed != nullptr) {
      narrowed[i] = static_cast<Key>(keys[i]);
    }
    places[i] = static_cast<Payload>(i);
  });
}

__global__ void __launch_bounds__(kItemThreads)
    widen_kernel(const std::uint32_t* narrow_keys, std::int64_t* keys, std::int64_t count) {
  for_items(count, [&](std::int64_t i) { keys[i] = narrow_keys[i]; });
}

/// Keys of at most 32 bits are sorted as such.
template <typename Payload>
struct SortSpace {
  bool narrow;
  int bits;
  Slot<std::uint32_t> keys, sorted;
  Slot<Payload> places;
  Slot<char> space;
  std::int64_t space_bytes;
  WorkspaceLayout layout;

  explicit SortSpace(const KeySort& sort)
      : narrow(sizeof(Payload) == 4 && bits_of(sort.limit) <= 32), bits(bits_of(sort.limit)) {
    if (narrow) {
      keys = layout.add<std::uint32_t>(sort.count);
      sorted = layout.add<std::uint32_t>(sort.count);
    }
    places = layout.add<Payload>(sort.count);
    if constexpr (sizeof(Payload) == 4) {
      space_bytes = narrow ? sort_pairs_workspace<std::uint32_t, Payload>(sort.count, bits)
                           : sort_pairs_workspace<std::uint64_t, Payload>(sort.count, bits);
    } else {
      space_bytes = sort_pairs_workspace<std::uint64_t, Payload>(sort.count, bits);
    }
    space = layout.add<char>(space_bytes);
  }
};

template <typename Number>
__global__ void __launch_bounds__(kItemThreads) heads_kernel(KeyGroups groups) {
  auto* const number = static_cast<Number*>(groups.number);
  const auto* const order = static_cast<const Number*>(groups.order);
  bool moved = false;
  for_items(groups.count, [&](std::int64_t i) {
    number[i] = i == 0 || groups.sorted[i] != groups.sorted[i - 1] ? 1 : 0;
    moved = moved || (order != nullptr && order[i] != static_cast<Number>(i));
  });
  if (__syncthreads_or(static_cast<int>(moved)) != 0 && threadIdx.x == 0) {
    groups.found[1] = 1;  // by any block: it is the same word
  }
}

template <typename Number>
__global__ void last_kernel(const Number* number, std::int64_t count, std::int64_t* found) {
  if (threadIdx.x == 0) {
    *found = count > 0 ? static_cast<std::int64_t>(number[count - 1]) : 0;
  }
}

template <typename Number>
__global__ void __launch_bounds__(kItemThreads) write_groups_kernel(KeyGroups groups) {
  const auto* const number = static_cast<const Number*>(groups.number);
  auto* const segments = static_cast<Number*>(groups.segments);
  for_items(groups.count, [&](std::int64_t i) {
    const auto group = static_cast<std::int64_t>(number[i]) - 1;
    if (i == 0 || static_cast<std::int64_t>(number[i - 1]) == group) {
      if (segments != nullptr) {
        segments[group] = static_cast<Number>(i);
      }
      if (groups.keys != nullptr) {
        groups.keys[group] = groups.sorted[i];
      }
    }
    if (i == groups.count - 1 && segments != nullptr) {
      segments[groups.groups] = static_cast<Number>(groups.count);
    }
  });
}

template <typename Number>
__global__ void __launch_bounds__(kItemThreads)
    row_pointers_kernel(const std::int64_t* sorted, std::int64_t count, std::int64_t rows, Number* pointers) {
  for_items(rows + 1, [&](std::int64_t row) {
    std::int64_t low = 0;
    std::int64_t high = count;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (sorted[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    pointers[row] = static_cast<Number>(low);
  });
}

template <typename Number>
__global__ void __launch_bounds__(kItemThreads)
    rows_of_terms_kernel(const Number* pointers, std::int64_t rows, std::int64_t count, std::int64_t* row_of) {
  for_items(count, [&](std::int64_t term) {
    std::int64_t low = 0;
    std::int64_t high = rows;  // the first row that begins beyond the term
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (static_cast<std::int64_t>(pointers[middle + 1]) <= term) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    row_of[term] = low;
  });
}

struct ScannedTerm {
  std::int64_t first, second, row;

  __device__ ScannedTerm(const TermScan& scan, std::int64_t i)
      : first(scan.index1 != nullptr ? scan.index1[i] : i),
        second(scan.unary               ? 0
               : scan.index2 != nullptr ? scan.index2[i]
                                        : i),
        row(scan.row != nullptr ? scan.row[i] : i) {}

  __device__ bool operator<(const ScannedTerm& other) const {
    return row != other.row ? row < other.row : first != other.first ? first < other.first : second < other.second;
  }
};

using Word = unsigned long long;

/// Several words of a block, each the largest or the sum of what its threads have, and then of all blocks.
template <int Words>
struct BlockWords {
  Word* words;

  __device__ explicit BlockWords(Word* shared) : words(shared) {
    if (threadIdx.x < Words) {
      words[threadIdx.x] = 0;
    }
    __syncthreads();
  }
  __device__ void largest(int word, std::int64_t value) const { atomicMax(&words[word], static_cast<Word>(value)); }
  __device__ void sum(int word, std::uint64_t value) const { atomicAdd(&words[word], static_cast<Word>(value)); }
  /// `is_sum` tells which words are sums.
  template <typename IsSum>
  __device__ void finish(std::uint64_t* all, IsSum&& is_sum) const {
    __syncthreads();
    if (threadIdx.x < Words) {
      auto* const out = reinterpret_cast<Word*>(all) + threadIdx.x;
      if (is_sum(static_cast<int>(threadIdx.x))) {
        atomicAdd(out, words[threadIdx.x]);
      } else {
        atomicMax(out, words[threadIdx.x]);
      }
    }
  }
};

__global__ void __launch_bounds__(kItemThreads) scan_terms_kernel(TermScan scan) {
  __shared__ Word memory[TermScan::kWords];
  const BlockWords<TermScan::kWords> words(memory);
  std::int64_t limit[3] = {0, 0, 0};
  bool negative = false;
  bool unsorted = false;
  TermHash hash;
  for_items(scan.count, [&](std::int64_t i) {
    const ScannedTerm term(scan, i);
    limit[0] = max(limit[0], term.first + 1);
    limit[1] = max(limit[1], term.second + 1);
    limit[2] = max(limit[2], term.row + 1);
    negative = negative || term.first < 0 || term.second < 0 || term.row < 0;
    unsorted = unsorted || (i > 0 && term < ScannedTerm(scan, i - 1));
    hash.add(term.first, term.second, term.row, i, scan.unary);
  });
  words.largest(TermScan::limit1, limit[0]);
  words.largest(TermScan::limit2, limit[1]);
  words.largest(TermScan::limit_row, limit[2]);
  words.largest(TermScan::negative, negative);
  words.largest(TermScan::unsorted, unsorted);
  words.sum(TermScan::hash, hash.forward);
  words.sum(TermScan::hash_bwd1, hash.backward1);
  words.sum(TermScan::hash_bwd2, hash.backward2);
  words.sum(TermScan::order_hash, hash.order);
  words.finish(scan.words, [](int word) { return word >= TermScan::hash && word <= TermScan::order_hash; });
}

__global__ void __launch_bounds__(kItemThreads) scan_indices_kernel(const __grid_constant__ IndexScan scan) {
  __shared__ Word memory[IndexScan::kWords];
  const BlockWords<IndexScan::kWords> words(memory);
  const KeyCode& code = scan.code;
  std::int64_t outside = 0;
  bool unsorted = false;
  bool repeated = false;
  for_items(code.count, [&](std::int64_t i) {
    bool less = false;   // than the entry before
    bool equal = i > 0;  // to it
    for (int d = 0; d < code.dims; ++d) {
      const std::int64_t* const index = scan.indices + code.offset[d] + i * code.stride;
      if (*index < 0 || *index >= code.size[d]) {
        outside = max(outside, code.count - i);
      }
      if (equal) {
        const std::int64_t before = *(index - code.stride);
        less = *index < before;
        equal = *index == before;
      }
    }
    unsorted = unsorted || less;
    repeated = repeated || equal;
  });
  words.largest(IndexScan::outside, outside);
  words.largest(IndexScan::unsorted, unsorted);
  words.largest(IndexScan::repeated, repeated);
  words.finish(scan.words, [](int) { return false; });
}

__device__ __forceinline__ std::int64_t at(const Column& column, std::int64_t i) {
  return column.data == nullptr ? i
         : column.wide          ? static_cast<const std::int64_t*>(column.data)[i]
                                : static_cast<std::int64_t>(static_cast<const std::int32_t*>(column.data)[i]);
}

__global__ void __launch_bounds__(kItemThreads) find_moved_kernel(const __grid_constant__ TermColumns columns) {
  __shared__ Word memory[TermColumns::kMost];
  const BlockWords<TermColumns::kMost> words(memory);
  std::int64_t moved = 0;
  for_items(columns.count, [&](std::int64_t i) {
    const std::int64_t from = at(columns.order, i);
    for (int c = 0; c < columns.columns; ++c) {
      moved |= static_cast<std::int64_t>(at(columns.from[c], from) != i) << c;
    }
  });
  for (int c = 0; c < columns.columns; ++c) {
    words.largest(c, (moved >> c) & 1);
  }
  words.finish(columns.moved, [](int) { return false; });
}

__global__ void __launch_bounds__(kItemThreads) reorder_kernel(const __grid_constant__ TermColumns columns) {
  for_items(columns.count, [&](std::int64_t i) {
    const std::int64_t from = at(columns.order, i);
    for (int c = 0; c < columns.columns; ++c) {
      if (columns.to[c] == nullptr) {
        continue;
      }
      const std::int64_t value = at(columns.from[c], from);
      if (columns.wide) {
        static_cast<std::int64_t*>(columns.to[c])[i] = value;
      } else {
        static_cast<std::int32_t*>(columns.to[c])[i] = static_cast<std::int32_t>(value);
      }
    }
  });
}

__global__ void __launch_bounds__(kItemThreads)
    linear_keys_kernel(const __grid_constant__ KeyCode code, const std::int64_t* indices, std::int64_t* keys) {
  for_items(code.count, [&](std::int64_t i) {
    std::int64_t key = 0;
    for (int d = 0; d < code.dims; ++d) {
      key = key * code.size[d] + indices[code.offset[d] + i * code.stride];
    }
    keys[i] = key;
  });
}

__global__ void __launch_bounds__(kItemThreads)
    unravel_keys_kernel(const __grid_constant__ KeyCode code, const std::int64_t* keys, std::int64_t* out) {
  for_items(code.count, [&](std::int64_t i) {
    std::int64_t rest = keys[i];
    for (int d = code.dims - 1; d > 0; --d) {
      const std::int64_t size = max(code.size[d], std::int64_t{1});
      const std::int64_t next = rest / size;
      out[d * code.count + i] = rest - next * size;
      rest = next;
    }
    out[i] = rest;
  });
}

}  // namespace

std::int64_t sort_workspace(const KeySort& sort) {
  std::int64_t bytes = 0;
  by_width(sort.wide, [&](auto payload) { bytes = SortSpace<decltype(payload)>(sort).layout.bytes(); });
  return bytes;
}

void sort_keys(const KeySort& sort, const CudaExecutor& executor, void* workspace) {
  if (sort.count == 0) {
    return;
  }
  by_width(sort.wide, [&](auto payload) {
    using Payload = decltype(payload);
    const SortSpace<Payload> space(sort);
    auto* const places = space.places.at(workspace);
    auto* const order = static_cast<Payload*>(sort.order);
    auto* const narrow = space.narrow ? space.keys.at(workspace) : nullptr;
    launch(over("number_keys", sort.count), executor, number_kernel<std::uint32_t, Payload>, sort.keys, narrow, places,
           sort.count);
    if constexpr (sizeof(Payload) == 4) {
      if (space.narrow) {
        auto* const sorted = space.sorted.at(workspace);
        sort_pairs<std::uint32_t, Payload>(narrow, sorted, places, order, sort.count, space.bits, executor,
                                           space.space.at(workspace), space.space_bytes);
        return launch(over("widen_keys", sort.count), executor, widen_kernel, sorted, sort.sorted, sort.count);
      }
    }
    sort_pairs<std::uint64_t, Payload>(reinterpret_cast<const std::uint64_t*>(sort.keys),
                                       reinterpret_cast<std::uint64_t*>(sort.sorted), places, order, sort.count,
                                       space.bits, executor, space.space.at(workspace), space.space_bytes);
  });
}

std::int64_t groups_workspace(const KeyGroups& groups) {
  std::int64_t bytes = 0;
  by_width(groups.wide, [&](auto number) { bytes = running_sum_workspace<decltype(number)>(groups.count); });
  return bytes;
}

void find_groups(const KeyGroups& groups, const CudaExecutor& executor, void* workspace) {
  clear(groups.found, 2 * sizeof(std::int64_t), executor);
  if (groups.count == 0) {
    return;
  }
  by_width(groups.wide, [&](auto number) {
    using Number = decltype(number);
    auto* const numbers = static_cast<Number*>(groups.number);
    launch(reading("group_heads", groups.count), executor, heads_kernel<Number>, groups);
    running_sum<Number>(numbers, groups.count, executor, workspace, groups_workspace(groups));
    launch({"count_groups", 1, 1}, executor, last_kernel<Number>, numbers, groups.count, groups.found);
  });
}

void write_groups(const KeyGroups& groups, const CudaExecutor& executor) {
  by_width(groups.wide, [&](auto number) {
    launch(over("write_groups", groups.count), executor, write_groups_kernel<decltype(number)>, groups);
  });
}

void row_pointers(const std::int64_t* sorted, std::int64_t count, std::int64_t rows, void* pointers, bool wide,
                  const CudaExecutor& executor) {
  by_width(wide, [&](auto number) {
    using Number = decltype(number);
    launch(over("row_pointers", rows + 1), executor, row_pointers_kernel<Number>, sorted, count, rows,
           static_cast<Number*>(pointers));
  });
}

void rows_of_terms(const void* pointers, bool wide, std::int64_t rows, std::int64_t count, std::int64_t* row_of,
                   const CudaExecutor& executor) {
  by_width(wide, [&](auto number) {
    using Number = decltype(number);
    launch(over("rows_of_terms", count), executor, rows_of_terms_kernel<Number>, static_cast<const Number*>(pointers),
           rows, count, row_of);
  });
}

void scan_terms(const TermScan& scan, const CudaExecutor& executor) {
  clear(scan.words, TermScan::kWords * sizeof(std::uint64_t), executor);
  launch(reading("scan_terms", scan.count), executor, scan_terms_kernel, scan);
}

void scan_indices(const IndexScan& scan, const CudaExecutor& executor) {
  clear(scan.words, IndexScan::kWords * sizeof(std::uint64_t), executor);
  launch(reading("scan_indices", scan.code.count), executor, scan_indices_kernel, scan);
}

void find_moved(const TermColumns& columns, const CudaExecutor& executor) {
  clear(columns.moved, TermColumns::kMost * sizeof(std::uint64_t), executor);
  launch(reading("find_moved", columns.count), executor, find_moved_kernel, columns);
}

void reorder(const TermColumns& columns, const CudaExecutor& executor) {
  launch(over("reorder", columns.count), executor, reorder_kernel, columns);
}

void linear_keys(const KeyCode& code, const std::int64_t* indices, std::int64_t* keys, const CudaExecutor& executor) {
  launch(over("linear_keys", code.count), executor, linear_keys_kernel, code, indices, keys);
}

void unravel_keys(const KeyCode& code, const std::int64_t* keys, std::int64_t* out, const CudaExecutor& executor) {
  launch(over("unravel_keys", code.count), executor, unravel_keys_kernel, code, keys, out);
}

}  // namespace lacewing::kernels::cuda
