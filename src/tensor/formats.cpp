// Formats: COO, GCRS and GCCS are different orders and index arrays of the same entries.
#include <algorithm>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "index/keys.h"
#include "tensor/align.h"
#include "tensor/call.h"
#include "tensor/construct.h"
#include "tensor/densify.h"

namespace lacewing {

using tensor::checked;
using tensor::Components;
using tensor::Dims;
using tensor::Layout;
using tensor::Pattern;

namespace {

std::string dims_text(const Dims& dims) { return shape_text(at::IntArrayRef(dims)); }

/// A split of the sparse dims: what is not given is the rest, ascending; without both, the rows are the first dim.
Layout split_of(const char* op, std::int64_t sparse_dims, at::OptionalIntArrayRef row_dims,
                at::OptionalIntArrayRef col_dims, bool by_column) {
  Layout layout;
  layout.by_column = by_column;
  layout.rows = row_dims ? row_dims->vec() : col_dims ? Dims{} : Dims{0};
  layout.columns = col_dims ? col_dims->vec() : Dims{};
  std::vector<bool> seen(static_cast<std::size_t>(sparse_dims), false);
  for (const Dims* const dims : {&layout.rows, &layout.columns}) {
    for (const std::int64_t d : *dims) {
      TORCH_CHECK(d >= 0 && d < sparse_dims, "[lacewing.", op, "] dim ", d, " of row_dims ", dims_text(layout.rows),
                  " and col_dims ", dims_text(layout.columns), " is not one of the ", sparse_dims, " sparse dims");
      TORCH_CHECK(!seen[static_cast<std::size_t>(d)], "[lacewing.", op, "] dim ", d, " is named twice in row_dims ",
                  dims_text(layout.rows), " and col_dims ", dims_text(layout.columns));
      seen[static_cast<std::size_t>(d)] = true;
    }
  }
  Dims& rest = row_dims || !col_dims ? layout.columns : layout.rows;
  if (!row_dims || !col_dims) {
    for (std::int64_t d = 0; d < sparse_dims; ++d) {
      if (!seen[static_cast<std::size_t>(d)]) {
        rest.push_back(d);
      }
    }
  }
  TORCH_CHECK(!layout.rows.empty() && !layout.columns.empty() &&
                  static_cast<std::int64_t>(layout.rows.size() + layout.columns.size()) == sparse_dims,
              "[lacewing.", op, "] row_dims ", dims_text(layout.rows), " and col_dims ", dims_text(layout.columns),
              " must be a split of the ", sparse_dims, " sparse dims, with one in each at least");
  return layout;
}

const Pattern& compressed_pattern(const char* op, const at::Tensor& sparse) {
  const Pattern& pattern = *checked(op, sparse).pattern;
  TORCH_CHECK(pattern.layout() != nullptr, "[lacewing.", op, "] the tensor is in COO: use to_gcs(...) first");
  return pattern;
}

void check_index_array(const char* op, const char* name, const at::Tensor& array, std::int64_t count,
                       const at::Tensor& values) {
  TORCH_CHECK(array.scalar_type() == at::kLong || array.scalar_type() == at::kInt, "[lacewing.", op, "] ", name,
              " must be int32 or int64, not ", array.scalar_type());
  TORCH_CHECK(array.dim() == 1 && array.size(0) == count, "[lacewing.", op, "] ", name, " must have shape (", count,
              ",), not ", shape_text(array.sizes()));
  TORCH_CHECK(array.device() == values.device(), "[lacewing.", op, "] ", name, " are on ", array.device(),
              ", but values are on ", values.device());
}

}  // namespace

Format format(const at::Tensor& sparse) {
  const Layout* const layout = checked("format", sparse).pattern->layout();
  return layout == nullptr ? Format::coo : layout->by_column ? Format::gccs : Format::gcrs;
}

std::vector<std::int64_t> row_dims(const at::Tensor& sparse) {
  const Layout* const layout = checked("row_dims", sparse).pattern->layout();
  return layout == nullptr ? Dims{} : layout->rows;
}

std::vector<std::int64_t> col_dims(const at::Tensor& sparse) {
  const Layout* const layout = checked("col_dims", sparse).pattern->layout();
  return layout == nullptr ? Dims{} : layout->columns;
}

at::Tensor compressed_indices(const at::Tensor& sparse) {
  return compressed_pattern("compressed_indices", sparse).starts();
}

at::Tensor plain_indices(const at::Tensor& sparse) { return compressed_pattern("plain_indices", sparse).minor(); }

at::Tensor to_gcs(const at::Tensor& sparse, at::OptionalIntArrayRef row_dims, at::OptionalIntArrayRef col_dims,
                  bool by_column) {
  const char* const op = "to_gcs";
  const Components& c = checked(op, sparse);
  if (c.sparse_dim() < 2) {
    return sparse;
  }
  const Layout layout = split_of(op, c.sparse_dim(), row_dims, col_dims, by_column);
  const bool same = c.pattern->layout() != nullptr && *c.pattern->layout() == layout;
  return same ? sparse : tensor::make_tensor(tensor::arranged(c, layout));
}

at::Tensor to_coo(const at::Tensor& sparse) {
  const Components& c = checked("to_coo", sparse);
  return c.pattern->layout() == nullptr ? sparse : tensor::make_tensor(tensor::in_layout(c, nullptr));
}

at::Tensor sparse_gcs_tensor(const at::Tensor& compressed_indices, const at::Tensor& plain_indices,
                             const at::Tensor& values, at::IntArrayRef size, at::OptionalIntArrayRef row_dims,
                             at::OptionalIntArrayRef col_dims, bool by_column, const Fill& fill) {
  const char* const op = "sparse_gcs_tensor";
  TORCH_CHECK(!tensor::is_sparse(compressed_indices) && !tensor::is_sparse(plain_indices) && !tensor::is_sparse(values),
              "[lacewing.", op, "] index arrays and values must be strided tensors");
  TORCH_CHECK(values.dim() >= 1, "[lacewing.", op, "] values must have shape (nse, *dense shape), not ",
              shape_text(values.sizes()));
  tensor::refuse_transforms("values", values);
  const Dims shape = size.vec();
  const auto dense_shape = values.sizes().slice(1);
  const auto sparse_dims = static_cast<std::int64_t>(shape.size()) - (values.dim() - 1);
  TORCH_CHECK(sparse_dims >= 2 && at::IntArrayRef(shape).slice(static_cast<std::size_t>(sparse_dims)) == dense_shape &&
                  std::all_of(shape.begin(), shape.end(), [](std::int64_t s) { return s >= 0; }),
              "[lacewing.", op, "] size ", dims_text(shape), " must have two sparse dims at least and end with the ",
              "dense shape of values, ", shape_text(dense_shape));
  const Dims sizes(shape.begin(), shape.begin() + sparse_dims);
  tensor::check_numel(op, shape);
  Layout layout = split_of(op, sparse_dims, row_dims, col_dims, by_column);
  const std::int64_t major = tensor::product_of(tensor::sizes_at(sizes, layout.major()));
  const std::int64_t minor = tensor::product_of(tensor::sizes_at(sizes, layout.minor()));
  const std::int64_t nse = values.size(0);
  check_index_array(op, "plain_indices", plain_indices, nse, values);
  check_index_array(op, "compressed_indices", compressed_indices, major + 1, values);
  tensor::check_starts(op, compressed_indices, nse);
  const std::int64_t bad = index::scan_entries(plain_indices.to(at::kLong).unsqueeze(0), {minor}).first_outside;
  TORCH_CHECK(bad >= nse, "[lacewing.", op, "] plain_indices[", bad,
              "] = ", bad < nse ? plain_indices.select(0, bad).item<std::int64_t>() : 0, " is out of range: there are ",
              minor, by_column ? " rows" : " columns");
  Fill whole = tensor::checked_fill(op, fill, values);
  return tensor::make_tensor(
      {Pattern::compressed(std::move(layout), compressed_indices, plain_indices, sizes), values, std::move(whole)});
}

namespace tensor {

Components without_duplicates(const Components& c) { return c.pattern->known_distinct() ? c : coalesced(c); }

Components arranged(const Components& c, const Layout& layout) {
  at::Tensor from;
  if (const PatternPtr pattern = c.pattern->recompressed(layout, from)) {
    return {pattern, from.defined() ? take_rows(c.values, from) : c.values, c.fill};
  }
  const Dims order = layout.order();
  const Grouping& grouping = c.pattern->grouping(order);
  if (grouping.distinct() && !grouping.order.defined()) {
    return {c.pattern->with_layout(layout, /*distinct=*/true), c.values, c.fill};
  }
  // The group's dims are those of the order: back to their places.
  Dims places(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    places[at(order[k])] = static_cast<std::int64_t>(k);
  }
  const PatternPtr sorted = grouping.pattern->permuted(places);
  return {sorted->with_layout(layout, /*distinct=*/true), sum_groups(c.values, grouping), c.fill};
}

Components in_layout(const Components& c, const Layout* layout) {
  const Layout* const own = c.pattern->layout();
  if (layout == nullptr) {
    return own == nullptr ? c : Components{c.pattern->with_layout(std::nullopt), c.values, c.fill};
  }
  return own != nullptr && *own == *layout ? c : arranged(c, *layout);
}

namespace {

/// The layout of a tensor with so many sparse dims that an op makes of one with that layout.
Layout fitted(const Layout& layout, std::int64_t sparse_dims) {
  if (static_cast<std::int64_t>(layout.rows.size() + layout.columns.size()) == sparse_dims) {
    return layout;
  }
  Dims rest = all_dims(sparse_dims);
  rest.erase(rest.begin());
  return {{0}, std::move(rest), layout.by_column};
}

at::Tensor in_format_of(const Layout& layout, const at::Tensor& result) {
  if (!is_sparse(result)) {
    return result;
  }
  const Components& c = components(result);
  if (c.pattern->layout() != nullptr || c.sparse_dim() < 2) {
    return result;
  }
  return make_tensor(arranged(c, fitted(layout, c.sparse_dim())));
}

/// Ops whose business is the format of their result: conversions, and this library's own but for its slice.
bool names_a_format(const std::string& op) {
  return (op.starts_with("lacewing::") && op != "lacewing::tensor_slice") || op.starts_with("aten::to_sparse") ||
         op.starts_with("aten::_to_sparse");
}

/// The same elements with the leading `count` dims sparse: the entries of each index there make up a block, with the
/// fill where it has none.
Components in_blocks(const Components& given, std::int64_t count) {
  const Components c = coalesced(given);
  const Dims moved(c.pattern->sizes().begin() + count, c.pattern->sizes().end());
  Dims inner = all_dims(c.sparse_dim());
  inner.erase(inner.begin(), inner.begin() + count);
  const Grouping& grouping = c.pattern->grouping(all_dims(count));
  Dims block = moved;
  block.insert(block.end(), c.dense_shape().begin(), c.dense_shape().end());
  Dims rows{grouping.pattern->nse(), product_of(moved)};
  rows.insert(rows.end(), c.dense_shape().begin(), c.dense_shape().end());
  check_dense_result("aten::to_sparse", rows, c.values.scalar_type());
  const at::Tensor values = c.fill.value.expand(rows).clone(at::MemoryFormat::Contiguous);
  const at::Tensor filled = values.index_put({grouping.group().to(at::kLong), c.pattern->reduced(inner)}, c.values);
  block.insert(block.begin(), rows[0]);
  return {grouping.pattern, filled.view(block),
          c.fill.kind == FillKind::array ? Fill{FillKind::array, c.fill.value.expand(at::IntArrayRef(block).slice(1))}
                                         : c.fill};
}

/// The tensor with as many sparse dims as the call asks for; as it is where it asks for none.
at::Tensor with_wanted_dims(const Call& call) {
  const at::Tensor& t = call.tensor(0);
  const Components& c = call.sparse();
  const auto asked = [&](const char* name) { return call.has(name) && !call.arg(name).isNone(); };
  std::int64_t count = c.sparse_dim();
  count = asked("sparse_dim") ? call.integer("sparse_dim") : count;
  count = asked("dense_dim") ? c.dim() - call.integer("dense_dim") : count;
  if (count == c.sparse_dim()) {
    return t;
  }
  TORCH_CHECK(count >= 0 && count <= c.dim(), "[lacewing.to_sparse] a tensor of shape ", shape_text(t.sizes()),
              " cannot have ", count, " sparse dims");
  if (count > c.sparse_dim() && c.fill.kind != FillKind::array) {
    return make_tensor(dense_to_sparse_dims(c, count - c.sparse_dim()));
  }
  TORCH_CHECK(c.has_fill(), "[lacewing.to_sparse] blocks of ", c.dim() - count,
              " dims would have elements that are undefined, as the fill is: give one by with_fill(...)");
  if (count > 0 && count < c.sparse_dim()) {
    return make_tensor(in_blocks(c, count));
  }
  const Fill fill = c.fill.kind == FillKind::scalar ? c.fill : checked_fill("to_sparse", {}, c.values);
  return make_tensor(with_all_entries(densified_for(call.schema().name(), t), count, fill));
}

/// torch's own tensor of blocks, made of the entries: this library has no such format.
bool give_blocked(Call& call, at::Layout layout) {
  const Dims blocksize = call.arg("blocksize").isNone() ? Dims{} : call.arg("blocksize").toIntVector();
  return call.give(to_torch(with_wanted_dims(call), layout, at::IntArrayRef(blocksize)));
}

/// Compressed, which takes rows and columns.
bool give_compressed(Call& call, bool by_column) {
  const at::Tensor t = with_wanted_dims(call);
  TORCH_CHECK(t.is_same(call.tensor(0)) || components(t).sparse_dim() >= 2, "[lacewing.to_sparse] ",
              call.schema().name(), " needs two sparse dims, but dense_dim leaves ", components(t).sparse_dim());
  return call.give(to_gcs(t, {}, {}, by_column));
}

bool to_sparse(Call& call) {
  if (call.has("layout") && !call.arg("layout").isNone()) {
    const auto layout = call.arg("layout").toLayout();
    if (layout == at::kSparseBsr || layout == at::kSparseBsc) {
      return give_blocked(call, layout);
    }
    TORCH_CHECK(call.arg("blocksize").isNone(), "[lacewing.to_sparse] layout ", layout,
                " has no blocks, but blocksize is ", dims_text(call.arg("blocksize").toIntVector()));
    if (layout == at::kSparseCsr || layout == at::kSparseCsc) {
      return give_compressed(call, layout == at::kSparseCsc);
    }
    return layout == at::kSparse ? call.give(to_coo(with_wanted_dims(call))) : Call::decline();
  }
  return call.give(to_coo(with_wanted_dims(call)));
}

bool to_compressed(Call& call) { return give_compressed(call, call.schema().name() == "aten::to_sparse_csc"); }

bool to_blocked(Call& call) {
  return give_blocked(call, call.schema().name() == "aten::to_sparse_bsr" ? at::kSparseBsr : at::kSparseBsc);
}

/// crow_indices and col_indices of CSR, ccol_indices and row_indices of CSC; of GCRS and GCCS in the same way.
template <bool compressed, bool by_column>
bool give_array(Call& call) {
  const Layout* const layout = call.sparse().pattern->layout();
  TORCH_CHECK(layout != nullptr && layout->by_column == by_column, "[lacewing.SparseTensor] ", call.schema().name(),
              " needs a tensor in ", by_column ? "GCCS" : "GCRS", ": use to_gcs(...) first");
  return call.give(compressed ? call.sparse().pattern->starts() : call.sparse().pattern->minor());
}

constexpr RuleEntry kRules[] = {
    {"aten::to_sparse", to_sparse},
    {"aten::to_sparse.sparse_dim", to_sparse},
    {"aten::to_sparse_csr", to_compressed},
    {"aten::to_sparse_csc", to_compressed},
    {"aten::to_sparse_bsr", to_blocked},
    {"aten::to_sparse_bsc", to_blocked},
    {"aten::crow_indices", give_array<true, false>},
    {"aten::col_indices", give_array<false, false>},
    {"aten::ccol_indices", give_array<true, true>},
    {"aten::row_indices", give_array<false, true>},
};

}  // namespace

std::span<const RuleEntry> format_rules() { return kRules; }

void keep_format(Call& call) {
  if (call.schema().is_mutable() || names_a_format(call.schema().name())) {
    return;
  }
  const Layout* layout = nullptr;
  bool first = true;
  call.each_tensor([&](const at::Tensor& t) {
    if (first && is_sparse(t)) {
      first = false;
      layout = components(t).pattern->layout();
    }
  });
  if (layout != nullptr) {
    call.map_results([&](const at::Tensor& t) { return in_format_of(*layout, t); });
  }
}

namespace {

at::Tensor make_gcs(const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values,
                    at::IntArrayRef size, at::OptionalIntArrayRef rows, at::OptionalIntArrayRef columns, bool by_column,
                    std::int64_t kind, const std::optional<at::Tensor>& fill) {
  return sparse_gcs_tensor(compressed, plain, values, size, rows, columns, by_column,
                           fill_of("sparse_gcs_tensor", kind, fill, values.scalar_type()));
}

at::Tensor compressed_op(const at::Tensor& t) { return compressed_indices(t); }
at::Tensor plain_op(const at::Tensor& t) { return plain_indices(t); }
std::int64_t format_op(const at::Tensor& t) { return static_cast<std::int64_t>(format(t)); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def(
      "make_gcs_tensor(Tensor compressed_indices, Tensor plain_indices, Tensor values, int[] size, int[]? row_dims, "
      "int[]? col_dims, bool by_column, int fill_kind, Tensor? fill) -> Tensor",
      make_gcs);
  m.def("tensor_to_gcs(Tensor sparse, int[]? row_dims, int[]? col_dims, bool by_column) -> Tensor", to_gcs);
  m.def("tensor_to_coo(Tensor sparse) -> Tensor", to_coo);
  m.def("tensor_format(Tensor sparse) -> int", format_op);
  m.def("tensor_row_dims(Tensor sparse) -> int[]", row_dims);
  m.def("tensor_col_dims(Tensor sparse) -> int[]", col_dims);
  m.def("tensor_compressed_indices(Tensor sparse) -> Tensor", compressed_op);
  m.def("tensor_plain_indices(Tensor sparse) -> Tensor", plain_op);
}

}  // namespace tensor
}  // namespace lacewing
