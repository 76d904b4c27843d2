// Padding by elements of the tensor, and enlarging by the nearest element: each dim is read at other places.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_pad_circular.h>
#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/reflection_pad1d.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/upsample_nearest1d.h>

#include "tensor/call.h"

namespace lacewing::tensor {
namespace {

/// What torch's own op makes of the places 0, 1, ... of one dim, as the places to read.
template <typename Op>
at::Tensor read_places(std::int64_t size, const at::Tensor& like, const Op& op) {
  const auto places = at::arange(size, like.options().dtype(at::kDouble).requires_grad(false)).view({1, 1, size});
  return op(places).reshape(-1).to(at::kLong);
}

/// reflection_pad, replication_pad, and circular padding; torch lists the last dim first.
bool pad(Call& call) {
  at::Tensor t = call.tensor(0);
  const std::string& name = call.schema().name();
  const bool circular = name == "aten::_pad_circular";
  const bool reflects = name.find("reflection") != std::string::npos;
  const Dims given = call.arg(circular ? "pad" : "padding").toIntVector();
  const auto dims = static_cast<std::int64_t>(given.size()) / 2;
  if (given.size() % 2 != 0 || t.dim() <= dims || t.numel() == 0) {
    return Call::decline();
  }
  for (std::int64_t k = 0; k < dims; ++k) {
    const std::int64_t dim = t.dim() - 1 - k;
    const Dims own{given[at(2 * k)], given[at(2 * k + 1)]};
    if (own[0] == 0 && own[1] == 0) {
      continue;
    }
    const auto places = read_places(t.size(dim), t, [&](const at::Tensor& row) {
      return circular   ? at::_pad_circular(row, own)
             : reflects ? at::reflection_pad1d(row, own)
                        : at::replication_pad1d(row, own);
    });
    t = t.index_select(dim, places);
  }
  return call.give(t.is_same(call.tensor(0)) ? t.clone() : t);
}

/// upsample_nearest and its exact form.
bool nearest(Call& call) {
  at::Tensor t = call.tensor(0);
  const bool exact = call.schema().name().find("exact") != std::string::npos;
  const Dims sizes = call.arg("output_size").toIntVector();
  const auto dims = static_cast<std::int64_t>(sizes.size());
  if (t.dim() != dims + 2 || t.numel() == 0) {
    return Call::decline();
  }
  const char* const names[] = {"scales_d", "scales_h", "scales_w"};
  for (std::int64_t k = 0; k < dims; ++k) {
    const c10::IValue& given = call.arg(dims == 1 ? "scales" : names[3 - dims + k]);
    const auto scale = given.isNone() ? std::nullopt : std::optional<double>(given.toDouble());
    const std::int64_t dim = 2 + k;
    const auto places = read_places(t.size(dim), t, [&](const at::Tensor& row) {
      return exact ? at::_upsample_nearest_exact1d(row, sizes[at(k)], scale)
                   : at::upsample_nearest1d(row, sizes[at(k)], scale);
    });
    t = t.index_select(dim, places);
  }
  return call.give(t);
}

constexpr RuleEntry kRules[] = {
    {"aten::reflection_pad1d", pad},
    {"aten::reflection_pad2d", pad},
    {"aten::reflection_pad3d", pad},
    {"aten::replication_pad1d", pad},
    {"aten::replication_pad2d", pad},
    {"aten::replication_pad3d", pad},
    {"aten::_pad_circular", pad},
    {"aten::upsample_nearest1d", nearest},
    {"aten::upsample_nearest2d", nearest},
    {"aten::upsample_nearest3d", nearest},
    {"aten::_upsample_nearest_exact1d", nearest},
    {"aten::_upsample_nearest_exact2d", nearest},
    {"aten::_upsample_nearest_exact3d", nearest},
};

}  // namespace

std::span<const RuleEntry> resampling_rules() { return kRules; }

}  // namespace lacewing::tensor
