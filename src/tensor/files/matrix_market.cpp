// Matrix Market files.
#include <algorithm>
#include <cctype>
#include <sstream>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/triu_indices.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/tensor_files.h>

#include "tensor/files/tensor_text.h"

namespace lacewing {
namespace {

using text::LineReader;
using text::Lines;

enum class Field { real, integer, complex, pattern };
enum class Symmetry { general, symmetric, skew, hermitian };

struct Header {
  bool coordinate = true;
  Field field = Field::real;
  Symmetry symmetry = Symmetry::general;

  at::ScalarType dtype() const {
    return field == Field::integer ? at::kLong : field == Field::complex ? at::kComplexDouble : at::kDouble;
  }
};

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
class ValueReader {
 public:
  ValueReader(Field field, const at::Tensor& values)
      : field_(field), data_(values.numel() == 0 ? nullptr : values.mutable_data_ptr()) {}

  void operator()(LineReader& line, std::int64_t e) const {
    switch (field_) {
      case Field::real: static_cast<double*>(data_)[e] = line.real("the value"); break;
      case Field::integer: static_cast<std::int64_t*>(data_)[e] = line.integer("the value"); break;
      case Field::complex:
        static_cast<double*>(data_)[2 * e] = line.real("the real part");
        static_cast<double*>(data_)[2 * e + 1] = line.real("the imaginary part");
        break;
      case Field::pattern: static_cast<double*>(data_)[e] = 1; break;
    }
  }

 private:
  Field field_;
  void* data_;
};

void check_count(std::int64_t announced, const text::Entries& entries) {
  if (entries.count() != announced) {
    throw text::FileError(entries.lines(), "the file ends with " + std::to_string(entries.count()) + " of the " +
                                               std::to_string(announced) + " entries that it announces");
  }
}

/// The other triangle's entries behind those of the file.
at::Tensor completed(const at::Tensor& indices, const at::Tensor& values, Symmetry symmetry, at::IntArrayRef size) {
  if (symmetry == Symmetry::general) {
    return lacewing::sparse_coo_tensor(indices, values, size);
  }
  const auto off = at::nonzero(indices[0] != indices[1]).squeeze(1);
  const auto mirrored = values.index_select(0, off);
  return lacewing::sparse_coo_tensor(at::cat({indices, indices.index_select(1, off).flip(0)}, 1),
                                     at::cat({values, symmetry == Symmetry::skew        ? -mirrored
                                                      : symmetry == Symmetry::hermitian ? mirrored.conj().resolve_conj()
                                                                                        : mirrored}),
                                     size);
}

at::Tensor read_coordinates(const Header& header, Lines& lines, LineReader& size) {
  const std::int64_t rows = size.integer("the number of rows");
  const std::int64_t columns = size.integer("the number of columns");
  const std::int64_t count = size.integer("the number of entries");
  size.finish();
  if (rows < 0 || columns < 0 || count < 0) {
    size.fail("sizes must not be negative");
  }
  if (header.symmetry != Symmetry::general && rows != columns) {
    size.fail("a symmetric matrix must be square");
  }
  tensor::check_announced(count,
                          header.field == Field::pattern   ? 4
                          : header.field == Field::complex ? 8
                                                           : 6,
                          size, lines);
  const text::Entries entries(lines, '%', torch_executor());
  check_count(count, entries);
  const auto indices = at::empty({2, count}, at::kLong);
  const auto values = at::empty({count}, header.dtype());
  std::int64_t* const place = indices.mutable_data_ptr<std::int64_t>();
  const ValueReader read_value(header.field, values);
  entries.each(
      [&](LineReader& line, std::int64_t e) {
        const std::int64_t row = line.integer("the row");
        const std::int64_t column = line.integer("the column");
        if (row < 1 || row > rows || column < 1 || column > columns) {
          line.fail("entry (" + std::to_string(row) + ", " + std::to_string(column) + ") is outside of a matrix of " +
                    std::to_string(rows) + " x " + std::to_string(columns));
        }
        place[e] = row - 1;
        place[count + e] = column - 1;
        read_value(line, e);
      },
      torch_executor());
  return completed(indices, values, header.symmetry, {rows, columns});
}

/// Elements column by column; of symmetric ones the lower triangle, without the diagonal where it must be 0.
at::Tensor read_array(const Header& header, Lines& lines, LineReader& size) {
  const std::int64_t rows = size.integer("the number of rows");
  const std::int64_t columns = size.integer("the number of columns");
  size.finish();
  const bool general = header.symmetry == Symmetry::general;
  if (rows < 0 || columns < 0 || (!general && rows != columns)) {
    size.fail("sizes must not be negative, and those of a symmetric matrix equal");
  }
  const auto bytes = static_cast<std::int64_t>(lines.rest().size());
  if (columns > 0 && rows > 2 * bytes / columns + 2) {
    size.fail("it announces more elements than the " + std::to_string(bytes) + " bytes that follow can hold");
  }
  const std::int64_t first = header.symmetry == Symmetry::skew ? 1 : 0;
  const auto places = general ? at::stack({at::arange(columns).view({-1, 1}).expand({columns, rows}).reshape(-1),
                                           at::arange(rows).repeat({columns})})
                              : at::triu_indices(rows, columns, first, at::kLong);
  const text::Entries entries(lines, '%', torch_executor());
  check_count(places.size(1), entries);
  const auto values = at::empty({places.size(1)}, header.dtype());
  entries.each(ValueReader(header.field, values), torch_executor());
  return completed(places.flip(0), values, header.symmetry, {rows, columns});
}

std::string field_of(at::ScalarType type) {
  return at::isComplexType(type)    ? "complex"
         : at::isFloatingType(type) ? "real"
         : type == at::kBool        ? "pattern"
                                    : "integer";
}

}  // namespace

at::Tensor read_matrix_market(const std::string& path) {
  at::Tensor result;
  tensor::with_sentence("read_mtx", path, [&] {
    const std::string bytes = text::read_file(path);
    Lines lines(bytes);
    const Header header = read_header(lines);
    auto size = lines.next_entry('%');
    if (!size) {
      throw text::FileError(lines.number(), "the file ends before its sizes");
    }
    result = header.coordinate ? read_coordinates(header, lines, *size) : read_array(header, lines, *size);
  });
  return result;
}

void write_matrix_market(const at::Tensor& sparse, const std::string& path) {
  const char* const op = "write_mtx";
  const tensor::Components c = tensor::writable(op, sparse);
  TORCH_CHECK(c.sparse_dim() == 2, "[lacewing.", op, "] a Matrix Market file holds a matrix, not a tensor of shape ",
              shape_text(sparse.sizes()));
  const std::string field = field_of(c.values.scalar_type());
  const bool pattern = field == "pattern";
  TORCH_CHECK(!pattern || c.values.all().item<bool>(), "[lacewing.", op,
              "] booleans are written as a pattern, which has no place for a stored false: use prune()");
  const auto indices = c.pattern->indices().contiguous();
  const std::int64_t* const place = indices.const_data_ptr<std::int64_t>();
  const std::int64_t nse = c.pattern->nse();
  const tensor::ValueWriter write_value(c.values);
  auto parts = text::written(
      nse,
      [&](std::string& text, std::int64_t e) {
        text::append(text, place[e] + 1);
        text += ' ';
        text::append(text, place[nse + e] + 1);
        if (!pattern) {
          text += ' ';
          write_value(text, e);
        }
        text += '\n';
      },
      torch_executor());
  parts.insert(parts.begin(), "%%MatrixMarket matrix coordinate " + field + " general\n" +
                                  std::to_string(sparse.size(0)) + ' ' + std::to_string(sparse.size(1)) + ' ' +
                                  std::to_string(nse) + '\n');
  tensor::with_sentence(op, path, [&] { text::write_file(path, parts); });
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("read_matrix_market(str path) -> Tensor", read_matrix_market);
  m.def("write_matrix_market(Tensor sparse, str path) -> ()", write_matrix_market);
}

}  // namespace lacewing
