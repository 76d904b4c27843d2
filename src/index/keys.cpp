#include "index/keys.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/host_read.h"
#include "index/key_order.h"
#include "kernels/device_index.h"
#include "structure/compressed.h"
#include "structure/entry_groups.h"

namespace lacewing::index {
namespace {

std::span<const std::int64_t> span_of(at::IntArrayRef sizes) { return {sizes.data(), sizes.size()}; }

const std::int64_t* data(const at::Tensor& tensor) { return tensor.const_data_ptr<std::int64_t>(); }
std::int64_t* mutable_data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); }

structure::IndexMatrix matrix_of(const at::Tensor& indices) {
  return {data(indices), indices.size(1), indices.stride(0), indices.stride(1)};
}

/// Rows `rows` of indices of a device.
kernels::KeyCode code_of(const at::Tensor& indices, at::IntArrayRef rows, at::IntArrayRef sizes) {
  kernels::KeyCode code;
  TORCH_CHECK(rows.size() <= kernels::KeyCode::kMostDims, "[lacewing.SparseTensor] at most ",
              kernels::KeyCode::kMostDims, " sparse dims are taken on a device, not ", rows.size());
  code.dims = static_cast<int>(rows.size());
  code.count = indices.size(1);
  code.stride = indices.stride(1);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    code.size[k] = sizes[k];
    code.offset[k] = rows[k] * indices.stride(0);
  }
  return code;
}

std::vector<std::int64_t> all_rows(at::IntArrayRef sizes) {
  std::vector<std::int64_t> rows(sizes.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef sizes) {
  return linear_keys(indices, all_rows(sizes), sizes);
}

at::Tensor linear_keys(const at::Tensor& indices, at::IntArrayRef rows, at::IntArrayRef sizes) {
  if (rows.size() == 1) {
    return indices.select(0, rows[0]).contiguous();
  }
  const auto keys = empty_result({indices.size(1)}, indices.options());
  if (is_on_host(indices)) {
    structure::linear_keys(matrix_of(indices), span_of(rows), span_of(sizes), mutable_data(keys), torch_executor());
  } else if (is_on_device(indices)) {
    const DeviceCall call(indices.device());
    kernels::cuda::linear_keys(code_of(indices, rows, sizes), data(indices), mutable_data(keys), call.stream());
  }
  return keys;
}

at::Tensor unravel_keys(const at::Tensor& keys, at::IntArrayRef sizes) {
  if (sizes.size() == 1) {
    return keys.unsqueeze(0);
  }
  const auto out = empty_result({static_cast<std::int64_t>(sizes.size()), keys.numel()}, keys.options());
  const auto contiguous = keys.contiguous();
  if (is_on_host(keys)) {
    structure::unravel_keys(data(contiguous), keys.numel(), span_of(sizes), mutable_data(out), torch_executor());
  } else if (is_on_device(keys)) {
    const DeviceCall call(keys.device());
    kernels::cuda::unravel_keys(code_of(out, all_rows(sizes), sizes), data(contiguous), mutable_data(out),
                                call.stream());
  }
  return out;
}

at::Tensor find_keys(const at::Tensor& sorted, const at::Tensor& keys) {
  if (sorted.numel() == 0) {
    return at::full_like(keys, -1);
  }
  const auto place = at::searchsorted(sorted, keys).clamp_max(sorted.numel() - 1);
  return at::where(sorted.index_select(0, place.reshape(-1)).view_as(keys) == keys, place,
                   at::full({}, -1, place.options()));
}

at::Tensor sorting(const at::Tensor& keys, std::int64_t limit) {
  const std::int64_t dim = 0;
  if (is_on_host(keys)) {
    const structure::EntryGroups groups({data(keys), keys.numel(), 0, 1}, {&dim, 1}, {&limit, 1}, torch_executor());
    if (groups.in_order()) {
      return {};
    }
    const auto order = empty_result(keys.sizes(), keys.options());
    groups.write(nullptr, nullptr, mutable_data(order), /*wide=*/true);
    return order;
  }
  if (scan_entries(keys.unsqueeze(0), {limit}).in_order) {
    return {};
  }
  return sort_keys(DeviceCall(keys.device()), keys, limit).order.to(at::kLong);
}

at::Tensor row_starts(const at::Tensor& row_of, std::int64_t rows) {
  const auto starts = empty_result({rows + 1}, row_of.options());
  if (is_on_host(row_of)) {
    structure::row_starts(data(row_of), row_of.numel(), rows, mutable_data(starts), torch_executor());
  } else if (is_on_device(row_of)) {
    const DeviceCall call(row_of.device());
    kernels::cuda::row_pointers(data(row_of), row_of.numel(), rows, mutable_data(starts), /*wide=*/true, call.stream());
  }
  return starts;
}

at::Tensor rows_of_entries(const at::Tensor& starts, std::int64_t entries) {
  const auto rows = empty_result({entries}, starts.options());
  if (is_on_host(starts)) {
    structure::rows_of_entries(data(starts), starts.numel() - 1, mutable_data(rows), torch_executor());
  } else if (is_on_device(starts)) {
    const DeviceCall call(starts.device());
    kernels::cuda::rows_of_terms(data(starts), /*wide=*/true, starts.numel() - 1, entries, mutable_data(rows),
                                 call.stream());
  }
  return rows;
}

structure::EntryScan scan_entries(const at::Tensor& indices, at::IntArrayRef sizes) {
  const std::int64_t entries = indices.size(1);
  if (indices.is_meta()) {
    return {entries, /*in_order=*/false, {}};
  }
  if (is_on_host(indices)) {
    return structure::scan_entries(matrix_of(indices), span_of(sizes), torch_executor());
  }
  using kernels::IndexScan;
  const DeviceCall call(indices.device());
  const at::Tensor words = call.integers(IndexScan::kWords);
  IndexScan scan;
  scan.code = code_of(indices, all_rows(sizes), sizes);
  scan.indices = data(indices);
  scan.words = reinterpret_cast<std::uint64_t*>(mutable_data(words));
  kernels::cuda::scan_indices(scan, call.stream());
  const std::vector<std::int64_t> found = read_back(words);
  structure::EntryScan result{entries - found[IndexScan::outside], /*in_order=*/false, {}};
  if (found[IndexScan::outside] == 0 && found[IndexScan::unsorted] == 0) {
    result.in_order = true;
    if (entries > 0 && found[IndexScan::repeated] == 0) {
      result.groups = {entries};
    }
  }
  return result;
}

}  // namespace lacewing::index
