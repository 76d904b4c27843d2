#include "structure/entry_slice.h"

#include <algorithm>

#include "structure/fixed_parts.h"

namespace lacewing::structure {

EntrySlice::EntrySlice(const IndexMatrix& indices, std::int64_t dims, std::vector<Slice> slices, bool sorted,
                       const CpuExecutor& executor)
    : indices_(indices), dims_(dims), slices_(std::move(slices)), executor_(executor), last_(indices.count) {
  const auto leading = std::find_if(slices_.begin(), slices_.end(), [](const Slice& s) { return s.dim == 0; });
  if (sorted && leading != slices_.end()) {
    const auto place_of = [&](std::int64_t index) {
      std::int64_t low = 0;
      std::int64_t high = indices_.count;
      while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if (indices_.at(0, middle) < index) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      return low;
    };
    first_ = place_of(leading->start);
    last_ = place_of(leading->end);
  }
  const std::int64_t cut = parts_for(last_ - first_);
  starts_.assign(static_cast<std::size_t>(cut) + 1, 0);
  for_fixed_parts(cut, last_ - first_, executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t taken = 0;
    for (std::int64_t e = first_ + begin; e < first_ + end; ++e) {
      taken += takes(e) ? 1 : 0;
    }
    starts_[static_cast<std::size_t>(part) + 1] = taken;
  });
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

bool EntrySlice::takes(std::int64_t entry) const {
  return std::all_of(slices_.begin(), slices_.end(),
                     [&](const Slice& s) { return s.takes(indices_.at(s.dim, entry)); });
}

void EntrySlice::write(std::int64_t* entries, std::int64_t* indices) const {
  const auto cut = static_cast<std::int64_t>(starts_.size()) - 1;
  for_fixed_parts(cut, last_ - first_, executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    const std::int64_t from = starts_[static_cast<std::size_t>(part)];
    std::int64_t next = from;
    for (std::int64_t e = first_ + begin; e < first_ + end; ++e) {
      if (takes(e)) {
        entries[next++] = e;
      }
    }
    for (std::int64_t d = 0; d < dims_; ++d) {
      const auto slice = std::find_if(slices_.begin(), slices_.end(), [&](const Slice& s) { return s.dim == d; });
      const std::int64_t start = slice == slices_.end() ? 0 : slice->start;
      const std::int64_t step = slice == slices_.end() ? 1 : slice->step;
      std::int64_t* const row = indices + d * count();
      for (std::int64_t k = from; k < next; ++k) {
        const std::int64_t offset = indices_.at(d, entries[k]) - start;
        row[k] = step == 1 ? offset : offset / step;
      }
    }
  });
}

}  // namespace lacewing::structure
