#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cuda/conv_tables.h"
#include "kernels/cuda/device/cub.h"
#include "kernels/cuda/device/items.h"

namespace lacewing::kernels::cuda {
namespace {

/// Taps whose pairs one launch visits: their offsets are an argument.
constexpr int kTapsOfLaunch = 256;
/// Taps that the order of the rows looks at.
constexpr int kKeyBits = 64;

/// The pairs of some taps.
struct Pairs {
  int first_tap;
  int taps;
  std::int64_t offsets[kTapsOfLaunch + 1];
  const std::int32_t* source;
  const std::int32_t* target;

  Pairs(const ConvMap& map, std::int64_t first, std::int64_t count)
      : first_tap(static_cast<int>(first)), taps(static_cast<int>(count)), source(map.source), target(map.target) {
    std::copy_n(map.tap_offsets + first, count + 1, offsets);
  }

  std::int64_t count() const { return offsets[taps] - offsets[0]; }

  /// f(tap, source, target) for each pair.
  template <typename F>
  __device__ __forceinline__ void visit(F&& f) const {
    for_items(offsets[taps] - offsets[0], [&](std::int64_t i) {
      const std::int64_t pair = offsets[0] + i;
      int low = 0;
      int high = taps - 1;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (offsets[middle + 1] <= pair) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      f(first_tap + low, source[pair], target[pair]);
    });
  }
};

__global__ void __launch_bounds__(kItemThreads)
    mark_taps_kernel(const __grid_constant__ Pairs pairs, std::uint32_t* row_taps, std::int64_t words) {
  pairs.visit([&](int tap, std::int32_t, std::int32_t target) {
    atomicOr(row_taps + target * words + tap / kWordTaps, 1u << tap % kWordTaps);
  });
}

/// The taps of a part from the most frequent one on, at most kKeyBits of them.
struct KeyTaps {
  int count;
  std::int32_t taps[kKeyBits];

  KeyTaps(const ConvMap& map, const ConvTables::Part& part)
      : count(static_cast<int>(std::min<std::int64_t>(part.taps, kKeyBits))) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(part.taps));
    std::iota(order.begin(), order.end(), static_cast<std::int32_t>(part.first_tap));
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return map.tap_offsets[a + 1] - map.tap_offsets[a] > map.tap_offsets[b + 1] - map.tap_offsets[b];
    });
    std::copy_n(order.begin(), count, taps);
  }
};

/// A row's taps as bits, the rarest highest, and their rank in a Gray code: neighbours in that order differ in few.
template <typename Key>
__global__ void __launch_bounds__(kItemThreads)
    order_keys_kernel(const std::uint32_t* row_taps, std::int64_t rows, std::int64_t words,
                      const __grid_constant__ KeyTaps order, Key* keys, std::uint32_t* places) {
  for_items(rows, [&](std::int64_t row) {
    Key key = 0;
    for (int bit = 0; bit < order.count; ++bit) {
      const std::int32_t tap = order.taps[bit];
      key |= static_cast<Key>(row_taps[row * words + tap / kWordTaps] >> tap % kWordTaps & 1u) << bit;
    }
    for (int shift = 1; shift < order.count; shift *= 2) {
      key ^= key >> shift;
    }
    keys[row] = key;
    places[row] = static_cast<std::uint32_t>(row);
  });
}

/// A thread for each place.
__global__ void __launch_bounds__(kItemThreads)
    place_rows_kernel(const std::uint32_t* sorted, std::int64_t rows, std::int64_t padded_rows, std::int32_t* row_at,
                      std::int32_t* place_of) {
  for_items(padded_rows, [&](std::int64_t place) {
    const std::int32_t row = place < rows ? static_cast<std::int32_t>(sorted[place]) : -1;
    row_at[place] = row;
    if (row >= 0) {
      place_of[row] = static_cast<std::int32_t>(place);
    }
  });
}

/// The bits of a word that are taps of a part.
__device__ __forceinline__ std::uint32_t part_bits(std::int64_t word, std::int64_t first_tap, std::int64_t taps) {
  const std::int64_t low = max(first_tap - word * kWordTaps, std::int64_t{0});
  const std::int64_t high = min(first_tap + taps - word * kWordTaps, kWordTaps);
  return low >= high ? 0u
                     : static_cast<std::uint32_t>(((std::uint64_t{1} << high) - 1) & ~((std::uint64_t{1} << low) - 1));
}

/// A thread for each set and word.
__global__ void __launch_bounds__(kItemThreads)
    set_taps_kernel(const std::uint32_t* row_taps, const std::int32_t* row_at, std::int64_t sets, std::int64_t words,
                    std::int64_t first_tap, std::int64_t taps, std::uint32_t* set_taps, std::uint32_t* begun) {
  for_items(sets * words, [&](std::int64_t i) {
    const std::int64_t set = i / words;
    const std::int64_t word = i - set * words;
    const std::uint32_t earlier = part_bits(word, 0, first_tap);
    std::uint32_t any = 0;
    std::uint32_t rows_begun = 0;
    for (std::int64_t r = 0; r < kConvSetRows; ++r) {
      const std::int32_t row = row_at[set * kConvSetRows + r];
      const std::uint32_t needed = row >= 0 ? row_taps[row * words + word] : 0u;
      any |= needed;
      rows_begun |= (needed & earlier) != 0 ? 1u << r : 0u;
    }
    set_taps[i] = any & part_bits(word, first_tap, taps);
    if (word == 0) {
      begun[set] = rows_begun;  // there is one word where there are several parts
    }
  });
}

__global__ void __launch_bounds__(kItemThreads)
    place_sources_kernel(const __grid_constant__ Pairs pairs, const std::int32_t* place_of, std::int64_t rows,
                         std::int64_t padded_rows, std::int64_t second_part, std::int32_t* sources) {
  pairs.visit([&](int tap, std::int32_t source, std::int32_t target) {
    const std::int64_t place = place_of[(tap >= second_part ? rows : 0) + target];
    sources[tap * padded_rows + place] = source;
  });
}

/// The tiles of all kinds, one kind after the other.
struct TileKinds {
  std::int64_t words;
  std::int64_t first[kConvTiles + 1];  ///< tile of each kind

  explicit TileKinds(const ConvTables& tables) : words(tables.words) {
    for (int kind = 0; kind <= kConvTiles; ++kind) {
      first[kind] = tables.first_tile(kind);
    }
  }
  std::int64_t tiles() const { return first[kConvTiles]; }

  __device__ int kind_of(std::int64_t tile) const {
    int kind = 0;
    while (tile >= first[kind + 1]) {
      ++kind;
    }
    return kind;
  }
  /// The taps of one word that a tile's group needs.
  __device__ std::uint32_t group_taps(const std::uint32_t* set_taps, int kind, std::int64_t tile, int group,
                                      std::int64_t word) const {
    const std::int64_t rows = conv_tile_rows(static_cast<ConvTile>(kind));
    const std::int64_t set = tile * (rows / kConvSetRows);
    if (kind == static_cast<int>(ConvTile::one_set)) {
      return group == 0 ? set_taps[set * words + word] : 0u;
    }
    return group < rows / kConvGroupRows
               ? set_taps[(set + 2 * group) * words + word] | set_taps[(set + 2 * group + 1) * words + word]
               : 0u;
  }
};

/// Keys that sort the tiles of each kind by the number of taps that they need, the heaviest first.
__global__ void __launch_bounds__(kItemThreads)
    tile_keys_kernel(const __grid_constant__ TileKinds kinds, const std::uint32_t* set_taps, std::uint32_t most_work,
                     std::uint32_t* keys, std::uint32_t* numbers) {
  for_items(kinds.first[kConvTiles], [&](std::int64_t i) {
    const int kind = kinds.kind_of(i);
    std::uint32_t work = 0;
    for (std::int64_t word = 0; word < kinds.words; ++word) {
      std::uint32_t taps = 0;
      for (int group = 0; group < TileTaps::kMostGroups; ++group) {
        taps |= kinds.group_taps(set_taps, kind, i - kinds.first[kind], group, word);
      }
      for (; taps != 0; taps &= taps - 1) {
        ++work;
      }
    }
    keys[i] = static_cast<std::uint32_t>(kind) * (most_work + 1) + (most_work - work);
    numbers[i] = static_cast<std::uint32_t>(i);
  });
}

__global__ void __launch_bounds__(kItemThreads)
    write_tiles_kernel(const __grid_constant__ TileKinds kinds, const std::uint32_t* set_taps,
                       const std::uint32_t* sorted, TileTaps* tiles) {
  for_items(kinds.first[kConvTiles] * kinds.words, [&](std::int64_t i) {
    const std::int64_t at = i / kinds.words;
    const std::int64_t word = i - at * kinds.words;
    const int kind = kinds.kind_of(at);
    const std::int64_t tile = static_cast<std::int64_t>(sorted[at]) - kinds.first[kind];
    TileTaps out;
    out.tile = static_cast<std::int32_t>(tile);
    for (int group = 0; group < TileTaps::kMostGroups; ++group) {
      out.taps[group] = kinds.group_taps(set_taps, kind, tile, group, word);
    }
    tiles[i] = out;
  });
}

/// Bits of numbers below `limit`.
int bits_below(std::uint64_t limit) {
  int bits = 1;
  while (bits < 64 && (std::uint64_t{1} << bits) < limit) {
    ++bits;
  }
  return bits;
}

struct TableSpace {
  bool wide;  ///< keys of the rows
  int tile_bits;
  std::uint32_t most_work;
  Slot<std::uint64_t> keys, sorted_keys;
  Slot<std::uint32_t> numbers, sorted;
  Slot<std::int32_t> place_of;  ///< (parts, rows)
  Slot<char> sort;
  std::int64_t sort_bytes;
  WorkspaceLayout layout;

  explicit TableSpace(const ConvTables& tables)
      : wide(tables.first_tap(1) > kWordTaps ||
             tables.sizes.taps - tables.first_tap(tables.sizes.parts - 1) > kWordTaps),
        most_work(static_cast<std::uint32_t>(tables.sizes.taps)) {
    tile_bits = bits_below(std::uint64_t{kConvTiles} * (most_work + 1));
    const std::int64_t tiles = tables.first_tile(kConvTiles);
    const std::int64_t count = std::max(tables.sizes.rows, tiles);
    keys = layout.add<std::uint64_t>(count);
    sorted_keys = layout.add<std::uint64_t>(count);
    numbers = layout.add<std::uint32_t>(count);
    sorted = layout.add<std::uint32_t>(count);
    place_of = layout.add<std::int32_t>(tables.sizes.parts * tables.sizes.rows);
    sort_bytes = std::max(wide ? sort_pairs_workspace<std::uint64_t, std::uint32_t>(tables.sizes.rows, kKeyBits)
                               : sort_pairs_workspace<std::uint32_t, std::uint32_t>(tables.sizes.rows, kWordTaps),
                          sort_pairs_workspace<std::uint32_t, std::uint32_t>(tiles, tile_bits));
    sort = layout.add<char>(sort_bytes);
  }
};

class TableBuilder {
 public:
  TableBuilder(const ConvMap& map, const ConvTables& tables, void* memory, const CudaExecutor& executor,
               void* workspace)
      : map_(map), tables_(tables), memory_(memory), executor_(executor), workspace_(workspace), space_(tables) {}

  void build() const {
    const ConvTableSizes& sizes = tables_.sizes;
    std::uint32_t* const row_taps = tables_.row_taps.at(memory_);
    std::int32_t* const sources = tables_.sources.at(memory_);
    fill(row_taps, 0, sizes.rows * tables_.words * static_cast<std::int64_t>(sizeof(std::uint32_t)), executor_);
    fill(sources, 0xff, sizes.taps * tables_.padded_rows * static_cast<std::int64_t>(sizeof(std::int32_t)), executor_);
    for_pairs([&](const Pairs& pairs) {
      launch(over("mark_taps", pairs.count()), executor_, mark_taps_kernel, pairs, row_taps, tables_.words);
    });
    for (int part = 0; part < sizes.parts; ++part) {
      if (space_.wide) {
        place_rows<std::uint64_t>(part);
      } else {
        place_rows<std::uint32_t>(part);
      }
      list_tiles(part);
    }
    for_pairs([&](const Pairs& pairs) {
      launch(over("place_sources", pairs.count()), executor_, place_sources_kernel, pairs,
             space_.place_of.at(workspace_), sizes.rows, tables_.padded_rows,
             sizes.parts > 1 ? tables_.first_tap(1) : sizes.taps, sources);
    });
  }

 private:
  template <typename F>
  void for_pairs(F&& f) const {
    for (std::int64_t tap = 0; tap < map_.taps; tap += kTapsOfLaunch) {
      f(Pairs(map_, tap, std::min<std::int64_t>(kTapsOfLaunch, map_.taps - tap)));
    }
  }

  template <typename Key>
  void place_rows(int number) const {
    const ConvTables::Part& part = tables_.parts[number];
    const std::int64_t rows = tables_.sizes.rows;
    const KeyTaps order(map_, part);
    auto* const keys = reinterpret_cast<Key*>(space_.keys.at(workspace_));
    auto* const sorted_keys = reinterpret_cast<Key*>(space_.sorted_keys.at(workspace_));
    std::uint32_t* const numbers = space_.numbers.at(workspace_);
    std::uint32_t* const sorted = space_.sorted.at(workspace_);
    const std::uint32_t* const row_taps = tables_.row_taps.at(memory_);
    std::int32_t* const row_at = part.rows.at(memory_);
    launch(over("order_keys", rows), executor_, order_keys_kernel<Key>, row_taps, rows, tables_.words, order, keys,
           numbers);
    sort_pairs(keys, sorted_keys, numbers, sorted, rows, std::max(order.count, 1), executor_,
               space_.sort.at(workspace_), space_.sort_bytes);
    launch(over("place_rows", tables_.padded_rows), executor_, place_rows_kernel, sorted, rows, tables_.padded_rows,
           row_at, space_.place_of.at(workspace_) + number * rows);
    const std::int64_t sets = tables_.padded_rows / kConvSetRows;
    launch(over("set_taps", sets * tables_.words), executor_, set_taps_kernel, row_taps, row_at, sets, tables_.words,
           part.first_tap, part.taps, part.set_taps.at(memory_), part.begun.at(memory_));
  }

  void list_tiles(int number) const {
    const ConvTables::Part& part = tables_.parts[number];
    const TileKinds kinds(tables_);
    auto* const keys = reinterpret_cast<std::uint32_t*>(space_.keys.at(workspace_));
    auto* const sorted_keys = reinterpret_cast<std::uint32_t*>(space_.sorted_keys.at(workspace_));
    std::uint32_t* const numbers = space_.numbers.at(workspace_);
    std::uint32_t* const sorted = space_.sorted.at(workspace_);
    launch(over("tile_keys", kinds.tiles()), executor_, tile_keys_kernel, kinds, part.set_taps.at(memory_),
           space_.most_work, keys, numbers);
    sort_pairs(keys, sorted_keys, numbers, sorted, kinds.tiles(), space_.tile_bits, executor_,
               space_.sort.at(workspace_), space_.sort_bytes);
    launch(over("write_tiles", kinds.tiles() * kinds.words), executor_, write_tiles_kernel, kinds,
           part.set_taps.at(memory_), sorted, part.tiles.at(memory_));
  }

  const ConvMap& map_;
  const ConvTables& tables_;
  void* memory_;
  const CudaExecutor& executor_;
  void* workspace_;
  TableSpace space_;
};

}  // namespace

std::int64_t conv_tables_bytes(const ConvTableSizes& sizes) { return ConvTables(sizes).bytes; }

std::int64_t conv_tables_workspace(const ConvTableSizes& sizes) { return TableSpace(ConvTables(sizes)).layout.bytes(); }

void make_conv_tables(const ConvMap& map, const ConvTableSizes& sizes, void* memory, const CudaExecutor& executor,
                      void* workspace) {
  if (sizes.rows == 0 || sizes.taps == 0) {
    return;
  }
  const ConvTables tables(sizes);
  TableBuilder(map, tables, memory, executor, workspace).build();
}

}  // namespace lacewing::kernels::cuda
