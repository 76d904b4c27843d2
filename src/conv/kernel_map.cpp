#include "conv/kernel_map.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace lacewing::conv {
namespace {

/// Consecutive taps whose queries are consecutive keys: a column on the last axis, or one tap where that is dilated.
struct Column {
  std::int64_t first_tap;
  std::int64_t width;
  std::uint64_t offset;  ///< of the first tap's query from the coarse voxel's key, modulo 2^64
};

std::vector<Column> columns_of(const Geometry& geometry, const Packing& packing) {
  const int last = geometry.axes - 1;
  const std::int64_t depth = geometry.kernel[static_cast<std::size_t>(last)];
  const bool dense = geometry.dilation[static_cast<std::size_t>(last)] == 1;
  const std::int64_t width = dense ? depth : 1;
  std::vector<Column> columns;
  for (std::int64_t tap = 0; tap < geometry.taps(); tap += width) {
    std::uint64_t offset = 0;
    std::int64_t rest = tap;
    for (int axis = last; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      offset += static_cast<std::uint64_t>(geometry.offset(axis, rest % geometry.kernel[a])) << packing.shift[a + 1];
      rest /= geometry.kernel[a];
    }
    columns.push_back({tap, width, offset});
  }
  return columns;
}

/// The pairs of one column over a part of the coarse voxels, as sorted positions; tap j begins at j * capacity.
struct Piece {
  std::int64_t capacity = 0;
  std::unique_ptr<std::int32_t[]> fine;
  std::unique_ptr<std::int32_t[]> coarse;
  std::vector<std::int64_t> counts;

  void merge(const Column& column, const SortedKeys& fine_keys, const SortedKeys& coarse_keys, std::int64_t begin,
             std::int64_t end) {
    capacity = end - begin;
    const auto size = static_cast<std::size_t>(capacity * column.width);
    fine.reset(new std::int32_t[size]);
    coarse.reset(new std::int32_t[size]);
    counts.assign(static_cast<std::size_t>(column.width), 0);
    if (begin == end) {
      return;
    }
    const std::uint64_t* const keys = fine_keys.keys.get();
    const std::uint64_t* const queries = coarse_keys.keys.get();
    const auto width = static_cast<std::uint64_t>(column.width);
    std::int64_t* const count = counts.data();
    std::int64_t p = std::lower_bound(keys, keys + fine_keys.count, queries[begin] + column.offset) - keys;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t query = queries[i] + column.offset;
      while (keys[p] < query) {
        ++p;
      }
      std::int64_t r = p;
      for (std::uint64_t tap = keys[r] - query; tap < width; tap = keys[++r] - query) {
        const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(tap) * capacity + count[tap]++);
        fine[at] = static_cast<std::int32_t>(r);
        coarse[at] = static_cast<std::int32_t>(i);
      }
    }
  }
};

/// Copies positions as rows, and notes where each tile of positions begins.
class SideWriter {
 public:
  SideWriter(std::int32_t* out, const std::int32_t* order, std::int32_t* table)
      : out_(out), order_(order), table_(table) {}

  void append(const std::int32_t* positions, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t position = positions[i];
      while (next_ * kernels::kConvTileRows <= position) {
        table_[next_++] = static_cast<std::int32_t>(written_ + i);
      }
      out_[written_ + i] = order_ == nullptr ? position : order_[position];
    }
    written_ += count;
  }
  void finish(std::int64_t tiles) {
    while (next_ <= tiles) {
      table_[next_++] = static_cast<std::int32_t>(written_);
    }
  }

 private:
  std::int32_t* out_;
  const std::int32_t* order_;
  std::int32_t* table_;
  std::int64_t next_ = 0;
  std::int64_t written_ = 0;
};

void check_rows(const Coordinates& coordinates) {
  if (coordinates.rows > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(std::string(coordinates.name) + " has " + std::to_string(coordinates.rows) +
                                " rows, but a plan takes at most 2^31 - 1");
  }
}

/// Fine voxels and all queries.
Box query_box(const Coordinates& fine, const Coordinates& coarse, const Geometry& geometry, bool same,
              const CpuExecutor& executor) {
  Box box = bounds(fine, executor);
  Box queries = same ? box : bounds(coarse, executor);
  for (int axis = 0; axis < geometry.axes && !queries.empty; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    // Offset 0 is within: the coarse voxels' own keys are made there.
    const std::int64_t below = std::min<std::int64_t>(geometry.offset(axis, 0), 0);
    const std::int64_t above = std::max<std::int64_t>(geometry.offset(axis, geometry.kernel[a] - 1), 0);
    queries.low[a + 1] = geometry.stride[a] * queries.low[a + 1] + below;
    queries.high[a + 1] = geometry.stride[a] * queries.high[a + 1] + above;
  }
  box.include(queries, geometry.axes);
  return box;
}

}  // namespace

PlanMeta build_map(const Coordinates& fine, const Coordinates& coarse, const Geometry& geometry, bool same,
                   const Allocate& allocate, const CpuExecutor& executor) {
  check_rows(fine);
  check_rows(coarse);
  const Packing packing(query_box(fine, coarse, geometry, same, executor), geometry.axes);
  const SortedKeys fine_keys = sort_keys(fine, packing, {1, 1, 1, 1}, true, executor);
  const SortedKeys other_keys = same ? SortedKeys{} : sort_keys(coarse, packing, geometry.stride, true, executor);
  const SortedKeys& coarse_keys = same ? fine_keys : other_keys;

  const std::vector<Column> columns = columns_of(geometry, packing);
  const auto column_count = static_cast<std::int64_t>(columns.size());
  // The middle column and those behind it; the others are theirs with the roles exchanged.
  const bool mirrored = same && geometry.symmetric();
  const std::int64_t first_column = mirrored ? column_count / 2 : 0;
  const std::int64_t parts = std::clamp<std::int64_t>(coarse_keys.count / 4096, 1, executor.max_threads());
  std::vector<Piece> pieces(static_cast<std::size_t>(column_count * parts));
  const std::int64_t tasks = (column_count - first_column) * parts;
  executor.parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t part = task / (column_count - first_column);
      const std::int64_t c = first_column + task % (column_count - first_column);
      pieces[static_cast<std::size_t>(c * parts + part)].merge(columns[static_cast<std::size_t>(c)], fine_keys,
                                                               coarse_keys, coarse_keys.count * part / parts,
                                                               coarse_keys.count * (part + 1) / parts);
    }
  });

  PlanMeta meta;
  meta.fine_rows = fine.rows;
  meta.coarse_rows = coarse.rows;
  meta.taps = geometry.taps();
  meta.flags = (fine_keys.rows ? PlanMeta::has_fine_order : 0) | (coarse_keys.rows ? PlanMeta::has_coarse_order : 0);
  meta.identity_tap = mirrored ? meta.taps / 2 : -1;
  const std::int64_t width = columns.front().width;
  /// Where the pairs of a tap are, and whether the roles are exchanged there.
  const auto found = [&](std::int64_t tap) {
    const bool swap = tap / width < first_column;
    return std::pair(swap ? meta.taps - 1 - tap : tap, swap);
  };
  for (std::int64_t tap = 0; tap < meta.taps; ++tap) {
    std::int64_t count = 0;
    const std::int64_t at = found(tap).first;
    for (std::int64_t part = 0; part < parts; ++part) {
      count += pieces[static_cast<std::size_t>(at / width * parts + part)].counts[static_cast<std::size_t>(at % width)];
    }
    meta.tap_offsets.push_back(meta.tap_offsets.back() + count);
    meta.longest_tap = tap == meta.identity_tap ? meta.longest_tap : std::max(meta.longest_tap, count);
  }

  const PlanParts<std::int32_t> out(meta, allocate(meta.length()));
  if (out.fine_order != nullptr) {
    std::copy_n(fine_keys.rows.get(), fine.rows, out.fine_order);
  }
  if (out.coarse_order != nullptr) {
    std::copy_n(coarse_keys.rows.get(), coarse.rows, out.coarse_order);
  }
  const std::int64_t fine_tiles = PlanMeta::tiles(fine.rows);
  const std::int64_t coarse_tiles = PlanMeta::tiles(coarse.rows);
  executor.parallel_for(0, meta.taps, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tap = begin; tap < end; ++tap) {
      const auto [at, swap] = found(tap);
      const std::int64_t offset = meta.tap_offsets[static_cast<std::size_t>(tap)];
      SideWriter fine_side(out.fine + offset, fine_keys.rows.get(), out.fine_tiles + tap * (fine_tiles + 1));
      SideWriter coarse_side(out.coarse + offset, coarse_keys.rows.get(), out.coarse_tiles + tap * (coarse_tiles + 1));
      for (std::int64_t part = 0; part < parts; ++part) {
        const Piece& piece = pieces[static_cast<std::size_t>(at / width * parts + part)];
        const std::int64_t start = at % width * piece.capacity;
        const std::int64_t count = piece.counts[static_cast<std::size_t>(at % width)];
        fine_side.append((swap ? piece.coarse : piece.fine).get() + start, count);
        coarse_side.append((swap ? piece.fine : piece.coarse).get() + start, count);
      }
      fine_side.finish(fine_tiles);
      coarse_side.finish(coarse_tiles);
    }
  });
  return meta;
}

}  // namespace lacewing::conv
