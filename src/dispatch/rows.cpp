// gather_rows and scatter_add_rows: schemas, checks, allocation, and the choice of kernels.
#include "kernels/dispatch/rows.h"

#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zero.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/rows.h>
#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "common/results.h"
#include "common/stream.h"
#include "dispatch/rows_ops.h"

namespace lacewing {
namespace {

using kernels::IndexArg;
using kernels::RowKernels;
using kernels::RowsArg;

constexpr const char* gather_name = "gather_rows";
constexpr const char* scatter_name = "scatter_add_rows";

/// More would overflow the arithmetic of offsets.
constexpr std::int64_t most_rows = std::int64_t{1} << 48;

enum class Mode { deterministic, distinct, atomic };

Mode parse_mode(std::string_view mode) {
  if (mode == "deterministic") {
    return Mode::deterministic;
  }
  if (mode == "distinct") {
    return Mode::distinct;
  }
  TORCH_CHECK(mode == "atomic", "[lacewing.", scatter_name,
              "] mode must be \"deterministic\", \"distinct\" or \"atomic\", not \"", mode, "\"");
  return Mode::atomic;
}

void check_operands(const char* op, const at::Tensor& src, const at::Tensor& index) {
  dispatch::detail::check_rank(op, "src", src, 2);
  dispatch::detail::check_rank(op, "index", index, 1);
  index_type(op, "index", index.scalar_type());
  TORCH_CHECK(src.device() == index.device(), "[lacewing.", op, "] src is on ", src.device(), ", but index is on ",
              index.device());
}

void check_scatter(const at::Tensor& src, const at::Tensor& index, const c10::SymInt& rows) {
  check_operands(scatter_name, src, index);
  TORCH_SYM_CHECK(src.sym_size(0).sym_eq(index.sym_size(0)), "[lacewing.", scatter_name, "] src of shape ",
                  shape_text(src.sym_sizes()), " needs one index per row, but index has shape ",
                  shape_text(index.sym_sizes()));
  TORCH_SYM_CHECK(rows.sym_ge(0), "[lacewing.", scatter_name, "] rows must not be negative, not ", rows);
  TORCH_SYM_CHECK(rows.sym_le(most_rows), "[lacewing.", scatter_name, "] rows must be at most ", most_rows, ", not ",
                  rows);
}

RowsArg rows_arg(const char* op, const at::Tensor& matrix) {
  // Sources go through here too and are only read: const_data_ptr keeps copy-on-write tensors shared.
  return {const_cast<void*>(matrix.const_data_ptr()),
          scalar_type(op, "src", matrix.scalar_type()),
          matrix.size(0),
          matrix.size(1),
          matrix.stride(0),
          matrix.stride(1)};
}

IndexArg index_arg(const char* op, const at::Tensor& index) {
  return {index.const_data_ptr(), index_type(op, "index", index.scalar_type()), index.size(0), index.stride(0)};
}

at::Tensor positions(at::IntArrayRef sizes, const at::Tensor& index) {
  return at::full(sizes, kernels::none_found, index.options().dtype(at::kLong));
}

std::int64_t index_value(const at::Tensor& index, std::int64_t k) { return index.select(0, k).item<std::int64_t>(); }

/// The first index outside [0, rows), or none_found.
template <Device Dev>
std::int64_t out_of_range(const char* op, const RowKernels<Dev>& kernels, const executor_t<Dev>& executor,
                          const at::Tensor& index, std::int64_t rows) {
  const at::Tensor first = positions({}, index);
  kernels.first_out_of_range(executor, index_arg(op, index), rows, first.mutable_data_ptr<std::int64_t>());
  return first.item<std::int64_t>();
}

template <Device Dev>
void check_distinct(const RowKernels<Dev>& kernels, const executor_t<Dev>& executor, const at::Tensor& index,
                    std::int64_t rows) {
  const at::Tensor owner = positions({rows}, index);
  const at::Tensor first = positions({}, index);
  kernels.first_repeat(executor, index_arg(scatter_name, index), owner.mutable_data_ptr<std::int64_t>(),
                       first.mutable_data_ptr<std::int64_t>());
  const auto k = first.item<std::int64_t>();
  if (k != kernels::none_found) {
    const std::int64_t value = index_value(index, k);
    TORCH_CHECK(false, "[lacewing.", scatter_name, "] index[", k, "] = ", value, " repeats index[",
                index_value(owner, value), "]: mode \"distinct\" needs distinct indices");
  }
}

template <Device Dev>
at::Tensor gather(const RowKernels<Dev>& kernels, const executor_t<Dev>& executor, const at::Tensor& src,
                  const at::Tensor& index, bool check) {
  if (check) {
    const std::int64_t k = out_of_range<Dev>(gather_name, kernels, executor, index, src.size(0));
    TORCH_CHECK(k == kernels::none_found, "[lacewing.", gather_name, "] index[", k, "] = ", index_value(index, k),
                " is out of range for src of shape ", shape_text(src.sizes()), ": dim 0 has ", src.size(0), " entries");
  }
  const at::Tensor out = empty_result({index.size(0), src.size(1)}, src.options());
  kernels.gather(executor, rows_arg(gather_name, src), rows_arg(gather_name, out), index_arg(gather_name, index));
  return out;
}

template <Device Dev>
at::Tensor scatter_add(const RowKernels<Dev>& kernels, const executor_t<Dev>& executor, const at::Tensor& src,
                       const at::Tensor& index, std::int64_t rows, Mode mode, bool check) {
  if (check) {
    const std::int64_t k = out_of_range<Dev>(scatter_name, kernels, executor, index, rows);
    TORCH_CHECK(k == kernels::none_found, "[lacewing.", scatter_name, "] index[", k, "] = ", index_value(index, k),
                " is out of range for an output of shape ", shape_text(at::IntArrayRef({rows, src.size(1)})),
                ": dim 0 has ", rows, " entries");
  }
  if (check && mode == Mode::distinct) {
    check_distinct<Dev>(kernels, executor, index, rows);
  }

  const at::Tensor out = empty_result({rows, src.size(1)}, src.options()).zero_();
  const RowsArg from = rows_arg(scatter_name, src);
  const RowsArg to = rows_arg(scatter_name, out);
  switch (mode) {
    case Mode::deterministic: {
      const auto [sorted, order] = at::sort(index, /*stable=*/true, /*dim=*/0, /*descending=*/false);
      kernels.scatter_add_sorted(executor, from, to, index_arg(scatter_name, sorted),
                                 order.const_data_ptr<std::int64_t>());
      break;
    }
    case Mode::distinct: kernels.scatter_add(executor, from, to, index_arg(scatter_name, index)); break;
    case Mode::atomic:
      if (!at::isIntegralType(src.scalar_type(), /*includeBool=*/true)) {
        at::globalContext().alertNotDeterministic("lacewing.scatter_add_rows with mode \"atomic\"");
      }
      kernels.scatter_add_atomic(executor, from, to, index_arg(scatter_name, index));
      break;
  }
  return out;
}

at::Tensor gather_rows_cpu(const at::Tensor& src, const at::Tensor& index, bool check) {
  check_operands(gather_name, src, index);
  check_memory(gather_name, {{"src", src}, {"index", index}});
  if (backend() == Backend::reference) {
    return gather<Device::reference>(kernels::reference_row_kernels(), serial_executor(), src, index, check);
  }
  return gather<Device::cpu>(kernels::cpu_row_kernels(), torch_executor(), src, index, check);
}

at::Tensor gather_rows_cuda(const at::Tensor& src, const at::Tensor& index, bool check) {
  check_operands(gather_name, src, index);
  check_memory(gather_name, {{"src", src}, {"index", index}});
  if (backend() == Backend::reference) {
    return gather_rows_cpu(src.cpu(), index.cpu(), check).to(src.device());
  }
  const c10::DeviceGuard guard(src.device());
  return gather<Device::cuda>(kernels::cuda_row_kernels(), current_stream(src.device()), src, index, check);
}

at::Tensor gather_rows_meta(const at::Tensor& src, const at::Tensor& index, bool) {
  check_operands(gather_name, src, index);
  return at::empty_symint({index.sym_size(0), src.sym_size(1)}, src.options());
}

at::Tensor scatter_add_rows_cpu(const at::Tensor& src, const at::Tensor& index, std::int64_t rows,
                                std::string_view mode, bool check) {
  check_scatter(src, index, rows);
  check_memory(scatter_name, {{"src", src}, {"index", index}});
  const Mode parsed = parse_mode(mode);
  if (backend() == Backend::reference) {
    return scatter_add<Device::reference>(kernels::reference_row_kernels(), serial_executor(), src, index, rows, parsed,
                                          check);
  }
  return scatter_add<Device::cpu>(kernels::cpu_row_kernels(), torch_executor(), src, index, rows, parsed, check);
}

at::Tensor scatter_add_rows_cuda(const at::Tensor& src, const at::Tensor& index, std::int64_t rows,
                                 std::string_view mode, bool check) {
  check_scatter(src, index, rows);
  check_memory(scatter_name, {{"src", src}, {"index", index}});
  const Mode parsed = parse_mode(mode);
  if (backend() == Backend::reference) {
    return scatter_add_rows_cpu(src.cpu(), index.cpu(), rows, mode, check).to(src.device());
  }
  const c10::DeviceGuard guard(src.device());
  return scatter_add<Device::cuda>(kernels::cuda_row_kernels(), current_stream(src.device()), src, index, rows, parsed,
                                   check);
}

// The signature must be the schema's own: a SymInt by value.
at::Tensor scatter_add_rows_meta(const at::Tensor& src, const at::Tensor& index, c10::SymInt rows,
                                 std::string_view mode, bool) {
  check_scatter(src, index, rows);
  parse_mode(mode);
  return at::empty_symint({std::move(rows), src.sym_size(1)}, src.options());
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& src, const at::Tensor& index, bool check) {
  return gather_rows_op().call(src, index, check);
}

at::Tensor scatter_add_rows(const at::Tensor& src, const at::Tensor& index, c10::SymInt rows, std::string_view mode,
                            bool check) {
  return scatter_add_rows_op().call(src, index, std::move(rows), mode, check);
}

}  // namespace lacewing

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  lacewing::define_dense_op(m, "gather_rows(Tensor src, Tensor index, *, bool check=True) -> Tensor",
                            {at::Tag::pt2_compliant_tag});
  lacewing::define_dense_op(
      m,
      "scatter_add_rows(Tensor src, Tensor index, SymInt rows, str mode=\"deterministic\", *, bool check=True) "
      "-> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) {
  m.impl("gather_rows", lacewing::gather_rows_cpu);
  m.impl("scatter_add_rows", lacewing::scatter_add_rows_cpu);
}

TORCH_LIBRARY_IMPL(lacewing, CUDA, m) {
  m.impl("gather_rows", lacewing::gather_rows_cuda);
  m.impl("scatter_add_rows", lacewing::scatter_add_rows_cuda);
}

TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("gather_rows", lacewing::gather_rows_meta);
  m.impl("scatter_add_rows", lacewing::scatter_add_rows_meta);
}
