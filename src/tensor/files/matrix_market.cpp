// Matrix Market files.
#include "common/matrix_market.h"

#include <string>

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

using matrix_market::Field;
using matrix_market::Reader;
using matrix_market::Symmetry;

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

/// Where the elements of an array lie, (2, count): those of symmetric ones in the lower triangle.
at::Tensor places_of(const Reader& file) {
  if (file.count() == 0) {
    return at::empty({2, 0}, at::kLong);
  }
  if (file.header().symmetry == Symmetry::general) {
    return at::stack({at::arange(file.rows()).repeat({file.columns()}),
                      at::arange(file.columns()).view({-1, 1}).expand({file.columns(), file.rows()}).reshape(-1)});
  }
  const std::int64_t first = file.header().symmetry == Symmetry::skew ? 1 : 0;
  return at::triu_indices(file.rows(), file.columns(), first, at::kLong).flip(0);
}

at::ScalarType dtype_of(Field field) {
  return field == Field::integer ? at::kLong : field == Field::complex ? at::kComplexDouble : at::kDouble;
}

std::string field_of(at::ScalarType type) {
  return at::isComplexType(type)    ? "complex"
         : at::isFloatingType(type) ? "real"
         : type == at::kBool        ? "pattern"
                                    : "integer";
}

}  // namespace

at::Tensor read_mtx(const std::string& path) {
  at::Tensor result;
  with_sentence("read_mtx", path, [&] {
    const std::string bytes = text::read_file(path);
    const Reader file(bytes);
    const bool coordinate = file.header().coordinate;
    const auto values = at::empty({file.count()}, dtype_of(file.header().field));
    const auto indices = coordinate ? at::empty({2, file.count()}, at::kLong) : places_of(file);
    std::int64_t* const row = coordinate ? indices.mutable_data_ptr<std::int64_t>() : nullptr;
    file.read(row, coordinate ? row + file.count() : nullptr, values.mutable_data_ptr(), false, torch_executor());
    result = completed(indices, values, file.header().symmetry, {file.rows(), file.columns()});
  });
  return result;
}

void write_mtx(const at::Tensor& sparse, const std::string& path) {
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
  with_sentence(op, path, [&] { text::write_file(path, parts); });
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("read_mtx(str path) -> Tensor", read_mtx);
  m.def("write_mtx(Tensor sparse, str path) -> ()", write_mtx);
}

}  // namespace lacewing
