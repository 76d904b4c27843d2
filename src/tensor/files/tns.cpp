// FROSTT files: a line of 1-based indices and a value for each entry.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/tensor_files.h>

#include "structure/index_set.h"
#include "tensor/files/tensor_text.h"

namespace lacewing {
namespace {

using text::LineReader;
using text::Lines;

/// The dims of a file: the numbers on its first entry's line, less the value.
std::int64_t dims_of(std::string_view bytes) {
  Lines lines(bytes);
  auto line = lines.next_entry('#');
  if (!line) {
    throw text::FileError(lines.number(), "the file has no entry, so the number of dims is unknown: give size=");
  }
  std::int64_t numbers = 0;
  for (; !line->at_end(); ++numbers) {
    line->real("a number");
  }
  if (numbers < 2) {
    line->fail("an entry needs an index and a value at least");
  }
  return numbers - 1;
}

/// The largest indices are the size: refuses the line from which on it has more elements than int64 can count.
void check_size(std::string_view bytes, const at::Tensor& indices) {
  const auto dims = static_cast<std::size_t>(indices.size(0));
  const at::Tensor largest = std::get<0>(indices.max(1)).add(1);
  const std::int64_t* const data = largest.const_data_ptr<std::int64_t>();
  std::int64_t product = 0;
  if (structure::checked_product({data, dims}, product)) {
    return;
  }
  Lines lines(bytes);
  std::vector<std::int64_t> sizes(dims, 1);
  while (auto line = lines.next_entry('#')) {
    for (std::int64_t& s : sizes) {
      s = std::max(s, line->integer("an index"));
    }
    if (!structure::checked_product(sizes, product)) {
      line->fail("a tensor of size " + shape_text(at::IntArrayRef(sizes)) + " has more elements than int64 can count");
    }
  }
}

/// The integers that a type holds, as far as int64 does.
std::pair<std::int64_t, std::int64_t> range_of(at::ScalarType type) {
  const auto bits = 8 * static_cast<int>(c10::elementSize(type));
  const std::int64_t largest =
      std::numeric_limits<std::int64_t>::max() >> std::max(0, (c10::isSignedType(type) ? 64 : 63) - bits);
  return {c10::isSignedType(type) ? -largest - 1 : 0, largest};
}

}  // namespace

at::Tensor read_tns(const std::string& path, at::OptionalIntArrayRef size, std::optional<at::ScalarType> dtype) {
  at::Tensor indices, values;
  with_sentence("read_tns", path, [&] {
    const std::string bytes = text::read_file(path);
    const std::int64_t dims = size ? static_cast<std::int64_t>(size->size()) : dims_of(bytes);
    const text::Entries entries(Lines(bytes), '#', torch_executor());
    const std::int64_t count = entries.count();
    indices = at::empty({dims, count}, at::kLong);
    const bool whole = dtype && at::isIntegralType(*dtype, /*includeBool=*/false);
    const auto [least, largest] = range_of(whole ? *dtype : at::kLong);
    values = at::empty({count}, whole ? at::kLong : at::kDouble);
    std::int64_t* const place = indices.mutable_data_ptr<std::int64_t>();
    std::int64_t* const integer = whole ? values.mutable_data_ptr<std::int64_t>() : nullptr;
    double* const real = whole ? nullptr : values.mutable_data_ptr<double>();
    entries.each(
        [&](LineReader& line, std::int64_t e) {
          for (std::int64_t d = 0; d < dims; ++d) {
            const std::int64_t index = line.integer("an index");
            if (index < 1 || (size && index > (*size)[static_cast<std::size_t>(d)])) {
              line.fail("index " + std::to_string(index) + " of dim " + std::to_string(d) +
                        (size ? " is outside of 1 to " + std::to_string((*size)[static_cast<std::size_t>(d)])
                              : " is less than 1"));
            }
            place[d * count + e] = index - 1;
          }
          if (whole) {
            integer[e] = line.whole("the value");
            if (integer[e] < least || integer[e] > largest) {
              line.fail("the value " + std::to_string(integer[e]) + " does not fit into " + c10::toString(*dtype));
            }
          } else {
            real[e] = line.real("the value");
          }
        },
        torch_executor());
    if (!size) {
      check_size(bytes, indices);
    }
  });
  return lacewing::sparse_coo_tensor(indices, dtype ? values.to(*dtype) : values, size);
}

void write_tns(const at::Tensor& sparse, const std::string& path) {
  const char* const op = "write_tns";
  const tensor::Components c = tensor::writable(op, sparse);
  TORCH_CHECK(!at::isComplexType(c.values.scalar_type()) && c.sparse_dim() > 0, "[lacewing.", op,
              "] a FROSTT file holds real numbers at one index at least");
  const auto indices = c.pattern->indices().contiguous();
  const std::int64_t* const place = indices.const_data_ptr<std::int64_t>();
  const std::int64_t nse = c.pattern->nse();
  const tensor::ValueWriter write_value(c.values);
  const auto parts = text::written(
      nse,
      [&](std::string& text, std::int64_t e) {
        for (std::int64_t d = 0; d < c.sparse_dim(); ++d) {
          text::append(text, place[d * nse + e] + 1);
          text += ' ';
        }
        write_value(text, e);
        text += '\n';
      },
      torch_executor());
  with_sentence(op, path, [&] { text::write_file(path, parts); });
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("read_tns(str path, int[]? size, ScalarType? dtype) -> Tensor", read_tns);
  m.def("write_tns(Tensor sparse, str path) -> ()", write_tns);
}

}  // namespace lacewing
