// What probes of cells and rules have in common: random numbers, and when two results are the same.
#pragma once

#include <cstdint>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randn.h>

#include "etp/learning.h"

namespace lacewing::etp {

constexpr int kDraws = 3;
constexpr std::int64_t kProbeBatch = 3;

/// The rounding and the smallest normal number of a dtype.
struct Precision {
  double epsilon;
  double smallest;
};

template <typename T>
constexpr Precision precision_of{std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::min()};

inline Precision precision(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return {0x1p-10, 0x1p-14};
    case at::kBFloat16: return {0x1p-7, std::numeric_limits<float>::min()};
    case at::kFloat: return precision_of<float>;
    default: return precision_of<double>;
  }
}

/// Position by position, so that no large derivative hides a small one. A backward pass is linear, and signs and powers
/// of two are exact: where positions do not mix, both are equal to the last bit, short of subnormal numbers.
inline bool close(const at::Tensor& a, const at::Tensor& b) {
  const auto [epsilon, smallest] = precision(a.scalar_type());
  const at::Tensor wide_a = a.to(at::kDouble);
  const at::Tensor wide_b = b.to(at::kDouble);
  const at::Tensor room = 16 * epsilon * at::maximum(wide_a.abs(), wide_b.abs()) + 1024 * epsilon * smallest;
  return (wide_a - wide_b).abs().le(room).all().item<bool>();
}

/// The same numbers in every run and on every device.
class Draws {
 public:
  explicit Draws(at::TensorOptions options) : options_(options) {}

  at::Tensor operator()(at::IntArrayRef sizes) {
    return at::randn(sizes, generator_, at::TensorOptions().dtype(at::kDouble)).to(options_);
  }
  /// Signs, with magnitudes of 1, 2, ... 128: two positions that mix hardly ever draw the same in all rounds.
  at::Tensor factors(at::IntArrayRef sizes) {
    return (*this)(sizes).sign() * ((*this)(sizes).abs() * 4).floor().clamp_max(7).exp2();
  }
  /// The values of a connection as constants, each moved by random numbers of this size.
  Values values(const Connection& connection, double size) {
    Values out = detached(connection);
    for (auto& [key, tensor] : out) {
      tensor = tensor + size * (*this)(tensor.sizes());
    }
    return out;
  }

 private:
  at::TensorOptions options_;
  at::Generator generator_ = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{20261115});
};

}  // namespace lacewing::etp
