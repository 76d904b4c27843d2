// To and from torch's own sparse tensors: COO, CSR and CSC share memory, blocks are converted.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sparse_compressed_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "index/keys.h"
#include "tensor/construct.h"

namespace lacewing {

using tensor::Components;
using tensor::Dims;
using tensor::Pattern;

namespace {

bool is_blocked(at::Layout layout) { return layout == at::kSparseBsr || layout == at::kSparseBsc; }
bool is_by_column(at::Layout layout) { return layout == at::kSparseCsc || layout == at::kSparseBsc; }

Fill zero_beside(const char* op, const at::Tensor& values) { return tensor::checked_fill(op, {}, values); }

at::Tensor from_coo(const at::Tensor& given) {
  // torch looks at neither the range nor the order of indices.
  const Dims sizes = given.sizes().slice(0, static_cast<std::size_t>(given.sparse_dim())).vec();
  auto scan = tensor::checked_range("from_torch", given._indices(), sizes, given.sizes().vec());
  const bool sums = given.requires_grad() && !given.is_coalesced();
  const at::Tensor t = sums ? given.coalesce() : given;
  const bool coalesced = t.is_coalesced();
  const at::Tensor values = coalesced ? t.values() : t._values();
  const at::Tensor indices = coalesced ? t.indices() : t._indices();
  const auto pattern =
      sums ? Pattern::make(indices, sizes, coalesced) : Pattern::make_scanned(indices, sizes, std::move(scan));
  return tensor::make_tensor({pattern, values, zero_beside("from_torch", values)});
}

/// The arrays of a compressed tensor of torch, where its batches lie one behind the other.
struct Compressed {
  at::Tensor starts, minor, values;
  std::int64_t batch_dims;

  explicit Compressed(const at::Tensor& t) {
    const bool by_column = is_by_column(t.layout());
    starts = by_column ? t.ccol_indices() : t.crow_indices();
    minor = by_column ? t.row_indices() : t.col_indices();
    values = t.values();
    batch_dims = starts.dim() - 1;
    if (batch_dims == 0) {
      return;
    }
    const std::int64_t rows = starts.size(-1) - 1;
    const std::int64_t nse = minor.size(-1);
    const std::int64_t batches = tensor::product_of(starts.sizes().slice(0, static_cast<std::size_t>(batch_dims)));
    const auto longs = starts.reshape({batches, rows + 1}).to(at::kLong);
    const auto offset = at::arange(batches, longs.options()).unsqueeze(1) * nse;
    starts = at::cat({(longs.narrow(1, 0, rows) + offset).reshape(-1), at::full({1}, batches * nse, longs.options())});
    minor = minor.reshape(-1);
    values = values.flatten(0, batch_dims);
  }
  /// The batch and row of each entry, as one index.
  at::Tensor row_of() const {
    const auto longs = starts.to(at::kLong);
    return at::repeat_interleave(at::arange(longs.numel() - 1, longs.options()), longs.diff(), 0, minor.numel());
  }
};

at::Tensor from_compressed(const at::Tensor& t) {
  const Compressed c(t);
  const bool by_column = is_by_column(t.layout());
  Dims major = tensor::all_dims(c.batch_dims);
  major.push_back(c.batch_dims + (by_column ? 1 : 0));
  const Dims minor{c.batch_dims + (by_column ? 0 : 1)};
  return sparse_gcs_tensor(c.starts, c.minor, c.values, t.sizes(), by_column ? minor : major, by_column ? major : minor,
                           by_column);
}

/// torch looks at the index arrays of blocks only where it is asked to: they say where memory is read.
void check_blocks(const Compressed& c, std::int64_t rows, std::int64_t columns) {
  const char* const op = "from_torch";
  TORCH_CHECK(c.starts.numel() == rows + 1 && c.minor.numel() == c.values.size(0), "[lacewing.", op,
              "] compressed_indices must have shape (", rows + 1, ",) and plain_indices (", c.values.size(0),
              ",), not ", shape_text(c.starts.sizes()), " and ", shape_text(c.minor.sizes()));
  tensor::check_starts(op, c.starts, c.minor.numel());
  const std::int64_t bad = index::scan_entries(c.minor.to(at::kLong).unsqueeze(0), {columns}).first_outside;
  TORCH_CHECK(bad >= c.minor.numel(), "[lacewing.", op, "] plain_indices[", bad,
              "] = ", bad < c.minor.numel() ? c.minor.select(0, bad).item<std::int64_t>() : 0,
              " is out of range: there are ", columns, " blocks in a row");
}

/// Blocks of elements, each of which becomes an entry.
at::Tensor from_blocked(const at::Tensor& t) {
  const Compressed c(t);
  const bool by_column = is_by_column(t.layout());
  const std::int64_t height = c.values.size(1);
  const std::int64_t width = c.values.size(2);
  const std::int64_t total_height = t.size(c.batch_dims);
  const std::int64_t total_width = t.size(c.batch_dims + 1);
  TORCH_CHECK(height > 0 && width > 0 && total_height % height == 0 && total_width % width == 0,
              "[lacewing.from_torch] blocks of shape (", height, ", ", width, ") do not make up a matrix of shape ",
              shape_text(t.sizes()));
  Dims major_sizes = t.sizes().slice(0, static_cast<std::size_t>(c.batch_dims)).vec();
  major_sizes.push_back(by_column ? total_width / width : total_height / height);
  check_blocks(c, tensor::product_of(major_sizes), by_column ? total_height / height : total_width / width);
  const at::Tensor major = index::unravel_keys(c.row_of(), major_sizes);
  const at::Tensor along = major.select(0, -1);
  const at::Tensor across = c.minor.to(at::kLong);
  const auto elements = [&](const at::Tensor& block, std::int64_t size, std::int64_t dim) {
    const auto inside = at::arange(size, block.options()).unsqueeze(1 - dim);
    return (block.view({-1, 1, 1}) * size + inside).expand({block.numel(), height, width}).reshape(-1);
  };
  std::vector<at::Tensor> rows;
  for (std::int64_t d = 0; d < c.batch_dims; ++d) {
    rows.push_back(major.select(0, d).repeat_interleave(height * width));
  }
  rows.push_back(elements(by_column ? across : along, height, 0));
  rows.push_back(elements(by_column ? along : across, width, 1));
  const at::Tensor values = c.values.flatten(0, 2);
  const Dims sizes = t.sizes().slice(0, static_cast<std::size_t>(c.batch_dims) + 2).vec();
  const at::Tensor coo =
      tensor::make_tensor({Pattern::make(at::stack(rows), sizes), values, zero_beside("from_torch", values)});
  Dims row_dims = tensor::all_dims(c.batch_dims + 1);
  Dims col_dims{c.batch_dims + 1};
  if (by_column) {
    row_dims = {c.batch_dims};
    col_dims = tensor::all_dims(c.batch_dims);
    col_dims.push_back(c.batch_dims + 1);
  }
  return to_gcs(coo, row_dims, col_dims, by_column);
}

at::Tensor to_compressed(const at::Tensor& sparse, at::Layout layout) {
  const at::Tensor gcs = coalesce(to_gcs(sparse, at::IntArrayRef({0}), at::IntArrayRef({1}), is_by_column(layout)));
  at::Tensor starts = compressed_indices(gcs);
  at::Tensor minor = plain_indices(gcs);
  tensor::check_starts("to_torch", starts, minor.numel());
  if (starts.scalar_type() != minor.scalar_type()) {
    starts = starts.to(at::kLong);
    minor = minor.to(at::kLong);
  }
  return at::sparse_compressed_tensor(starts, minor, values(gcs), sparse.sizes(),
                                      values(gcs).options().requires_grad(false).layout(layout));
}

/// Entries scattered into the blocks that hold some.
at::Tensor to_blocked(const at::Tensor& sparse, at::Layout layout, std::int64_t height, std::int64_t width) {
  const Components c = tensor::coalesced(tensor::components(sparse));
  const bool by_column = is_by_column(layout);
  const auto row = c.pattern->indices().select(0, 0);
  const auto column = c.pattern->indices().select(0, 1);
  const Dims sizes{c.pattern->sizes()[0] / height, c.pattern->sizes()[1] / width};
  const auto blocks = Pattern::make(at::stack({row.div(height, "floor"), column.div(width, "floor")}), sizes);
  const tensor::Layout split{{0}, {1}, by_column};
  const tensor::Grouping& grouping = blocks->grouping(split.order());
  const at::Tensor group = grouping.pattern ? grouping.group().to(at::kLong) : at::arange(blocks->nse(), row.options());
  const auto chosen = grouping.pattern ? (by_column ? grouping.pattern->permuted({1, 0}) : grouping.pattern) : blocks;
  const auto held = chosen->with_layout(split);
  Dims shape{held->nse() * height * width};
  shape.insert(shape.end(), c.dense_shape().begin(), c.dense_shape().end());
  const auto place = (group * height + row.remainder(height)) * width + column.remainder(width);
  const auto values = at::zeros(shape, c.values.options().requires_grad(false)).index_copy(0, place, c.values);
  return at::sparse_compressed_tensor(held->starts(), held->minor(), values.unflatten(0, {held->nse(), height, width}),
                                      sparse.sizes(), values.options().requires_grad(false).layout(layout));
}

}  // namespace

at::Tensor from_torch(const at::Tensor& sparse) {
  const char* const op = "from_torch";
  TORCH_CHECK(!tensor::is_sparse(sparse) && sparse.layout() != at::kStrided, "[lacewing.", op,
              "] the tensor must be one of torch's sparse tensors, not ",
              tensor::is_sparse(sparse) ? "one of this library" : "a strided one: use to_sparse(...)");
  if (sparse.layout() == at::kSparse) {
    return from_coo(sparse);
  }
  return is_blocked(sparse.layout()) ? from_blocked(sparse) : from_compressed(sparse);
}

at::Tensor to_torch(const at::Tensor& sparse, at::Layout layout, at::OptionalIntArrayRef blocksize) {
  const char* const op = "to_torch";
  const Components& c = tensor::checked(op, sparse);
  TORCH_CHECK(tensor::zero_fill(c), "[lacewing.", op,
              "] torch's sparse tensors have the fill 0 and no other: use with_fill(0) or additive()");
  if (layout == at::kSparse) {
    const bool coalesced = c.pattern->known_coalesced();
    return at::sparse_coo_tensor(c.pattern->indices(), c.values, sparse.sizes(),
                                 c.values.options().requires_grad(false).layout(at::kSparse), coalesced);
  }
  TORCH_CHECK(layout == at::kSparseCsr || layout == at::kSparseCsc || is_blocked(layout), "[lacewing.", op,
              "] there is no sparse layout ", layout);
  TORCH_CHECK(c.sparse_dim() == 2, "[lacewing.", op, "] ", layout, " holds matrices, but a tensor of shape ",
              shape_text(sparse.sizes()), " has ", c.sparse_dim(), " sparse dims: reshape it, or use torch.sparse_coo");
  if (!is_blocked(layout)) {
    return to_compressed(sparse, layout);
  }
  TORCH_CHECK(blocksize && blocksize->size() == 2 && (*blocksize)[0] > 0 && (*blocksize)[1] > 0 &&
                  sparse.size(0) % (*blocksize)[0] == 0 && sparse.size(1) % (*blocksize)[1] == 0,
              "[lacewing.", op, "] ", layout, " needs a blocksize of two numbers that divide the shape ",
              shape_text(sparse.sizes()), ", not ", blocksize ? shape_text(*blocksize) : "none");
  return to_blocked(sparse, layout, (*blocksize)[0], (*blocksize)[1]);
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("tensor_from_torch(Tensor sparse) -> Tensor", from_torch);
  m.def("tensor_to_torch(Tensor sparse, Layout layout, int[]? blocksize) -> Tensor", to_torch);
}

}  // namespace lacewing
