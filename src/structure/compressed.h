// Compressed rows: where the entries of each row begin, for entries in the order of their rows. Torch-free, linear
// time.
#pragma once

#include <cstdint>

#include <lacewing/executor.h>

namespace lacewing::structure {

/// starts[r] = the first of `count` entries whose row is r or more; starts[rows] = count. `row_of` does not decrease.
void row_starts(const std::int64_t* row_of, std::int64_t count, std::int64_t rows, std::int64_t* starts,
                const CpuExecutor& executor);

/// The inverse: row_of[e] = the row of entry e.
void rows_of_entries(const std::int64_t* starts, std::int64_t rows, std::int64_t* row_of, const CpuExecutor& executor);

/// The first r where starts is not 0, ..., count without decreasing; -1 where there is none.
std::int64_t first_bad_start(const std::int64_t* starts, std::int64_t rows, std::int64_t count);

/// Whether the minor index increases strictly within every row.
bool rows_increase(const std::int64_t* starts, const std::int64_t* minor, std::int64_t rows,
                   const CpuExecutor& executor);

}  // namespace lacewing::structure
