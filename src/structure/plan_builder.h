// Building plans. Torch-free: the caller checks the fields first (src/product/plan_ops.cpp) and gives the memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "structure/plan_views.h"

namespace lacewing::structure {

/// The array of a plan about to be filled: `length` integers, int64 where wide and int32 otherwise.
using Allocate = std::function<void*(std::int64_t length, bool wide)>;

/// Indices as the user gave them: null is absent.
struct Triples {
  const std::int64_t* index1 = nullptr;
  const std::int64_t* index2 = nullptr;
  const std::int64_t* row = nullptr;
  std::int64_t count = 0;
  std::int64_t limit1 = 0;  ///< one more than the largest index (count where absent)
  std::int64_t limit2 = 0;
  std::int64_t limit_row = 0;
  bool unary = false;  ///< sparse scale: there is no second input
};

/// One request: a view and the rows of its output.
struct Request {
  View view;
  std::int64_t rows;
  Allocate allocate;
};

/// The plans of sorted triples, in the order of the requests: forward first, then backward2, then backward1 (an order
/// that the sorts pass through). Each is sorted by (output, index1, index2) of its own roles; duplicates stay.
std::vector<PlanMeta> build_sorted(const Triples& triples, const std::vector<Request>& requests,
                                   const CpuExecutor& executor);

/// The fields of a SparseProductInfo: null is absent.
struct Fields {
  const std::int64_t* index1 = nullptr;
  const std::int64_t* index2 = nullptr;
  const std::int64_t* segments = nullptr;
  const std::int64_t* gather = nullptr;
  const std::int64_t* index_out = nullptr;
  std::optional<std::int64_t> entries;  ///< T; none where every field is absent and it follows the inputs
  std::optional<std::int64_t> gather_length;
  std::int64_t segment_count = 0;  ///< where segments or index_out are given
  std::optional<std::int64_t> out_size;
  std::int64_t limit1 = 0;
  std::int64_t limit2 = 0;
  bool unary = false;
};

/// The plan of fields that are given as they are, without a sort.
PlanMeta build_from_fields(const Fields& fields, const Allocate& allocate);

/// The plan of a gradient, from a plan whose T is settled: View::backward1 groups by index1, backward2 by index2, into
/// `rows` rows, which must be as many as the indices reach. Its description is derived_meta's. The plan of an identity
/// is itself. With `unary`, the transpose of a sparse scale instead (backward1 only).
void derive(const PlanMeta& meta, const void* array, View view, std::int64_t rows, bool unary, void* out,
            const CpuExecutor& executor);

}  // namespace lacewing::structure
