// The seven products and sparse scale as data: which channel indices their operands have, and which product each
// gradient is. A new product is a row in each table.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/product.h"

namespace lacewing::products {

/// In the order of the tables; `scale` is the product without a second operand.
enum class Kind : std::int64_t { mul, outer, inner, vecmat, vecsca, scavec, mat_t_vec, scale };

inline constexpr std::int64_t kProducts = 7;

/// The channel indices of an operand: none, (a), (b) or (a, b).
struct Channels {
  bool a, b;
  constexpr int count() const { return static_cast<int>(a) + static_cast<int>(b); }
};

struct KindTraits {
  const char* name;  ///< the public op
  Channels x, y, z;
  kernels::Pattern pattern;
  bool mirrored;  ///< the kernel takes the operands exchanged
};

inline constexpr std::array<KindTraits, kProducts + 1> kTraits{{
    {"sparse_mul", {true, false}, {true, false}, {true, false}, kernels::Pattern::mul, false},
    {"sparse_outer", {true, false}, {false, true}, {true, true}, kernels::Pattern::outer, false},
    {"sparse_inner", {true, false}, {true, false}, {false, false}, kernels::Pattern::inner, false},
    {"sparse_vecmat", {true, false}, {true, true}, {false, true}, kernels::Pattern::vecmat, false},
    {"sparse_vecsca", {true, false}, {false, false}, {true, false}, kernels::Pattern::vecsca, false},
    {"sparse_scavec", {false, false}, {true, false}, {true, false}, kernels::Pattern::vecsca, true},
    {"sparse_mat_t_vec", {true, true}, {true, false}, {false, true}, kernels::Pattern::vecmat, true},
    {"sparse_scale", {true, false}, {false, false}, {true, false}, kernels::Pattern::vecsca, false},
}};

inline constexpr const KindTraits& traits(Kind kind) { return kTraits[static_cast<std::size_t>(kind)]; }

/// A gradient as a product of two of {x, y, gz}: `op(first, second)`, a matrix operand transposed where asked. With
/// `exchanged` the operands stand in the order opposite to the rotated plans, which are mirrored for it.
struct GradientRule {
  Kind op;
  bool transpose_first;
  bool transpose_second;
  bool exchanged;
};

/// grad x = op(y, gz) over the plans (bwd1, bwd2, fwd).
inline constexpr std::array<GradientRule, kProducts> kGradientX{{
    {Kind::mul, false, false, false},
    {Kind::vecmat, false, true, false},
    {Kind::vecsca, false, false, false},
    {Kind::mat_t_vec, true, false, false},
    {Kind::scavec, false, false, false},
    {Kind::inner, false, false, false},
    {Kind::outer, false, false, false},
}};

/// grad y = op(gz, x) over the plans (bwd2, fwd, bwd1). For vecmat outer(gz, x)^T is outer(x, gz), exchanged: so the
/// gradient is contiguous.
inline constexpr std::array<GradientRule, kProducts> kGradientY{{
    {Kind::mul, false, false, false},
    {Kind::mat_t_vec, false, false, false},
    {Kind::scavec, false, false, false},
    {Kind::outer, false, false, true},
    {Kind::inner, false, false, false},
    {Kind::vecsca, false, false, false},
    {Kind::vecmat, false, true, false},
}};

}  // namespace lacewing::products
