#include "common/matrix_market.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <utility>

namespace lacewing::matrix_market {
namespace {

using text::LineReader;
using text::Lines;

template <typename Choice>
Choice chosen(const std::string& word, std::initializer_list<std::pair<const char*, Choice>> choices) {
  std::string names;
  for (const auto& [name, choice] : choices) {
    if (word == name) {
      return choice;
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw text::FileError(1, "\"" + word + "\" is none of " + names);
}

Header read_header(Lines& lines) {
  const auto line = lines.next();
  std::istringstream words(line ? std::string(*line) : "");
  std::string banner, object, format, field, symmetry;
  words >> banner >> object >> format >> field >> symmetry;
  for (std::string* const word : {&banner, &object, &format, &field, &symmetry}) {
    std::transform(word->begin(), word->end(), word->begin(), [](unsigned char c) { return std::tolower(c); });
  }
  if (banner != "%%matrixmarket") {
    throw text::FileError(1, "it does not begin with %%MatrixMarket");
  }
  Header header;
  chosen<int>(object, {{"matrix", 0}});
  header.coordinate = chosen<bool>(format, {{"coordinate", true}, {"array", false}});
  header.field = chosen<Field>(field, {{"real", Field::real},
                                       {"double", Field::real},
                                       {"integer", Field::integer},
                                       {"complex", Field::complex},
                                       {"pattern", Field::pattern}});
  header.symmetry = chosen<Symmetry>(symmetry, {{"general", Symmetry::general},
                                                {"symmetric", Symmetry::symmetric},
                                                {"skew-symmetric", Symmetry::skew},
                                                {"hermitian", Symmetry::hermitian}});
  if (!header.coordinate && header.field == Field::pattern) {
    throw text::FileError(1, "an array has no pattern");
  }
  return header;
}

/// Writes the numbers of one line to element e of the values.
void read_value(Field field, bool finite, LineReader& line, void* values, std::int64_t e) {
  const auto real = [&](const char* what) {
    const double value = line.real(what);
    if (finite && !std::isfinite(value)) {
      line.fail(std::string(what) + " is not finite");
    }
    return value;
  };
  switch (field) {
    case Field::real: static_cast<double*>(values)[e] = real("the value"); break;
    case Field::integer: static_cast<std::int64_t*>(values)[e] = line.integer("the value"); break;
    case Field::complex:
      static_cast<double*>(values)[2 * e] = real("the real part");
      static_cast<double*>(values)[2 * e + 1] = real("the imaginary part");
      break;
    case Field::pattern: static_cast<double*>(values)[e] = 1; break;
  }
}

/// What symmetry says of an entry on the diagonal, which has been read.
void check_diagonal(const Header& header, const LineReader& line, std::int64_t place, const void* values,
                    std::int64_t e) {
  const std::string entry = "entry (" + std::to_string(place) + ", " + std::to_string(place) + ")";
  if (header.symmetry == Symmetry::skew) {
    line.fail(entry + " is on the diagonal, which a skew-symmetric matrix has not");
  }
  if (header.symmetry == Symmetry::hermitian && header.field == Field::complex &&
      static_cast<const double*>(values)[2 * e + 1] != 0) {
    line.fail(entry + " is on the diagonal of a hermitian matrix, but it is not real");
  }
}

}  // namespace

Reader::Reader(std::string_view text) : lines_(text), header_(read_header(lines_)) {
  auto sizes = lines_.next_entry('%');
  if (!sizes) {
    throw text::FileError(lines_.number(), "the file ends before its sizes");
  }
  rows_ = sizes->integer("the number of rows");
  columns_ = sizes->integer("the number of columns");
  if (header_.coordinate) {
    read_coordinate_sizes(*sizes);
  } else {
    read_array_sizes(*sizes);
  }
}

void Reader::read_coordinate_sizes(LineReader& line) {
  count_ = line.integer("the number of entries");
  line.finish();
  if (rows_ < 0 || columns_ < 0 || count_ < 0) {
    line.fail("sizes must not be negative");
  }
  if (header_.symmetry != Symmetry::general && rows_ != columns_) {
    line.fail("a symmetric matrix must be square");
  }
  if (columns_ > 0 && rows_ > std::numeric_limits<std::int64_t>::max() / columns_) {
    line.fail("a matrix of " + std::to_string(rows_) + " x " + std::to_string(columns_) +
              " has more elements than int64 can count");
  }
  // An entry's two indices: one that lacks its value has an error of its own, with its line.
  text::check_announced(count_, /*bytes_of_one=*/4, line, lines_);
}

void Reader::read_array_sizes(LineReader& line) {
  line.finish();
  const bool general = header_.symmetry == Symmetry::general;
  if (rows_ < 0 || columns_ < 0 || (!general && rows_ != columns_)) {
    line.fail("sizes must not be negative, and those of a symmetric matrix equal");
  }
  const auto bytes = static_cast<std::int64_t>(lines_.rest().size());
  if (columns_ > 0 && rows_ > 2 * bytes / columns_ + 2) {
    line.fail("it announces more elements than the " + std::to_string(bytes) + " bytes that follow can hold");
  }
  const std::int64_t diagonal = header_.symmetry == Symmetry::skew ? -1 : 1;
  count_ = general ? rows_ * columns_ : rows_ * (rows_ + diagonal) / 2;
}

void Reader::read(std::int64_t* row, std::int64_t* column, void* values, bool finite,
                  const CpuExecutor& executor) const {
  const text::Entries entries(lines_, '%', executor);
  if (entries.count() > count_) {
    throw text::FileError(entries.lines(), "the file holds " + std::to_string(entries.count()) +
                                               " entries, but it announces " + std::to_string(count_));
  }
  if (entries.count() < count_) {
    throw text::FileError(entries.lines(), "the file ends with " + std::to_string(entries.count()) + " of the " +
                                               std::to_string(count_) + " entries that it announces");
  }
  entries.each(
      [&](LineReader& line, std::int64_t e) {
        if (header_.coordinate) {
          const std::int64_t i = line.integer("the row");
          const std::int64_t j = line.integer("the column");
          if (i < 1 || i > rows_ || j < 1 || j > columns_) {
            line.fail("entry (" + std::to_string(i) + ", " + std::to_string(j) + ") is outside of a matrix of " +
                      std::to_string(rows_) + " x " + std::to_string(columns_));
          }
          row[e] = i - 1;
          column[e] = j - 1;
        }
        read_value(header_.field, finite, line, values, e);
        if (header_.coordinate && row[e] == column[e]) {
          check_diagonal(header_, line, row[e] + 1, values, e);
        }
      },
      executor);
}

}  // namespace lacewing::matrix_market
