#include "etp/fused.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "etp/cell_params.h"
#include "etp/checks.h"
#include "kernels/cell.h"
#include "kernels/factor.h"

namespace lacewing::etp {
namespace {

constexpr const char* kStep = "etp.step";

const void* read(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

void* written(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }

/// The cell, its neurons and their state h (O, S, B).
template <typename Args>
Args neurons_of(const CellOptions& options, const at::Tensor& betas, const at::Tensor& h) {
  Args args;
  args.params = to_params(options);
  args.type = scalar_type(kStep, "the state", h.scalar_type());
  args.neurons = h.size(0);
  args.batch = h.size(2);
  args.h = h.const_data_ptr();
  args.beta = read(betas);
  return args;
}

kernels::SpikeGradientArgs spike_gradient_args(const CellOptions& options, const at::Tensor& betas, const at::Tensor& h,
                                               const at::Tensor& gz) {
  auto args = neurons_of<kernels::SpikeGradientArgs>(options, betas, h);
  args.gz = gz.const_data_ptr();
  args.gz_neuron = gz.stride(0);
  args.gz_batch = gz.stride(1);
  return args;
}

}  // namespace

at::Tensor Buffers::take(at::IntArrayRef sizes, const at::TensorOptions& options) {
  for (const at::Tensor& each : kept_) {
    if (each.sizes() == sizes && each.scalar_type() == options.dtype() && each.use_count() == 1 &&
        each.storage().use_count() == 1) {
      return each;
    }
  }
  if (kept_.size() == most_) {
    kept_.erase(kept_.begin());
  }
  kept_.push_back(at::empty(sizes, options));
  return kept_.back();
}

bool runs_fused(const std::vector<Part>& parts, const at::Tensor& like) {
  return like.is_cpu() && (like.scalar_type() == at::kFloat || like.scalar_type() == at::kDouble) &&
         backend() != Backend::reference && std::all_of(parts.begin(), parts.end(), [](const Part& part) {
           const auto& values = part.connection.trainable;
           return part.connection.primitive->pattern() != nullptr &&
                  std::all_of(values.begin(), values.end(),
                              [](const auto& value) { return value.second.is_contiguous(); });
         });
}

void check_values(const char* op, const std::vector<Part>& parts, const at::Tensor& like) {
  for (const Part& part : parts) {
    part.connection.primitive->check(part.connection.trainable);
    for (const auto& [key, tensor] : part.connection.trainable) {
      const std::string name = part.name + "." + key;
      check_same_dtype(op, name.c_str(), tensor, "the state", like);
      check_memory(op, name.c_str(), tensor);
    }
  }
}

at::Tensor betas_of(const CellOptions& options, const at::Tensor& like) {
  return options.betas ? options.betas->to(like.options()).contiguous() : at::Tensor();
}

void step_fused(const CellOptions& options, const std::vector<Part>& parts, const FusedStep& step) {
  auto args = neurons_of<kernels::CellArgs>(options, step.betas, step.h);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SparsePattern::ByColumn& columns = parts[i].connection.primitive->pattern()->by_column();
    const Values& values = parts[i].connection.trainable;
    kernels::CellInput& input = args.inputs[args.input_count++];
    input.segments = data_of<std::int64_t>(columns.segments);
    input.row = data_of<std::int32_t>(columns.row);
    input.order = data_of<std::int64_t>(columns.order);
    input.weight = values.at("weight").const_data_ptr();
    if (const auto bias = values.find("bias"); bias != values.end()) {
      input.bias = bias->second.const_data_ptr();
    }
    input.x = step.x[i].const_data_ptr();
  }
  args.next = written(step.next);
  args.sum = written(step.y);
  args.z = written(step.z);
  args.ef = written(step.ef);
  args.alpha = step.alpha;
  kernels::cpu::cell_step(args, torch_executor());
}

void spike_gradient_fused(const CellOptions& options, const at::Tensor& h, const at::Tensor& gz, const at::Tensor& g) {
  const at::Tensor betas = betas_of(options, h);
  kernels::SpikeGradientArgs args = spike_gradient_args(options, betas, h, gz);
  args.g = g.mutable_data_ptr();
  kernels::cpu::spike_gradient(args, torch_executor());
}

void absorb_fused(const at::Tensor& trace, const SparsePattern::ByColumn* columns, const SharedRows& shared,
                  std::span<const Taken> steps, std::size_t part, const OptionalTensor& grad) {
  constexpr const char* op = "etp.backward";
  if (grad) {
    check_shape(op, "grad", *grad, {trace.size(0)});
    check_same_dtype(op, "grad", *grad, "the trace", trace);
    check_memory(op, "grad", *grad);
  }
  auto args =
      trace_args(op, steps.size(), trace, columns != nullptr ? *columns : SparsePattern::ByColumn{}, shared, grad);
  std::vector<kernels::CellArgs> cells(steps.size());
  std::vector<kernels::SpikeGradientArgs> spikes(steps.size());
  for (std::size_t t = 0; t < steps.size(); ++t) {
    const CellStep& fused = steps[t].fused;
    args[t].x = columns != nullptr && shared.u.empty() ? steps[t].x[part].const_data_ptr() : nullptr;
    args[t].df = read(steps[t].jacobian.df);
    args[t].decay = read(steps[t].jacobian.decay);
    if (fused.before.defined()) {
      cells[t] = neurons_of<kernels::CellArgs>(*fused.cell, fused.betas, fused.before.h());
      cells[t].y = read(fused.y);
      args[t].cell = &cells[t];
    }
    if (grad) {
      args[t].g = read(steps[t].g);
      if (fused.gz.defined()) {
        spikes[t] = spike_gradient_args(*fused.cell, fused.betas, fused.after.h(), fused.gz);
        args[t].spikes = &spikes[t];
      }
    }
  }
  kernels::cpu::trace(args, torch_executor());
}

void contract_fused(const std::vector<Part>& parts, const std::vector<at::Tensor>& x, const at::Tensor& ef,
                    const Gradient& g, double factor, double bias_factor) {
  check_values("etp.backward", parts, ef);
  kernels::FactorArgs args;
  args.type = scalar_type("etp.backward", "the trace", ef.scalar_type());
  args.neurons = ef.size(0);
  args.states = ef.size(1);
  args.batch = ef.size(2);
  args.ef = ef.const_data_ptr();
  std::vector<at::Tensor> held;
  for (std::int64_t a = 0; a < args.states; ++a) {
    if (const at::Tensor each = g.state(a); each.defined()) {
      held.push_back(each);
      args.g[a] = {each.const_data_ptr(), each.stride(0), each.stride(1)};
    }
  }
  args.factor = factor;
  args.bias_factor = bias_factor;
  std::vector<GradientSink> sinks;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SparsePattern::ByColumn& columns = parts[i].connection.primitive->pattern()->by_column();
    kernels::FactorPart& part = args.parts[args.part_count++];
    part.segments = data_of<std::int64_t>(columns.segments);
    part.row = data_of<std::int32_t>(columns.row);
    part.column = data_of<std::int32_t>(columns.column);
    part.order = data_of<std::int64_t>(columns.order);
    part.x = x[i].const_data_ptr();
    for (const auto& [key, leaf] : parts[i].connection.trainable) {
      sinks.emplace_back(leaf);
      (key == "bias" ? part.bias_grad : part.grad) = sinks.back().sum().mutable_data_ptr();
    }
  }
  kernels::cpu::contract_factors(args, torch_executor());
  for (const GradientSink& sink : sinks) {
    sink.arrive();
  }
}

}  // namespace lacewing::etp
