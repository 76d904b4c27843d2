// Matrix Market files as every reader of them takes them. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <lacewing/executor.h>

#include "common/text.h"

namespace lacewing::matrix_market {

enum class Field : std::uint8_t { real, integer, complex, pattern };
enum class Symmetry : std::uint8_t { general, symmetric, skew, hermitian };

/// The first line of a file.
struct Header {
  bool coordinate = true;  ///< else an array, whose elements come column by column
  Field field = Field::real;
  Symmetry symmetry = Symmetry::general;
};

/// Reads a file that is in memory. Whatever is wrong with it is a text::FileError with the number of the line.
class Reader {
 public:
  /// Reads the header and the sizes. `text` outlives the reader.
  explicit Reader(std::string_view text);

  const Header& header() const { return header_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  /// Values in the file: entries, or elements of an array; of a symmetric array those of the lower triangle, without
  /// the diagonal where it must be 0.
  std::int64_t count() const { return count_; }

  /// The entries, on all threads. `row` and `column` (count(), 0-based) are null for an array. `values` has count()
  /// numbers: std::int64_t for integers, two doubles each for complex ones, else double; 1 for a pattern. `finite`: nan
  /// and infinity are errors.
  void read(std::int64_t* row, std::int64_t* column, void* values, bool finite, const CpuExecutor& executor) const;

 private:
  void read_coordinate_sizes(text::LineReader& line);
  void read_array_sizes(text::LineReader& line);

  text::Lines lines_;
  Header header_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace lacewing::matrix_market
