// The registered ops of the eligibility traces: schemas, checks, and the choice of kernels.
#include "etp/ops.h"

#include <algorithm>
#include <iterator>

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <lacewing/backend.h>

#include "common/refuse_layouts.h"
#include "common/stream.h"
#include "common/typed_op.h"
#include "etp/cell_params.h"
#include "etp/checks.h"
#include "kernels/cell.h"

namespace lacewing::etp {
namespace {

using kernels::CellArgs;
using kernels::CellParams;
using kernels::TraceArgs;

constexpr const char* kTrace = "etp_trace_";
constexpr const char* kCellOp = "etp_cell_step";

const void* data_or_null(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

void check_array(const char* op, const char* argument, const OptionalTensor& tensor, at::IntArrayRef shape,
                 const at::Tensor& like) {
  if (!tensor) {
    return;
  }
  check_shape(op, argument, *tensor, shape);
  check_same_dtype(op, argument, *tensor, "the trace", like);
  TORCH_CHECK(tensor->device() == like.device(), "[lacewing.", op, "] ", argument, " is on ", tensor->device(),
              ", but the trace is on ", like.device());
  TORCH_CHECK(tensor->is_contiguous(), "[lacewing.", op, "] ", argument, " must be contiguous, batch last");
  check_memory(op, argument, *tensor);
}

void check_index(const char* argument, const at::Tensor& index, std::int64_t size, at::ScalarType type,
                 const at::Tensor& trace) {
  if (index.defined()) {
    check_shape(kTrace, argument, index, {size});
    TORCH_CHECK(index.scalar_type() == type && index.is_contiguous() && index.device() == trace.device(), "[lacewing.",
                kTrace, "] ", argument, " must be a contiguous ", dtype_text(type), " tensor on the trace's device");
    check_memory(kTrace, argument, index);
  }
}

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

/// The arguments of the op.
struct TraceCall {
  const at::Tensor& trace;
  SparsePattern::ByColumn columns;  ///< undefined where they were not given
  std::vector<at::Tensor> x, df, decay;
  std::vector<OptionalTensor> g;
  OptionalTensor grad;
  SharedRows shared;

  /// Successive steps, checked: x, df, decay and g have an entry for each, or none at all.
  std::vector<TraceArgs> checked() const {
    TORCH_CHECK(trace.dim() == 3 && trace.is_contiguous(), "[lacewing.", kTrace,
                "] trace must be a contiguous (entries, S, B), not shape ", shape_text(trace.sizes()));
    TORCH_CHECK(at::isFloatingType(trace.scalar_type()), "[lacewing.", kTrace, "] trace must be floating, not ",
                dtype_text(trace.scalar_type()));
    check_memory(kTrace, {{"trace", trace}, {"grad", grad.value_or(at::Tensor())}});
    const bool shares = !shared.u.empty();
    const std::int64_t entries = trace.size(0);
    const std::int64_t states = trace.size(1) + (shares ? 1 : 0);
    const std::int64_t batch = trace.size(2);
    TORCH_CHECK(states >= 1 && states <= kernels::kMaxStates, "[lacewing.", kTrace, "] a trace has 1 to ",
                kernels::kMaxStates, " states, not ", states);
    TORCH_CHECK(columns.segments.defined() == columns.column.defined(), "[lacewing.", kTrace,
                "] segments and column come together");
    const std::int64_t count = columns.segments.defined() ? columns.segments.numel() - 1 : entries;
    const std::size_t steps = std::max(df.size(), g.size());
    TORCH_CHECK(steps > 0, "[lacewing.", kTrace, "] neither df nor g is given: there is nothing to do");
    TORCH_CHECK((df.empty() ? steps == 1 : df.size() == steps) && decay.size() == df.size() &&
                    (x.empty() || x.size() == df.size()) && (g.empty() || g.size() == steps),
                "[lacewing.", kTrace, "] x, df, decay and g must agree in the number of steps, not have ", x.size(),
                ", ", df.size(), ", ", decay.size(), " and ", g.size());
    TORCH_CHECK(!shares || (x.empty() && shared.u.size() == df.size() + 1), "[lacewing.", kTrace,
                "] shared stands for x, with one entry more than df, not ", shared.u.size(), " beside ", x.size(),
                " of x and ", df.size(), " of df");
    TORCH_CHECK((x.empty() && !shares) != columns.row.defined() && g.empty() != grad.has_value(), "[lacewing.", kTrace,
                "] x or shared comes with row and g with grad");
    check_index("segments", columns.segments, count + 1, at::kLong, trace);
    check_index("row", columns.row, entries, at::kInt, trace);
    check_index("column", columns.column, entries, at::kInt, trace);
    check_index("order", columns.order, entries, at::kLong, trace);
    if (grad) {
      check_shape(kTrace, "grad", *grad, {entries});
      const auto wide = trace.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      TORCH_CHECK(grad->scalar_type() == wide && grad->is_contiguous() && grad->device() == trace.device(),
                  "[lacewing.", kTrace, "] grad must be a contiguous ", dtype_text(wide),
                  " tensor on the trace's device");
    }
    for (const at::Tensor& u : shared.u) {
      check_rows("shared", u);
      check_shape(kTrace, "shared", u, shared.u.front().sizes());
    }
    std::vector<TraceArgs> out = trace_args(kTrace, steps, trace, columns, shared, grad);
    for (std::size_t t = 0; t < steps; ++t) {
      if (!x.empty()) {
        check_rows("x", x[t]);
        out[t].x = x[t].const_data_ptr();
      }
      if (!df.empty()) {
        check_array(kTrace, "df", df[t], {count, states, batch}, trace);
        check_array(kTrace, "decay", decay[t], {count, states, states, batch}, trace);
        out[t].df = df[t].const_data_ptr();
        out[t].decay = decay[t].const_data_ptr();
      }
      if (!g.empty() && g[t]) {
        check_array(kTrace, "g", g[t], {count, states, batch}, trace);
        out[t].g = g[t]->const_data_ptr();
      }
    }
    return out;
  }

 private:
  void check_rows(const char* argument, const at::Tensor& rows) const {
    TORCH_CHECK(rows.dim() == 2 && rows.size(1) == trace.size(2), "[lacewing.", kTrace, "] ", argument,
                " must have shape (I, ", trace.size(2), "), not ", shape_text(rows.sizes()));
    check_array(kTrace, argument, rows, rows.sizes(), trace);
  }
};

TraceCall trace_call(const at::Tensor& trace, const OptionalTensor& segments, const OptionalTensor& row,
                     const OptionalTensor& column, const OptionalTensor& order, at::TensorList x, at::TensorList df,
                     at::TensorList decay, const OptionalTensors& g, const OptionalTensor& grad, at::TensorList shared,
                     double shared_decay) {
  const auto given = [](const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); };
  return {trace,       {given(segments), given(row), given(column), given(order), {}},
          x.vec(),     df.vec(),
          decay.vec(), {g.begin(), g.end()},
          grad,        {shared.vec(), shared_decay}};
}

void run_on_host(std::span<const TraceArgs> steps) {
  if (backend() == Backend::reference) {
    return kernels::reference::trace(steps);
  }
  kernels::cpu::trace(steps, torch_executor());
}

void trace_cpu(at::Tensor& trace, const OptionalTensor& segments, const OptionalTensor& row,
               const OptionalTensor& column, const OptionalTensor& order, at::TensorList x, at::TensorList df,
               at::TensorList decay, const OptionalTensors& g, const OptionalTensor& grad, at::TensorList shared,
               double shared_decay) {
  run_on_host(trace_call(trace, segments, row, column, order, x, df, decay, g, grad, shared, shared_decay).checked());
}

void trace_cuda(at::Tensor& trace, const OptionalTensor& segments, const OptionalTensor& row,
                const OptionalTensor& column, const OptionalTensor& order, at::TensorList x, at::TensorList df,
                at::TensorList decay, const OptionalTensors& g, const OptionalTensor& grad, at::TensorList shared,
                double shared_decay) {
  const TraceCall call = trace_call(trace, segments, row, column, order, x, df, decay, g, grad, shared, shared_decay);
  const auto steps = call.checked();
  if (backend() == Backend::reference) {
    const auto host = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; };
    const auto hosts = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> out;
      std::transform(tensors.begin(), tensors.end(), std::back_inserter(out), host);
      return out;
    };
    const at::Tensor trace_copy = trace.cpu();
    const auto& [s, r, c, o, inverse] = call.columns;
    TraceCall copy{trace_copy,
                   {host(s), host(r), host(c), host(o), {}},
                   hosts(call.x),
                   hosts(call.df),
                   hosts(call.decay),
                   call.g,
                   grad ? OptionalTensor(grad->cpu()) : std::nullopt,
                   {hosts(call.shared.u), shared_decay}};
    for (OptionalTensor& each : copy.g) {
      each = each ? OptionalTensor(each->cpu()) : std::nullopt;
    }
    run_on_host(copy.checked());
    trace.copy_(trace_copy);
    if (grad) {
      grad->copy_(*copy.grad);
    }
    return;
  }
  const c10::DeviceGuard guard(trace.device());
  if (trace.size(0) > 0) {
    kernels::cuda::trace(steps, current_stream(trace.device()));
  }
}

/// Sizes may be symbolic here; the kernels check them.
void trace_meta(at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                at::TensorList, at::TensorList, at::TensorList, const OptionalTensors&, const OptionalTensor&,
                at::TensorList, double) {}

CellParams checked_cell(const at::Tensor& y, const at::Tensor& h, const OptionalTensor& betas, at::IntArrayRef flags,
                        at::ArrayRef<double> numbers) {
  const CellParams params = params_from(flags, numbers);
  TORCH_CHECK(y.dim() == 2, "[lacewing.", kCellOp, "] y must have shape (O, B), not ", shape_text(y.sizes()));
  TORCH_CHECK(y.scalar_type() == at::kFloat || y.scalar_type() == at::kDouble, "[lacewing.", kCellOp,
              "] y must be float32 or float64, not ", dtype_text(y.scalar_type()));
  const OptionalTensor state = h;
  check_array(kCellOp, "h", state, {y.size(0), kernels::states_of(params), y.size(1)}, y);
  check_array(kCellOp, "betas", betas, {y.size(0)}, y);
  TORCH_CHECK(y.is_contiguous(), "[lacewing.", kCellOp, "] y must be contiguous, batch last");
  check_memory(kCellOp, "y", y);
  return params;
}

CellArgs cell_args(const CellParams& params, const at::Tensor& y, const at::Tensor& h, const OptionalTensor& betas,
                   const at::Tensor& next) {
  CellArgs args;
  args.params = params;
  args.type = scalar_type(kCellOp, "y", y.scalar_type());
  args.neurons = y.size(0);
  args.batch = y.size(1);
  args.y = y.const_data_ptr();
  args.h = h.const_data_ptr();
  args.beta = data_or_null(betas);
  args.next = next.mutable_data_ptr();
  return args;
}

void run_cell(const CellArgs& args, const at::Device& device) {
  if (device.is_cuda()) {
    const c10::DeviceGuard guard(device);
    return kernels::cuda::cell_step(args, current_stream(device));
  }
  kernels::cpu::cell_step(args, torch_executor());
}

using CellResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

CellResult empty_results(const CellParams& params, const at::Tensor& y) {
  const c10::SymInt states = kernels::states_of(params);
  const c10::SymInt neurons = y.sym_size(0);
  const c10::SymInt batch = y.sym_size(1);
  return {at::empty_symint({neurons, states, batch}, y.options()),
          at::empty_symint({neurons, states, batch}, y.options()),
          at::empty_symint({neurons, states, states, batch}, y.options())};
}

CellResult cell_step(const at::Tensor& y, const at::Tensor& h, const OptionalTensor& betas, at::IntArrayRef flags,
                     at::ArrayRef<double> numbers) {
  const CellParams params = checked_cell(y, h, betas, flags, numbers);
  const CellResult result = empty_results(params, y);
  CellArgs args = cell_args(params, y, h, betas, std::get<0>(result));
  args.df = std::get<1>(result).mutable_data_ptr();
  args.decay = std::get<2>(result).mutable_data_ptr();
  run_cell(args, y.device());
  return result;
}

CellResult cell_step_meta(const at::Tensor& y, const at::Tensor&, const OptionalTensor&, at::IntArrayRef flags,
                          at::ArrayRef<double> numbers) {
  TORCH_CHECK(y.dim() == 2, "[lacewing.", kCellOp, "] y must have shape (O, B), not ", shape_text(y.sym_sizes()));
  return empty_results(params_from(flags, numbers), y);
}

at::Tensor cell_factor(const at::Tensor& y, const at::Tensor& h, const OptionalTensor& betas, at::IntArrayRef flags,
                       at::ArrayRef<double> numbers, at::Tensor& ef, double alpha) {
  const CellParams params = checked_cell(y, h, betas, flags, numbers);
  check_array(kCellOp, "ef", ef, h.sizes(), y);
  at::Tensor next = at::empty(h.sizes(), h.options());
  CellArgs args = cell_args(params, y, h, betas, next);
  args.ef = ef.mutable_data_ptr();
  args.alpha = alpha;
  run_cell(args, y.device());
  return next;
}

at::Tensor cell_factor_meta(const at::Tensor&, const at::Tensor& h, const OptionalTensor&, at::IntArrayRef,
                            at::ArrayRef<double>, at::Tensor&, double) {
  return at::empty_symint(h.sym_sizes(), h.options());
}

OptionalTensor defined_or_none(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

OptionalTensor betas_like(const CellOptions& options, const at::Tensor& y) {
  return options.betas ? OptionalTensor(options.betas->to(y.options()).contiguous()) : std::nullopt;
}

}  // namespace

std::vector<TraceArgs> trace_args(const char* op, std::size_t steps, const at::Tensor& trace,
                                  const SparsePattern::ByColumn& columns, const SharedRows& shared,
                                  const OptionalTensor& grad) {
  TraceArgs args;
  args.type = scalar_type(op, "the trace", trace.scalar_type());
  args.entries = args.columns = trace.size(0);
  args.states = trace.size(1) + (shared.u.empty() ? 0 : 1);
  args.batch = trace.size(2);
  args.trace = trace.mutable_data_ptr();
  if (columns.segments.defined()) {
    args.columns = columns.segments.numel() - 1;
  }
  args.segments = data_of<std::int64_t>(columns.segments);
  args.row = data_of<std::int32_t>(columns.row);
  args.column = data_of<std::int32_t>(columns.column);
  args.order = data_of<std::int64_t>(columns.order);
  args.grad = grad ? grad->mutable_data_ptr() : nullptr;
  args.shared_decay = shared.decay;
  std::vector<TraceArgs> out(steps, args);
  for (std::size_t t = 0; t < steps && !shared.u.empty(); ++t) {
    const bool moves = shared.u.size() > 1;
    out[t].shared_before = moves ? shared.u[t].const_data_ptr() : nullptr;
    out[t].shared_after = shared.u[moves ? t + 1 : t].const_data_ptr();
  }
  return out;
}

void update_trace(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const TraceSteps& steps,
                  const SharedRows& shared, const OptionalTensor& grad) {
  const auto& op = typed_op<"etp_trace_", decltype(trace_cpu)>();
  at::Tensor target = trace;
  OptionalTensors g;
  if (grad) {
    for (const at::Tensor& each : steps.g) {
      g.push_back(defined_or_none(each));
    }
  }
  if (columns == nullptr) {
    return op.call(target, {}, {}, {}, {}, {}, steps.df, steps.decay, g, grad, {}, 0.0);
  }
  const bool rows = !steps.x.empty() || !shared.u.empty();
  op.call(target, columns->segments, rows ? OptionalTensor(columns->row) : std::nullopt, columns->column,
          defined_or_none(columns->order), steps.x, steps.df, steps.decay, g, grad, shared.u, shared.decay);
}

CellResult step_cell(const CellOptions& options, const at::Tensor& y, const at::Tensor& h) {
  const CellParams params = to_params(options);
  return typed_op<"etp_cell_step", decltype(cell_step)>().call(y, h, betas_like(options, y), flags_of(params),
                                                               numbers_of(params));
}

at::Tensor step_cell_factor(const CellOptions& options, const at::Tensor& y, const at::Tensor& h, const at::Tensor& ef,
                            double alpha) {
  const CellParams params = to_params(options);
  at::Tensor target = ef;
  return typed_op<"etp_cell_factor_", decltype(cell_factor)>().call(y, h, betas_like(options, y), flags_of(params),
                                                                    numbers_of(params), target, alpha);
}

std::vector<at::Tensor> call_back(std::int64_t id, const char* what, at::TensorList args) {
  using Signature = std::vector<at::Tensor>(std::int64_t, std::string_view, at::TensorList);
  return typed_op<"etp_callback", Signature>().call(id, what, args);
}

}  // namespace lacewing::etp

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  lacewing::define_dense_op(
      m,
      "etp_trace_(Tensor(a!) trace, Tensor? segments, Tensor? row, Tensor? column, Tensor? order, Tensor[] x, Tensor[] "
      "df, Tensor[] decay, Tensor?[] g, Tensor(b!)? grad, Tensor[] shared, float shared_decay) -> ()",
      {at::Tag::pt2_compliant_tag});
  lacewing::define_dense_op(
      m, "etp_cell_step(Tensor y, Tensor h, Tensor? betas, int[] flags, float[] numbers) -> (Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
  lacewing::define_dense_op(
      m,
      "etp_cell_factor_(Tensor y, Tensor h, Tensor? betas, int[] flags, float[] numbers, Tensor(a!) ef, float alpha) "
      "-> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def("etp_callback(int id, str what, Tensor[] args) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) {
  m.impl("etp_trace_", lacewing::etp::trace_cpu);
  m.impl("etp_cell_step", lacewing::etp::cell_step);
  m.impl("etp_cell_factor_", lacewing::etp::cell_factor);
}

TORCH_LIBRARY_IMPL(lacewing, CUDA, m) {
  m.impl("etp_trace_", lacewing::etp::trace_cuda);
  m.impl("etp_cell_step", lacewing::etp::cell_step);
  m.impl("etp_cell_factor_", lacewing::etp::cell_factor);
}

TORCH_LIBRARY_IMPL(lacewing, Meta, m) {
  m.impl("etp_trace_", lacewing::etp::trace_meta);
  m.impl("etp_cell_step", lacewing::etp::cell_step_meta);
  m.impl("etp_cell_factor_", lacewing::etp::cell_factor_meta);
}
