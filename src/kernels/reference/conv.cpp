// The oracle of sparse convolution: serial, pair by pair, straight from the formula.
#include "kernels/conv.h"

#include <vector>

namespace lacewing::kernels::reference {
namespace {

/// Calls f(tap, source row, target row) for every pair, tap after tap.
template <typename F>
void for_pairs(const ConvMap& map, F&& f) {
  for (std::int64_t tap = 0; tap < map.taps; ++tap) {
    for (std::int64_t p = map.tap_offsets[tap]; p < map.tap_offsets[tap + 1]; ++p) {
      f(tap, map.source[p], map.target[p]);
    }
  }
}

/// An entry of a row of sums, finished.
template <typename T>
accumulate_t<T> finished(const ConvFinish& finish, accumulate_t<T> sum, std::int64_t row, std::int64_t column) {
  using Acc = accumulate_t<T>;
  if (finish.scale != nullptr) {
    sum = sum * static_cast<const Acc*>(finish.scale)[column] + static_cast<const Acc*>(finish.shift)[column];
  }
  if (finish.residual != nullptr) {
    sum += widen(static_cast<const T*>(finish.residual)[row * finish.residual_stride + column]);
  }
  return finish.relu && sum < 0 ? Acc{} : sum;
}

template <typename T>
void conv_typed(const ConvArgs& args) {
  using Acc = accumulate_t<T>;
  const std::int64_t width = args.groups * args.out;
  std::vector<Acc> sums(static_cast<std::size_t>(args.map.target_rows * width), Acc{});
  const T* const x = static_cast<const T*>(args.x);
  const T* const weight = static_cast<const T*>(args.weight);
  for_pairs(args.map, [&](std::int64_t tap, std::int64_t source, std::int64_t target) {
    for (std::int64_t g = 0; g < args.groups; ++g) {
      const T* const matrix = weight + (tap * args.groups + g) * args.in * args.out;
      for (std::int64_t o = 0; o < args.out; ++o) {
        Acc sum{};
        for (std::int64_t i = 0; i < args.in; ++i) {
          const T w = args.transposed ? matrix[o * args.in + i] : matrix[i * args.out + o];
          sum += widen(x[source * args.x_stride + g * args.in + i]) * widen(w);
        }
        sums[static_cast<std::size_t>(target * width + g * args.out + o)] += sum;
      }
    }
  });
  for (std::int64_t row = 0; row < args.map.target_rows; ++row) {
    for (std::int64_t c = 0; c < width; ++c) {
      const Acc bias = args.bias != nullptr ? widen(static_cast<const T*>(args.bias)[c]) : Acc{};
      const Acc sum = bias + sums[static_cast<std::size_t>(row * width + c)];
      static_cast<T*>(args.y)[row * width + c] = narrow<T>(finished<T>(args.finish, sum, row, c));
    }
  }
}

template <typename T>
void weight_grad_typed(const ConvWeightGradArgs& args) {
  using Acc = accumulate_t<T>;
  const std::int64_t matrix = args.in * args.out;
  std::vector<Acc> sums(static_cast<std::size_t>(args.map.taps * args.groups * matrix), Acc{});
  for_pairs(args.map, [&](std::int64_t tap, std::int64_t source, std::int64_t target) {
    const T* const x = static_cast<const T*>(args.x) + source * args.x_stride;
    const T* const grad = static_cast<const T*>(args.grad) + target * args.grad_stride;
    for (std::int64_t g = 0; g < args.groups; ++g) {
      for (std::int64_t i = 0; i < args.in; ++i) {
        for (std::int64_t o = 0; o < args.out; ++o) {
          sums[static_cast<std::size_t>((tap * args.groups + g) * matrix + i * args.out + o)] +=
              widen(x[g * args.in + i]) * widen(grad[g * args.out + o]);
        }
      }
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    static_cast<T*>(args.weight_grad)[i] = narrow<T>(sums[i]);
  }
}

}  // namespace

void conv(const ConvArgs& args) {
  visit_conv_type(args.type, [&](auto scalar) { conv_typed<decltype(scalar)>(args); });
}

void conv_weight_grad(const ConvWeightGradArgs& args) {
  visit_conv_type(args.type, [&](auto scalar) { weight_grad_typed<decltype(scalar)>(args); });
}

}  // namespace lacewing::kernels::reference
