// How a product is cut into tasks and what scratch it needs. A pure function of the sizes, so that the workspace can be
// told beforehand; the only split that changes an order of summation (parts of n) does not depend on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/shares.h"
#include "kernels/long_sum.h"
#include "kernels/terms.h"

namespace lacewing::kernels::cpu {

/// How a kernel reads the rows of an operand.
enum class Access : std::uint8_t {
  direct,      ///< in place: right type, unit stride, not conjugated
  transposed,  ///< in place: a matrix that is unit-stride in a instead of b
  pack_term,   ///< copied to scratch for each term
  pack_all,    ///< all rows of one n copied to scratch, when their terms outnumber them
};

/// The reading of one operand: its block is a vector of `columns` (rows = 1), or a matrix.
struct SourcePlan {
  Access access = Access::direct;
  std::int64_t block_rows = 1;
  std::int64_t block_columns = 1;
  std::int64_t scratch = 0;  ///< elements of the accumulate type

  std::int64_t block() const { return block_rows * block_columns; }
};

/// Rows of one n that pack_all may copy: a share of the second-level cache.
inline constexpr std::int64_t kPackAllBytes = 512 * 1024;
/// Multiply-adds below which a second thread costs more than it brings.
inline constexpr std::int64_t kSerialWork = 1 << 15;
/// Tasks to aim for: enough to balance, few enough to be cheap.
inline constexpr std::int64_t kTasks = 64;
/// With fewer rows than this a sum over n is cut into parts, so that there is work for several threads.
inline constexpr std::int64_t kRowsForThreads = 32;
inline constexpr std::int64_t kMaxParts = 16;

inline std::int64_t accumulate_size(ScalarType type) {
  switch (type) {
    case ScalarType::f64:
    case ScalarType::c64: return 8;
    case ScalarType::c128: return 16;
    default: return 4;
  }
}

inline bool is_narrow(ScalarType type) { return type == ScalarType::f16 || type == ScalarType::bf16; }

/// A vector operand (over one channel index of `extent` entries at `stride`), read term by term or packed.
inline SourcePlan plan_vector(const ProductArgs& args, const Operand& operand, std::int64_t extent, std::int64_t stride,
                              bool reuse) {
  SourcePlan plan{Access::direct, 1, extent, 0};
  if (operand.data == nullptr || (!is_narrow(args.type) && !operand.conjugate && (stride == 1 || extent <= 1))) {
    return plan;
  }
  const bool all =
      reuse && args.terms.terms >= operand.rows && operand.rows * extent * accumulate_size(args.type) <= kPackAllBytes;
  plan.access = all ? Access::pack_all : Access::pack_term;
  plan.scratch = all ? operand.rows * extent : extent;
  return plan;
}

/// A matrix operand over (a, b).
inline SourcePlan plan_matrix(const ProductArgs& args, const Operand& operand, bool reuse) {
  SourcePlan plan{Access::direct, args.extent_a, args.extent_b, 0};
  if (!is_narrow(args.type) && !operand.conjugate) {
    if (operand.stride_b == 1 || args.extent_b <= 1) {
      return plan;
    }
    if (operand.stride_a == 1 || args.extent_a <= 1) {
      plan.access = Access::transposed;
      return plan;
    }
  }
  const std::int64_t block = args.extent_a * args.extent_b;
  const bool all =
      reuse && args.terms.terms >= operand.rows && operand.rows * block * accumulate_size(args.type) <= kPackAllBytes;
  plan.access = all ? Access::pack_all : Access::pack_term;
  plan.scratch = all ? operand.rows * block : block;
  return plan;
}

/// Folded vectors that are kept at a time: runs of a row of an outer product, rows that share a matrix.
inline constexpr std::int64_t kFolds = 64;

/// Everything about a call that is settled before it runs.
struct Schedule {
  SourcePlan x, y, z;             ///< z only for the gradient of scale
  bool folds = false;             ///< terms that share a row of an operand are added up before they meet it
  std::int64_t scratch = 0;       ///< elements for each thread
  std::int64_t parts = 1;         ///< parts of n whose sums are added at the end, in order
  std::int64_t row_elements = 1;  ///< elements of z for each row
  std::int64_t work = 0;          ///< multiply-adds

  std::int64_t workspace(const ProductArgs& args, int threads) const {
    const std::int64_t partial = parts > 1 ? parts * args.terms.rows * row_elements : 0;
    return (scratch * threads + partial) * accumulate_size(args.type);
  }
  int threads(const CpuExecutor& executor) const { return work < kSerialWork ? 1 : executor.max_threads(); }
};

inline bool has_long_row(const Terms& terms) {
  const auto any = [&](const auto* segments) {
    return segments != nullptr && std::adjacent_find(segments, segments + terms.rows + 1, [](auto begin, auto end) {
                                    return end - begin > kSumBlock;
                                  }) != segments + terms.rows + 1;
  };
  return terms.wide ? any(static_cast<const std::int64_t*>(terms.segments))
                    : any(static_cast<const std::int32_t*>(terms.segments));
}

/// Whether adding up before multiplying pays: small structure, a batch, and channels in two indices. Sums in memory are
/// not those of long rows.
inline bool should_fold(const ProductArgs& args) {
  if (args.terms.by_index2 == nullptr || args.accumulate || args.batch < 4) {
    return false;
  }
  const std::int64_t row_bytes = args.extent_b * accumulate_size(args.type);
  switch (args.pattern) {
    case Pattern::outer:
      return args.terms.terms > args.terms.rows && args.extent_a > 1 && args.extent_b > 1 && !has_long_row(args.terms);
    case Pattern::vecmat:
      return args.terms.terms >= 2 * args.y.rows && args.extent_a > 1 && args.extent_b > 1 &&
             args.terms.rows * row_bytes <= kPackAllBytes && !has_long_row(args.terms);
    default: return false;
  }
}

/// What folding needs for each thread beside the rows it reads: folded vectors, and sums of z where it
/// cannot hold them itself.
inline std::int64_t fold_scratch(const ProductArgs& args) {
  if (args.pattern == Pattern::outer) {
    return kFolds * std::max(args.extent_a, args.extent_b) + (is_narrow(args.type) ? args.extent_a * args.extent_b : 0);
  }
  return kFolds * args.extent_a + args.terms.rows * args.extent_b;
}

inline Schedule schedule_product(const ProductArgs& args) {
  Schedule plan;
  const bool reuse = !args.accumulate;
  plan.x = plan_vector(args, args.x, args.extent_a, args.x.stride_a, reuse);
  switch (args.pattern) {
    case Pattern::mul:
      plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, reuse);
      plan.row_elements = args.extent_a;
      break;
    case Pattern::outer:
      plan.y = plan_vector(args, args.y, args.extent_b, args.y.stride_b, reuse);
      plan.row_elements = args.extent_a * args.extent_b;
      break;
    case Pattern::inner: plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, reuse); break;
    case Pattern::vecmat:
      plan.y = plan_matrix(args, args.y, reuse);
      plan.row_elements = args.extent_b;
      break;
    case Pattern::vecsca: plan.row_elements = args.extent_a; break;
  }
  plan.folds = should_fold(args);
  if (plan.folds && args.pattern == Pattern::vecmat && plan.y.access == Access::transposed) {
    // Each matrix serves many rows: turned once, it is read along its rows.
    plan.y.access = Access::pack_term;
    plan.y.scratch = plan.y.block();
  }
  if (plan.folds && args.pattern == Pattern::outer &&
      (args.terms.mirrored ? plan.y : plan.x).access == Access::pack_term) {
    plan.folds = false;  // the rows of a whole output row are read at a time
  }
  plan.scratch = plan.x.scratch + plan.y.scratch + (plan.folds ? fold_scratch(args) : 0);
  plan.work = args.batch * std::max(args.terms.terms, args.terms.rows) * args.extent_a * args.extent_b;
  if (args.accumulate && args.terms.rows > 0 && args.terms.rows < kRowsForThreads && plan.work > kSerialWork) {
    plan.parts = std::clamp<std::int64_t>(kRowsForThreads / args.terms.rows, 1, std::min(kMaxParts, args.batch));
  }
  return plan;
}

inline Schedule schedule_scale_grad(const ProductArgs& args) {
  Schedule plan;
  plan.x = plan_vector(args, args.x, args.extent_a, args.x.stride_a, false);
  switch (args.pattern) {
    case Pattern::mul:
      plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, false);
      plan.z = plan_vector(args, args.z, args.extent_a, args.z.stride_a, false);
      break;
    case Pattern::outer:
      plan.y = plan_vector(args, args.y, args.extent_b, args.y.stride_b, false);
      plan.z = plan_matrix(args, args.z, false);
      break;
    case Pattern::inner: plan.y = plan_vector(args, args.y, args.extent_a, args.y.stride_a, false); break;
    case Pattern::vecmat:
      plan.y = plan_matrix(args, args.y, false);
      plan.z = plan_vector(args, args.z, args.extent_b, args.z.stride_b, false);
      break;
    case Pattern::vecsca: plan.z = plan_vector(args, args.z, args.extent_a, args.z.stride_a, false); break;
  }
  plan.scratch = plan.x.scratch + plan.y.scratch + plan.z.scratch;
  plan.work = args.batch * args.terms.terms * args.extent_a * args.extent_b;
  return plan;
}

/// The first row of a share of the terms.
template <typename Index>
std::int64_t row_boundary(const TermsView<Index>& terms, std::int64_t share, std::int64_t shares) {
  if (terms.segments == nullptr) {
    return terms.rows * share / shares;
  }
  return share_boundary(terms.rows, share, shares, [&](std::int64_t row) { return terms.begin(row); });
}

}  // namespace lacewing::kernels::cpu
