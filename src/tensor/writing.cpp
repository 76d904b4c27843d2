// Ops that give a tensor with some elements replaced or added to: entries are made where there are none.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <lacewing/dispatch/torch.h>

#include "index/keys.h"
#include "tensor/densify.h"
#include "tensor/elements.h"

namespace lacewing::tensor {
namespace {

/// Whether a write into argument 0 of a strided `source` is this file's: numbers of one type, and, where `fill` says
/// so, a fill to start from.
bool writable(const Call& call, const at::Tensor& source, bool fill = true) {
  return call.is_sparse_at(0) && (call.sparse().has_fill() || !fill) && call.sparse().sparse_dim() > 0 &&
         !is_sparse(source) && source.scalar_type() == call.sparse().values.scalar_type();
}

bool give_written(Call& call, const std::vector<at::Tensor>& places, const at::Tensor& values, bool accumulate) {
  std::vector<at::Tensor> wide = places;
  Dims shape = at::broadcast_tensors(wide)[0].sizes().vec();
  const auto block = call.sparse().dense_shape();
  shape.insert(shape.end(), block.begin(), block.end());
  if (!at::is_expandable_to(values.sizes(), shape)) {
    return Call::decline();  // torch has the sentence
  }
  check_dense_result(call.schema().name(), shape, values.scalar_type());
  return call.give(written_at(call.sparse(), places, values, accumulate));
}

/// The places of a box of which dim `dim` is indexed by `index`.
std::vector<at::Tensor> along(const Components& c, std::int64_t dim, const at::Tensor& index) {
  Dims sizes = c.pattern->sizes();
  sizes[at(dim)] = index.numel();
  std::vector<at::Tensor> places = box_places(sizes, index);
  Dims shape(sizes.size(), 1);
  shape[at(dim)] = index.numel();
  places[at(dim)] = index.reshape(shape);
  return places;
}

/// The elements of a strided tensor that are there, of which an expanded one repeats some.
std::int64_t held_elements(const at::Tensor& tensor) {
  std::int64_t count = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    count *= tensor.stride(d) == 0 && tensor.size(d) > 0 ? 1 : tensor.size(d);
  }
  return count;
}

/// copy: a sparse source with its own entries; of a strided one the elements that differ from the fill.
bool copy(Call& call) {
  if (!call.is_sparse_at(0)) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const at::Tensor source = call.tensor(1);
  const auto shape = call.tensor(0).sizes();
  TORCH_CHECK(at::is_expandable_to(source.sizes(), shape),
              "[lacewing.SparseTensor] copy_ cannot bring a source of shape ", shape_text(source.sizes()),
              " into a tensor of shape ", shape_text(shape));
  if (!is_sparse(source) && held_elements(source) < call.tensor(0).numel()) {
    check_dense_result(call.schema().name(), shape, c.values.scalar_type());
  }
  const at::Tensor wide = source.expand(shape).to(c.values.device(), c.values.scalar_type());
  if (is_sparse(source)) {
    return call.give(wide.clone());
  }
  return c.has_fill() ? call.give(lacewing::to_sparse(wide, c.sparse_dim(), c.fill)) : Call::decline();
}

/// The mask without dims that is the only index of a number; undefined where there is another.
at::Tensor lone_mask(const Call& call) {
  const auto given = call.args[1].toOptionalTensorList();
  const std::optional<at::Tensor> item = given.size() == 1 ? std::optional<at::Tensor>(given.get(0)) : std::nullopt;
  if (call.tensor(0).dim() > 0 || !item || !item->defined() || item->dim() > 0 || item->scalar_type() != at::kBool) {
    return {};
  }
  return is_sparse(*item) ? densified(components(*item)) : beside(call.sparse(), *item);
}

/// Index tensors and masks for dims that follow each other; the other sparse dims are taken whole.
bool index_put(Call& call) {
  at::Tensor values = call.arg("values").toTensor();
  if (is_sparse(values)) {
    values = densified_for(call.schema().name(), values);  // every element of it is written
  }
  if (call.is_sparse_at(0) && call.sparse().sparse_dim() == 0 && call.sparse().has_fill()) {
    // One block.
    const at::Tensor block = densified(call.sparse());
    if (const at::Tensor mask = lone_mask(call); mask.defined() && (values.numel() == 1 || !mask.item<bool>())) {
      const at::Tensor number = values.numel() == 1 ? values.reshape(at::IntArrayRef{}) : block;
      const at::Tensor written = at::where(mask, call.flag("accumulate") ? block + number : number, block);
      return call.give(lacewing::to_sparse(written, 0, call.sparse().fill));
    }
    std::vector<c10::IValue> args = call.args;
    args[0] = block;
    args[at(call.find("values"))] = values;
    return call.give(lacewing::to_sparse(call.call(std::move(args)).front().toTensor(), 0, call.sparse().fill));
  }
  if (!writable(call, values, call.flag("accumulate"))) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  values = values.dim() == 0 ? beside(c, values) : values;
  std::vector<at::Tensor> given;
  std::int64_t dim = 0;
  std::int64_t first = -1;
  for (const std::optional<at::Tensor> item : call.args[1].toOptionalTensorList()) {
    if (!item || !item->defined()) {
      ++dim;
      continue;
    }
    check_index_type(*item);
    const at::Tensor t = is_sparse(*item) ? *item : beside(c, *item);
    const bool mask = t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
    if (mask && is_sparse(t) && t.sizes() == call.tensor(0).sizes() && values.numel() == 1 &&
        !call.flag("accumulate") && c.has_fill()) {
      return call.give(at::where(t.to(at::kBool), values.reshape(at::IntArrayRef{}), call.tensor(0)));
    }
    const std::int64_t taken = mask ? t.dim() : 1;
    const bool follows = first < 0 || first + static_cast<std::int64_t>(given.size()) == dim;
    if ((is_sparse(t) && !mask) || taken == 0 || !follows || dim + taken > c.sparse_dim()) {
      return Call::decline();
    }
    first = first < 0 ? dim : first;
    if (mask) {
      for (std::int64_t k = 0; k < taken; ++k) {
        if (t.size(k) != c.pattern->sizes()[at(dim + k)]) {
          return Call::decline();
        }
      }
      for (const at::Tensor& part : t.nonzero().unbind(1)) {
        given.push_back(part);
      }
    } else {
      given.push_back(wrapped_places(t, dim, c.pattern->sizes()[at(dim)]));
    }
    dim += taken;
  }
  if (given.empty()) {
    return Call::decline();
  }
  given = at::broadcast_tensors(given);
  const Dims shape = given[0].sizes().vec();
  const auto count = static_cast<std::int64_t>(given.size());
  // The box: dims before the index tensors, their shape, dims behind them.
  Dims box(c.pattern->sizes().begin(), c.pattern->sizes().begin() + first);
  box.insert(box.end(), shape.begin(), shape.end());
  box.insert(box.end(), c.pattern->sizes().begin() + first + count, c.pattern->sizes().end());
  check_dense_result(call.schema().name(), box, c.values.scalar_type());
  const auto whole = box_places(box, given[0]);
  std::vector<at::Tensor> places(whole.begin(), whole.begin() + first);
  Dims inner(box.size(), 1);
  std::copy(shape.begin(), shape.end(), inner.begin() + first);
  for (const at::Tensor& part : given) {
    places.push_back(part.reshape(inner));
  }
  places.insert(places.end(), whole.begin() + first + static_cast<std::ptrdiff_t>(shape.size()), whole.end());
  return give_written(call, places, values, call.flag("accumulate"));
}

/// index_add, index_copy and index_fill along one sparse dim.
bool index_write(Call& call) {
  const std::string& name = call.schema().name();
  const bool fills = name == "aten::index_fill";
  at::Tensor source;
  if (fills && call.arg("value").isScalar() && call.is_sparse_at(0)) {
    const auto& values = call.sparse().values;
    source = at::scalar_tensor(call.arg("value").toScalar(), values.options().requires_grad(false));
  } else {
    source = call.arg(fills ? "value" : "source").toTensor();
  }
  if (!writable(call, source) || is_sparse(call.arg("index").toTensor())) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  const at::Tensor given = call.arg("index").toTensor();
  if (dim >= c.sparse_dim() || given.dim() > 1 || (!fills && source.dim() != c.dim())) {
    return Call::decline();
  }
  const at::Tensor index = wrapped_places(given.reshape(-1), dim, c.pattern->sizes()[at(dim)]);
  if (name == "aten::index_add") {
    const at::Scalar alpha = call.arg("alpha").toScalar();
    const bool truth = source.scalar_type() == at::kBool && alpha.isIntegral(/*includeBool=*/true);
    source = truth ? (source * alpha).to(at::kBool) : source * alpha;
  }
  return give_written(call, along(c, dim, index), source, name == "aten::index_add");
}

/// scatter and scatter_add along one dim of a tensor whose dims are all sparse.
bool scatter(Call& call) {
  const bool adds = call.schema().name() == "aten::scatter_add";
  if (!call.is_sparse_at(0) || is_sparse(call.arg("index").toTensor())) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  at::Tensor source = call.has("src")
                          ? call.arg("src").toTensor()
                          : at::scalar_tensor(call.arg("value").toScalar(), c.values.options().requires_grad(false));
  const at::Tensor index = call.arg("index").toTensor();
  if (!writable(call, source) || c.dense_dim() > 0 || index.dim() != c.dim()) {
    return Call::decline();
  }
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    if (source.dim() > 0) {
      if (source.dim() != c.dim() || source.size(d) < index.size(d)) {
        return Call::decline();
      }
      source = source.narrow(d, 0, index.size(d));
    }
    if (d != dim && index.size(d) > c.pattern->sizes()[at(d)]) {
      return Call::decline();
    }
  }
  std::vector<at::Tensor> places = box_places(index.sizes(), index);
  places[at(dim)] = wrapped_places(index, dim, c.pattern->sizes()[at(dim)]);
  return give_written(call, places, source, adds);
}

/// put: elements by their number in row-major order.
bool put(Call& call) {
  const at::Tensor source = call.arg("source").toTensor();
  const at::Tensor index = call.arg("index").toTensor();
  if (!writable(call, source) || call.sparse().dense_dim() > 0 || is_sparse(index) || source.numel() != index.numel()) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const auto flat = wrapped_places(index.reshape(-1), 0, c.pattern->numel());
  return give_written(call, index::unravel_keys(flat, c.pattern->sizes()).unbind(0), source.reshape(-1),
                      call.flag("accumulate"));
}

bool masked_scatter(Call& call) {
  const at::Tensor source = call.arg("source").toTensor();
  const at::Tensor mask = call.arg("mask").toTensor();
  if (!writable(call, source) || call.sparse().dense_dim() > 0 || is_sparse(mask) || mask.scalar_type() != at::kBool ||
      !at::is_expandable_to(mask.sizes(), call.tensor(0).sizes())) {
    return Call::decline();
  }
  const auto places = mask.expand(call.tensor(0).sizes()).nonzero().unbind(1);
  if (places.empty() || places[0].numel() > source.numel()) {
    return Call::decline();
  }
  return give_written(call, places, source.reshape(-1).narrow(0, 0, places[0].numel()), false);
}

/// select_scatter and slice_scatter along one sparse dim.
bool piece_scatter(Call& call) {
  const at::Tensor source = call.arg("src").toTensor();
  if (!writable(call, source)) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const std::int64_t dim = wrap_dim(call.integer("dim"), c.dim());
  if (dim >= c.sparse_dim()) {
    return Call::decline();
  }
  const std::int64_t size = c.pattern->sizes()[at(dim)];
  const auto numbers = source.options().dtype(at::kLong).requires_grad(false);
  if (call.schema().name() == "aten::select_scatter") {
    const auto index = wrapped_places(at::full({1}, call.integer("index"), numbers), dim, size);
    return source.dim() + 1 == c.dim() ? give_written(call, along(c, dim, index), source.unsqueeze(dim), false)
                                       : Call::decline();
  }
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    const std::int64_t value = call.arg(name).isNone() ? otherwise : call.arg(name).toInt();
    return std::clamp<std::int64_t>(value < 0 ? value + size : value, 0, size);
  };
  const std::int64_t start = bound("start", 0);
  const std::int64_t end = std::max(bound("end", size), start);
  const auto index = at::arange(start, end, call.integer("step"), numbers);
  return source.dim() == c.dim() ? give_written(call, along(c, dim, index), source, false) : Call::decline();
}

bool diagonal_scatter(Call& call) {
  const at::Tensor source = call.arg("src").toTensor();
  if (!writable(call, source) || call.sparse().dense_dim() > 0) {
    return Call::decline();
  }
  const Components& c = call.sparse();
  const std::int64_t dim1 = wrap_dim(call.integer("dim1"), c.dim());
  const std::int64_t dim2 = wrap_dim(call.integer("dim2"), c.dim());
  if (dim1 == dim2 || source.dim() + 1 != c.dim()) {
    return Call::decline();
  }
  // The diagonal is the last dim of the box.
  const std::int64_t offset = call.integer("offset");
  Dims box;
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    if (d != dim1 && d != dim2) {
      box.push_back(c.pattern->sizes()[at(d)]);
    }
  }
  box.push_back(source.size(-1));
  const auto whole = box_places(box, source);
  std::vector<at::Tensor> places;
  std::size_t next = 0;
  for (std::int64_t d = 0; d < c.dim(); ++d) {
    places.push_back(d == dim1   ? whole.back() + std::max<std::int64_t>(-offset, 0)
                     : d == dim2 ? whole.back() + std::max<std::int64_t>(offset, 0)
                                 : whole[next++]);
  }
  return give_written(call, places, source, false);
}

constexpr RuleEntry kRules[] = {
    {"aten::copy", copy},
    {"aten::index_put", index_put},
    {"aten::_unsafe_index_put", index_put},
    {"aten::index_add", index_write},
    {"aten::index_copy", index_write},
    {"aten::index_fill.int_Scalar", index_write},
    {"aten::index_fill.int_Tensor", index_write},
    {"aten::scatter.src", scatter},
    {"aten::scatter.value", scatter},
    {"aten::scatter_add", scatter},
    {"aten::put", put},
    {"aten::masked_scatter", masked_scatter},
    {"aten::select_scatter", piece_scatter},
    {"aten::slice_scatter", piece_scatter},
    {"aten::diagonal_scatter", diagonal_scatter},
};

}  // namespace

std::span<const RuleEntry> writing_rules() { return kRules; }

}  // namespace lacewing::tensor
