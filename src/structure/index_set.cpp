#include "structure/index_set.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "structure/fixed_parts.h"

namespace lacewing::structure {
namespace {

__extension__ typedef unsigned __int128 Wide;  // not of the standard, so -Wpedantic wants to be told

/// Division of numbers below 2^63 by one divisor, as a multiplication with ceil(2^(63 + l) / d), l = ceil(log2 d): 64
/// bits, and exact (the error of the quotient stays below 1/d).
class Divisor {
 public:
  explicit Divisor(std::int64_t divisor) {
    const auto d = static_cast<Wide>(divisor);
    shift_ = divisor < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(divisor - 1)));
    const Wide numerator = static_cast<Wide>(1) << (63 + shift_);
    factor_ = static_cast<std::uint64_t>((numerator + d - 1) / d);
  }
  std::int64_t quotient(std::int64_t n) const {
    return static_cast<std::int64_t>(
        static_cast<std::uint64_t>((static_cast<Wide>(factor_) * static_cast<std::uint64_t>(n)) >> 63) >> shift_);
  }

 private:
  std::uint64_t factor_;
  int shift_;
};

std::vector<std::int64_t> strides_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t k = sizes.size(); k-- > 1;) {
    strides[k - 1] = strides[k] * sizes[k];
  }
  return strides;
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

void linear_keys(const IndexMatrix& indices, std::span<const std::int64_t> dims, std::span<const std::int64_t> sizes,
                 std::int64_t* keys, const CpuExecutor& executor) {
  const auto strides = strides_of(sizes);
  executor.parallel_for(0, indices.count, kPartEntries, [&](std::int64_t begin, std::int64_t end) {
    // In blocks that stay in the first-level cache between the dims.
    for (std::int64_t block = begin; block < end; block += 1024) {
      const std::int64_t block_end = std::min(block + 1024, end);
      std::fill(keys + block, keys + block_end, 0);
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        const std::int64_t stride = strides[k];
        for (std::int64_t e = block; e < block_end; ++e) {
          keys[e] += stride * indices.at(dims[k], e);
        }
      }
    }
  });
}

void unravel_keys(const std::int64_t* keys, std::int64_t count, std::span<const std::int64_t> sizes, std::int64_t* out,
                  const CpuExecutor& executor) {
  if (sizes.empty()) {
    return;
  }
  std::vector<Divisor> divisors;
  for (const std::int64_t size : sizes) {
    divisors.emplace_back(std::max<std::int64_t>(size, 1));
  }
  executor.parallel_for(0, count, kPartEntries, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      std::int64_t rest = keys[e];
      for (std::size_t k = sizes.size(); k-- > 1;) {
        const std::int64_t quotient = divisors[k].quotient(rest);
        out[static_cast<std::int64_t>(k) * count + e] = rest - quotient * sizes[k];
        rest = quotient;
      }
      out[e] = rest;
    }
  });
}

}  // namespace lacewing::structure
