#include "conv/voxels.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <stdexcept>

#include "structure/radix_sort.h"

namespace lacewing::conv {
namespace {

constexpr std::int64_t kGrain = 16384;

struct Record {
  std::uint64_t key;
  std::int32_t row;
};

struct RecordKey {
  std::uint64_t operator()(const Record& record) const { return record.key; }
};
using RecordSort = structure::RadixSort<Record, RecordKey>;

std::uint64_t key_of(const std::int32_t* row, int axes, const Packing& packing,
                     const std::array<std::int64_t, kMaxAxes>& scale) {
  std::uint64_t key = packing.field(0, row[0]);
  for (int a = 0; a < axes; ++a) {
    key |= packing.field(a + 1, scale[static_cast<std::size_t>(a)] * row[a + 1]);
  }
  return key;
}

/// Records sorted by key; equal keys in the order of their rows.
RecordSort sorted_records(const Coordinates& coordinates, const Packing& packing,
                          const std::array<std::int64_t, kMaxAxes>& scale, const CpuExecutor& executor) {
  RecordSort records(coordinates.rows, executor);
  records.for_parts([&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      records.data()[r] = {key_of(coordinates.row(r), coordinates.axes, packing, scale), static_cast<std::int32_t>(r)};
    }
  });
  records.sort_by({}, packing.bits);
  return records;
}

}  // namespace

std::string row_text(const Coordinates& coordinates, std::int64_t row) {
  std::string text = "(";
  for (int a = 0; a <= coordinates.axes; ++a) {
    text += (a == 0 ? "" : ", ") + std::to_string(coordinates.row(row)[a]);
  }
  return text + ")";
}

void Box::include(const Box& other, int axes) {
  if (other.empty) {
    return;
  }
  for (std::size_t c = 0; c <= static_cast<std::size_t>(axes); ++c) {
    low[c] = empty ? other.low[c] : std::min(low[c], other.low[c]);
    high[c] = empty ? other.high[c] : std::max(high[c], other.high[c]);
  }
  empty = false;
}

Box bounds(const Coordinates& coordinates, const CpuExecutor& executor) {
  Box box;
  std::mutex mutex;
  executor.parallel_for(0, coordinates.rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Box part;
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int32_t* const row = coordinates.row(r);
      for (std::size_t c = 0; c <= static_cast<std::size_t>(coordinates.axes); ++c) {
        part.low[c] = part.empty ? row[c] : std::min<std::int64_t>(part.low[c], row[c]);
        part.high[c] = part.empty ? row[c] : std::max<std::int64_t>(part.high[c], row[c]);
      }
      part.empty = false;
    }
    const std::lock_guard lock(mutex);
    box.include(part, coordinates.axes);
  });
  if (!box.empty && box.low[0] < 0) {
    std::int64_t r = 0;
    while (coordinates.row(r)[0] >= 0) {
      ++r;
    }
    throw std::invalid_argument(std::string(coordinates.name) + "[" + std::to_string(r) +
                                "] = " + row_text(coordinates, r) + " has a negative batch index");
  }
  return box;
}

Packing::Packing(const Box& box, int axes) {
  if (box.empty) {
    return;
  }
  for (int c = axes; c >= 0; --c) {
    const auto column = static_cast<std::size_t>(c);
    low[column] = box.low[column];
    shift[column] = std::min(bits, kMostBits);
    bits += std::bit_width(static_cast<std::uint64_t>(box.high[column] - box.low[column]));
  }
  if (bits > kMostBits) {
    std::string ranges;
    for (std::size_t c = 0; c <= static_cast<std::size_t>(axes); ++c) {
      ranges += (c == 0   ? "batch ["
                 : c == 1 ? "axes ["
                          : ", [") +
                std::to_string(box.low[c]) + ", " + std::to_string(box.high[c]) + (c == 0 && axes > 0 ? "], " : "]");
    }
    throw std::invalid_argument("coordinates with the ranges " + ranges + " (the kernel's reach included) need " +
                                std::to_string(bits) + " bits, but a packed voxel has " + std::to_string(kMostBits));
  }
}

SortedKeys sort_keys(const Coordinates& coordinates, const Packing& packing,
                     const std::array<std::int64_t, kMaxAxes>& scale, bool distinct, const CpuExecutor& executor) {
  RecordSort records = sorted_records(coordinates, packing, scale, executor);
  const Record* const r = records.sorted();
  const std::int64_t count = coordinates.rows;
  SortedKeys sorted;
  sorted.count = count;
  sorted.keys.reset(new std::uint64_t[static_cast<std::size_t>(count) + 1]);
  sorted.rows.reset(new std::int32_t[static_cast<std::size_t>(count)]);
  std::vector<std::int64_t> repeat(static_cast<std::size_t>(records.parts()), count);
  std::vector<char> identity(static_cast<std::size_t>(records.parts()), 1);
  records.for_parts([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      sorted.keys[static_cast<std::size_t>(i)] = r[i].key;
      sorted.rows[static_cast<std::size_t>(i)] = r[i].row;
      if (r[i].row != i) {
        identity[static_cast<std::size_t>(part)] = 0;
      }
      if (distinct && i > 0 && r[i - 1].key == r[i].key) {
        std::int64_t& first = repeat[static_cast<std::size_t>(part)];
        first = std::min<std::int64_t>(first, r[i].row);
      }
    }
  });
  sorted.keys[static_cast<std::size_t>(count)] = SortedKeys::sentinel;
  const std::int64_t second = *std::min_element(repeat.begin(), repeat.end());
  if (second < count) {
    std::int64_t first = 0;
    while (
        !std::equal(coordinates.row(first), coordinates.row(first) + coordinates.axes + 1, coordinates.row(second))) {
      ++first;
    }
    const std::string name = coordinates.name;
    throw std::invalid_argument(name + "[" + std::to_string(second) + "] = " + row_text(coordinates, second) +
                                " repeats " + name + "[" + std::to_string(first) +
                                "]: voxels must be distinct (unique_voxels merges them)");
  }
  if (std::all_of(identity.begin(), identity.end(), [](char same) { return same != 0; })) {
    sorted.rows.reset();
  }
  return sorted;
}

UniqueVoxels unique_voxels(const Coordinates& coordinates, const CpuExecutor& executor) {
  const Packing packing(bounds(coordinates, executor), coordinates.axes);
  RecordSort records = sorted_records(coordinates, packing, {1, 1, 1, 1}, executor);
  UniqueVoxels unique;
  unique.coordinates.axes = coordinates.axes;
  unique.inverse.resize(static_cast<std::size_t>(coordinates.rows));
  const Record* const r = records.sorted();
  for (std::int64_t i = 0; i < coordinates.rows; ++i) {
    if (i == 0 || r[i].key != r[i - 1].key) {
      unique.first.push_back(r[i].row);
    }
    unique.inverse[static_cast<std::size_t>(r[i].row)] = static_cast<std::int64_t>(unique.first.size()) - 1;
  }
  unique.coordinates.values.reserve(unique.first.size() * static_cast<std::size_t>(coordinates.axes + 1));
  for (const std::int32_t row : unique.first) {
    const std::int32_t* const from = coordinates.row(row);
    unique.coordinates.values.insert(unique.coordinates.values.end(), from, from + coordinates.axes + 1);
  }
  return unique;
}

}  // namespace lacewing::conv
