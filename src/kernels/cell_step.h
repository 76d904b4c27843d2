// One step of one neuron, written once: over dual numbers, so that its derivatives come with its value. V is a number
// or a vector of numbers T, on the host or the device.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cell.h"

#define LACEWING_CELL LACEWING_HOST_DEVICE inline __attribute__((always_inline))

namespace lacewing::kernels {

/// f at each lane of v.
template <typename T, typename V, typename F>
LACEWING_CELL V each_lane(V v, F f) {
  if constexpr (std::is_same_v<T, V>) {
    return f(v);
  } else {
    for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(T)); ++i) {
      v[i] = f(v[i]);
    }
    return v;
  }
}

/// A value and its derivatives for N variables.
template <typename T, typename V, int N>
struct Dual {
  V value;
  V d[N];

  static LACEWING_CELL Dual constant(V value) {
    Dual out{};
    out.value = value;
    return out;
  }
  static LACEWING_CELL Dual variable(V value, int i) {
    Dual out = constant(value);
    out.d[i] = V{} + T{1};
    return out;
  }

  /// A function of this whose value and slope are known here.
  LACEWING_CELL Dual chain(V f, V slope) const {
    Dual out;
    out.value = f;
    for (int i = 0; i < N; ++i) {
      out.d[i] = slope * d[i];
    }
    return out;
  }

  friend LACEWING_CELL Dual operator+(const Dual& a, const Dual& b) {
    Dual out;
    out.value = a.value + b.value;
    for (int i = 0; i < N; ++i) {
      out.d[i] = a.d[i] + b.d[i];
    }
    return out;
  }
  friend LACEWING_CELL Dual operator-(const Dual& a, const Dual& b) { return a + b.chain(-b.value, V{} - T{1}); }
  friend LACEWING_CELL Dual operator*(const Dual& a, const Dual& b) {
    Dual out;
    out.value = a.value * b.value;
    for (int i = 0; i < N; ++i) {
      out.d[i] = a.d[i] * b.value + a.value * b.d[i];
    }
    return out;
  }
  friend LACEWING_CELL Dual operator*(V s, const Dual& a) { return a.chain(s * a.value, s); }
  friend LACEWING_CELL Dual operator+(const Dual& a, V s) {
    Dual out = a;
    out.value = out.value + s;
    return out;
  }
};

template <typename T, typename V>
LACEWING_CELL V sigmoid(V x) {
  return each_lane<T>(x, [](T t) { return T{1} / (T{1} + std::exp(-t)); });
}

/// The derivative that stands for that of the step function at x; gain at x = 0 for all of them.
template <typename T, typename V>
LACEWING_CELL V surrogate_slope(const CellParams& params, V x) {
  const V zero = V{};
  const V one = zero + T{1};
  const V gain = zero + static_cast<T>(params.gain);
  const V u = x * static_cast<T>(1 / params.width);
  const V size = u < zero ? -u : u;
  switch (params.surrogate) {
    case Surrogate::triangle: return size >= one ? zero : gain * (one - size);  // NaN stays NaN
    case Surrogate::fast_sigmoid: return gain / ((one + size) * (one + size));
    case Surrogate::arctan: return gain / (one + u * u);
    case Surrogate::gaussian: return gain * each_lane<T>(V(u * u), [](T t) { return std::exp(T{-0.5} * t); });
    case Surrogate::boxcar: return size < one ? gain : zero;
  }
  return zero;
}

/// h'(y, h) of one neuron. `h` and `next` have states_of(params) entries.
template <typename T, typename V, int N, int States>
LACEWING_CELL void neuron_step(const CellParams& params, V beta, const Dual<T, V, N>& y, const Dual<T, V, N>* h,
                               Dual<T, V, N>* next) {
  using D = Dual<T, V, N>;
  const V zero = V{};
  const V one = zero + T{1};
  const V membrane = zero + static_cast<T>(params.membrane);
  const V threshold = zero + static_cast<T>(params.threshold);
  const auto spike = [&](const D& x) {
    return x.chain(x.value > zero ? one : zero, surrogate_slope<T>(params, x.value));
  };
  switch (params.kind) {
    case CellKind::leaky: next[0] = membrane * h[0] + y; return;
    case CellKind::gated: {
      const D z_in = (zero + static_cast<T>(params.gate_input)) * y +
                     (zero + static_cast<T>(params.gate_state)) * h[0] + (zero + static_cast<T>(params.gate_bias));
      const V z_value = sigmoid<T>(z_in.value);
      const D z = z_in.chain(z_value, z_value * (one - z_value));
      const D n_in = y + (zero + static_cast<T>(params.candidate_state)) * h[0];
      const V n_value = each_lane<T>(n_in.value, [](T t) { return std::tanh(t); });
      const D n = n_in.chain(n_value, one - n_value * n_value);
      next[0] = h[0] + z * (n - h[0]);
      return;
    }
    case CellKind::lif:
    case CellKind::alif: break;
  }
  const bool adapts = States >= 2 && params.kind == CellKind::alif;
  // The spike of a state: over the threshold, which the adaptation raises.
  const auto spike_of = [&](const D* state) {
    const D over = state[0] + (zero - threshold);
    return spike(adapts ? over + (zero - beta) * state[States >= 2 ? 1 : 0] : over);
  };
  const D z = spike_of(h);
  const D reset = params.reset_gradient ? z : D::constant(z.value);
  switch (params.reset) {
    case Reset::subtract: next[0] = membrane * h[0] + y + (zero - threshold) * reset; break;
    case Reset::to_zero: next[0] = membrane * (h[0] - h[0] * reset) + y; break;
    case Reset::none: next[0] = membrane * h[0] + y; break;
  }
  if (adapts) {
    next[States >= 2 ? 1 : 0] = (zero + static_cast<T>(params.adaptation)) * h[States >= 2 ? 1 : 0] + z;
  }
  if (States >= 2 && params.filtered) {
    const V filter = zero + static_cast<T>(params.filter);
    next[States - 1] = filter * h[States - 1] + (one - filter) * spike_of(next);
  }
}

/// Calls f(std::integral_constant<int, States>) for the cell at hand.
template <typename F>
void visit_states(const CellParams& params, F&& f) {
  switch (states_of(params)) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    default: return f(std::integral_constant<int, 3>{});
  }
}

}  // namespace lacewing::kernels
