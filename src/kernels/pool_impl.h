// PoolKernels over for_each; included where a device's kernels are instantiated. One pass per tap: no row occurs twice
// in a tap, so each entry has one writer and the order of the taps is the order of a sum.
#pragma once

#include <array>

#include <lacewing/dispatch/for_each.h>

#include "kernels/pool.h"

namespace lacewing::kernels {

namespace pool_detail {

template <typename T>
struct TakeLarger {
  const T* x;
  T* y;
  std::int64_t* arg;
  const std::int32_t* source;
  const std::int32_t* target;
  std::int64_t channels;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, const std::array<std::int64_t, 2>& at) const {
    const std::int64_t pair = at.data()[0];
    const std::int64_t to = target[pair] * channels + at.data()[1];
    const auto value = widen(x[source[pair] * channels + at.data()[1]]);
    const auto best = widen(y[to]);
    const bool nan = value != value;
    if (arg[to] < 0 || (nan ? best == best : value > best)) {
      y[to] = narrow<T>(value);
      arg[to] = source[pair];
    }
  }
};

template <typename T>
struct AddToSource {
  const T* grad;
  const std::int64_t* arg;
  T* out;
  const std::int32_t* source;
  const std::int32_t* target;
  std::int64_t channels;

  template <typename Tag>
  LACEWING_HOST_DEVICE void operator()(Tag, const std::array<std::int64_t, 2>& at) const {
    const std::int64_t pair = at.data()[0];
    const std::int64_t from = target[pair] * channels + at.data()[1];
    if (arg[from] == source[pair]) {
      out[source[pair] * channels + at.data()[1]] += grad[from];
    }
  }
};

}  // namespace pool_detail

template <Device Dev>
struct ForEachPoolKernels {
  using Executor = executor_t<Dev>;

  static void max(const Executor& executor, const MaxPoolArgs& args) {
    visit_conv_type(args.type, [&](auto scalar) {
      using T = decltype(scalar);
      for_taps(executor, args.map, args.channels, [&](std::int64_t begin) {
        return pool_detail::TakeLarger<T>{static_cast<const T*>(args.x), static_cast<T*>(args.y), args.arg,
                                          args.map.source + begin,       args.map.target + begin, args.channels};
      });
    });
  }

  static void max_grad(const Executor& executor, const MaxPoolGradArgs& args) {
    const auto run = [&](auto scalar) {
      using T = decltype(scalar);
      for_taps(executor, args.map, args.channels, [&](std::int64_t begin) {
        return pool_detail::AddToSource<T>{static_cast<const T*>(args.grad), args.arg,
                                           static_cast<T*>(args.out),        args.map.source + begin,
                                           args.map.target + begin,          args.channels};
      });
    };
    args.type == ScalarType::f64 ? run(double{}) : run(float{});
  }

  static constexpr PoolKernels<Dev> kernels() { return {max, max_grad}; }

 private:
  template <typename Make>
  static void for_taps(const Executor& executor, const ConvMap& map, std::int64_t channels, Make&& make) {
    for (std::int64_t tap = 0; tap < map.taps; ++tap) {
      const std::int64_t begin = map.tap_offsets[tap];
      const std::array<std::int64_t, 2> box{map.tap_offsets[tap + 1] - begin, channels};
      dispatch::for_each_nd<2>(dispatch::tag<Dev>{}, executor, box, make(begin), 16384);
    }
  }
};

}  // namespace lacewing::kernels
