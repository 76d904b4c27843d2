#include "etp/cell_params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing::etp {
namespace {

using kernels::CellKind;
using kernels::CellParams;
using kernels::Reset;
using kernels::Surrogate;

constexpr const char* kCell = "etp.Cell";

/// The place of a name in a list; the sentence names them all.
template <std::size_t N>
std::size_t place(const char* op, const char* argument, std::string_view name,
                  const std::array<std::string_view, N>& names) {
  std::string all;
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) {
      return i;
    }
    all += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(names[i]);
  }
  TORCH_CHECK(false, "[lacewing.", op, "] ", argument, " must be ", all, ", not ", name);
}

void check_decay(const char* argument, double value) {
  TORCH_CHECK(value >= 0 && value <= 1, "[lacewing.", kCell, "] ", argument, " must be between 0 and 1, not ", value);
}

void check_finite(const char* argument, double value) {
  TORCH_CHECK(std::isfinite(value), "[lacewing.", kCell, "] ", argument, " must be finite, not ", value);
}

constexpr std::array<double CellParams::*, 11> kNumbers{
    &CellParams::membrane,   &CellParams::adaptation, &CellParams::filter,         &CellParams::threshold,
    &CellParams::beta,       &CellParams::gain,       &CellParams::width,          &CellParams::gate_input,
    &CellParams::gate_state, &CellParams::gate_bias,  &CellParams::candidate_state};

}  // namespace

Surrogate surrogate_named(const char* op, std::string_view name) {
  constexpr std::array<std::string_view, 5> names{"triangle", "fast_sigmoid", "arctan", "gaussian", "boxcar"};
  return static_cast<Surrogate>(place(op, "surrogate", name, names));
}

CellParams to_params(const CellOptions& options) {
  constexpr std::array<std::string_view, 4> kinds{"leaky", "lif", "alif", "gated"};
  constexpr std::array<std::string_view, 3> resets{"subtract", "to_zero", "none"};
  check_decay("membrane", options.membrane);
  check_decay("adaptation", options.adaptation);
  check_decay("filter", options.filter);
  check_finite("threshold", options.threshold);
  check_finite("beta", options.beta);
  check_finite("gain", options.gain);
  check_finite("gate_input", options.gate_input);
  check_finite("gate_state", options.gate_state);
  check_finite("gate_bias", options.gate_bias);
  check_finite("candidate_state", options.candidate_state);
  TORCH_CHECK(options.width > 0, "[lacewing.", kCell, "] width must be positive, not ", options.width);
  CellParams params;
  params.kind = static_cast<CellKind>(place(kCell, "kind", options.kind, kinds));
  params.surrogate = surrogate_named(kCell, options.surrogate);
  params.reset = static_cast<Reset>(place(kCell, "reset", options.reset, resets));
  params.reset_gradient = options.reset_gradient;
  const bool spikes = params.kind == CellKind::lif || params.kind == CellKind::alif;
  TORCH_CHECK(spikes || !options.filtered, "[lacewing.", kCell, "] filtered is for spiking cells, and ", options.kind,
              " is none");
  params.filtered = options.filtered;
  params.membrane = options.membrane;
  params.adaptation = options.adaptation;
  params.filter = options.filter;
  params.threshold = options.threshold;
  params.beta = options.beta;
  params.gain = options.gain;
  params.width = options.width;
  params.gate_input = options.gate_input;
  params.gate_state = options.gate_state;
  params.gate_bias = options.gate_bias;
  params.candidate_state = options.candidate_state;
  if (options.betas) {
    TORCH_CHECK(params.kind == CellKind::alif && options.betas->dim() == 1, "[lacewing.", kCell,
                "] betas must be (O,) and belong to an alif cell, not shape ", shape_text(options.betas->sizes()),
                " for ", options.kind);
    TORCH_CHECK(at::isFloatingType(options.betas->scalar_type()) ||
                    at::isIntegralType(options.betas->scalar_type(), /*includeBool=*/false),
                "[lacewing.", kCell, "] betas must be real numbers, not ", dtype_text(options.betas->scalar_type()));
  }
  return params;
}

void check_by_neuron(const CellOptions& options) {
  const std::map<std::string_view, std::vector<std::string_view>> known{
      {"leaky", {"membrane"}},
      {"lif", {"membrane", "threshold", "filter"}},
      {"alif", {"membrane", "threshold", "filter", "adaptation"}},
      {"gated", {"gate_input", "gate_state", "gate_bias", "candidate_state"}}};
  for (const auto& [name, values] : options.by_neuron) {
    const auto& names = known.at(options.kind);
    TORCH_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "[lacewing.", kCell, "] ", name, " of ",
                options.kind, " cannot be one for each neuron");
    TORCH_CHECK(values.defined() && values.dim() <= 1 && at::isFloatingType(values.scalar_type()), "[lacewing.", kCell,
                "] ", name, " must be a floating tensor of shape (O,) or (), not ",
                values.defined() ? shape_text(values.sizes()) + ", " + dtype_text(values.scalar_type()) : "undefined");
    TORCH_CHECK(at::isfinite(values).all().item<bool>(), "[lacewing.", kCell, "] ", name, " must be finite");
    const bool decays = name == "membrane" || name == "filter" || name == "adaptation";
    TORCH_CHECK(!decays || values.ge(0).logical_and(values.le(1)).all().item<bool>(), "[lacewing.", kCell, "] ", name,
                " must be between 0 and 1");
  }
}

std::vector<std::int64_t> flags_of(const CellParams& params) {
  return {static_cast<std::int64_t>(params.kind), static_cast<std::int64_t>(params.surrogate),
          static_cast<std::int64_t>(params.reset), params.reset_gradient ? 1 : 0, params.filtered ? 1 : 0};
}

std::vector<double> numbers_of(const CellParams& params) {
  std::vector<double> numbers;
  for (const auto field : kNumbers) {
    numbers.push_back(params.*field);
  }
  return numbers;
}

CellParams params_from(at::IntArrayRef flags, at::ArrayRef<double> numbers) {
  TORCH_CHECK(flags.size() == 5 && numbers.size() == kNumbers.size(), "[lacewing.", kCell,
              "] a cell is 5 flags and 11 numbers, not ", flags.size(), " and ", numbers.size());
  TORCH_CHECK(flags[0] >= 0 && flags[0] < 4 && flags[1] >= 0 && flags[1] < 5 && flags[2] >= 0 && flags[2] < 3,
              "[lacewing.", kCell, "] there is no cell with flags ", flags);
  CellParams params;
  params.kind = static_cast<CellKind>(flags[0]);
  params.surrogate = static_cast<Surrogate>(flags[1]);
  params.reset = static_cast<Reset>(flags[2]);
  params.reset_gradient = flags[3] != 0;
  params.filtered = flags[4] != 0;
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    params.*kNumbers[i] = numbers[i];
  }
  return params;
}

}  // namespace lacewing::etp
