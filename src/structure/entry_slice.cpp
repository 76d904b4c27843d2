#include "structure/entry_slice.h"

#include <algorithm>
#include <bit>

#include "structure/fixed_parts.h"

namespace lacewing::structure {
namespace {

/// A bit for each of the entries first, first + 1, ... (64 at most) whose index along the slice's dim it takes.
template <typename Step>
std::uint64_t taken_by(const IndexMatrix& indices, const Slice& slice, const Step& on_step, std::int64_t first,
                       std::int64_t entries) {
  const std::int64_t* const row = indices.data + slice.dim * indices.dim_stride + first * indices.entry_stride;
  const auto length = static_cast<std::uint64_t>(slice.end - slice.start);
  std::uint64_t taken = 0;
  for (std::int64_t k = 0; k < entries; ++k) {
    const auto offset = static_cast<std::uint64_t>(row[k * indices.entry_stride] - slice.start);
    const bool inside = offset < length;
    taken |= static_cast<std::uint64_t>(inside & on_step(offset)) << k;
  }
  return taken;
}

std::uint64_t taken_by(const IndexMatrix& indices, const Slice& slice, std::int64_t first, std::int64_t entries) {
  const auto step = static_cast<std::uint64_t>(slice.step);
  if (std::has_single_bit(step)) {
    return taken_by(indices, slice, [=](std::uint64_t offset) { return (offset & (step - 1)) == 0; }, first, entries);
  }
  return taken_by(indices, slice, [=](std::uint64_t offset) { return offset % step == 0; }, first, entries);
}

}  // namespace

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
  taken_.resize(static_cast<std::size_t>((last_ - first_ + 63) / 64));
  const std::int64_t cut = parts_for(last_ - first_);
  starts_.assign(static_cast<std::size_t>(cut) + 1, 0);
  for_fixed_parts(cut, words(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    std::int64_t count = 0;
    for (std::int64_t w = begin; w < end; ++w) {
      const std::int64_t entries = std::min<std::int64_t>(64, last_ - first_ - 64 * w);
      std::uint64_t taken = entries == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << entries) - 1;
      for (const Slice& slice : slices_) {
        taken &= taken == 0 ? 0 : taken_by(indices_, slice, first_ + 64 * w, entries);
      }
      taken_[static_cast<std::size_t>(w)] = taken;
      count += std::popcount(taken);
    }
    starts_[static_cast<std::size_t>(part) + 1] = count;
  });
  for (std::size_t p = 1; p < starts_.size(); ++p) {
    starts_[p] += starts_[p - 1];
  }
}

void EntrySlice::write(std::int64_t* entries, std::int64_t* indices) const {
  const auto cut = static_cast<std::int64_t>(starts_.size()) - 1;
  for_fixed_parts(cut, words(), executor_, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    const std::int64_t from = starts_[static_cast<std::size_t>(part)];
    std::int64_t next = from;
    for (std::int64_t w = begin; w < end; ++w) {
      for (std::uint64_t left = taken_[static_cast<std::size_t>(w)]; left != 0; left &= left - 1) {
        entries[next++] = first_ + 64 * w + std::countr_zero(left);
      }
    }
    for (std::int64_t d = 0; d < dims_; ++d) {
      const auto slice = std::find_if(slices_.begin(), slices_.end(), [&](const Slice& s) { return s.dim == d; });
      const std::int64_t start = slice == slices_.end() ? 0 : slice->start;
      const std::int64_t step = slice == slices_.end() ? 1 : slice->step;
      const int shift = std::has_single_bit(static_cast<std::uint64_t>(step))
                            ? std::countr_zero(static_cast<std::uint64_t>(step))
                            : -1;
      std::int64_t* const row = indices + d * count();
      for (std::int64_t k = from; k < next; ++k) {
        const std::int64_t offset = indices_.at(d, entries[k]) - start;
        row[k] = shift >= 0 ? offset >> shift : offset / step;
      }
    }
  });
}

}  // namespace lacewing::structure
