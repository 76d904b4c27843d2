// The seven products and sparse scale as data: which channel indices their operands have. Which product each gradient
// is follows from them. A new product is a row of the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

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

/// grad x = op(y, gz) over the plans (bwd1, bwd2, fwd), grad y (`second`) = op(gz, x) over (bwd2, fwd, bwd1): the
/// product that has these channels, where a and b may change names. That turns matrices, which operands may be but the
/// result not, so that gradients are contiguous: its operands are exchanged instead.
consteval GradientRule find_gradient_rule(const KindTraits& of, bool second) {
  const auto is_matrix = [](Channels c) { return c.a && c.b; };
  const Channels first_operand = second ? of.z : of.y;
  const Channels second_operand = second ? of.x : of.z;
  const Channels result = second ? of.y : of.x;
  for (const bool exchanged : {false, true}) {
    for (const bool renamed : {false, true}) {
      const auto fits = [&](Channels own, Channels given) {
        return own.a == (renamed ? given.b : given.a) && own.b == (renamed ? given.a : given.b);
      };
      for (std::int64_t i = 0; i < kProducts; ++i) {
        const KindTraits& op = kTraits[static_cast<std::size_t>(i)];
        if (fits(exchanged ? op.y : op.x, first_operand) && fits(exchanged ? op.x : op.y, second_operand) &&
            fits(op.z, result) && !(renamed && is_matrix(result))) {
          return {static_cast<Kind>(i), renamed && is_matrix(first_operand), renamed && is_matrix(second_operand),
                  exchanged};
        }
      }
    }
  }
  throw "the gradient of a product is no product";
}

inline constexpr auto kGradientRules = [] {
  std::array<std::array<GradientRule, 2>, kProducts> rules{};
  [&]<std::size_t... Kinds>(std::index_sequence<Kinds...>) {
    ((rules[Kinds] = {find_gradient_rule(kTraits[Kinds], false), find_gradient_rule(kTraits[Kinds], true)}), ...);
  }(std::make_index_sequence<kProducts>{});
  return rules;
}();

inline const GradientRule& gradient_rule(Kind kind, bool second) {
  return kGradientRules[static_cast<std::size_t>(kind)][second ? 1 : 0];
}

}  // namespace lacewing::products
