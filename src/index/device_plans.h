// Plans of products built on a device, with the arrays that structure/plan_builder.h gives on the host.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "structure/plan_builder.h"

namespace lacewing::index {

/// Triples on a device: int64, an undefined tensor is absent, which is the identity.
struct DeviceTriples {
  at::Tensor index1, index2, row;
  std::int64_t count = 0;
  bool unary = false;
  at::Device device = at::kCUDA;
};

/// What one reading of them finds.
struct TriplesScan {
  bool negative = false;
  bool sorted = false;                                 ///< by (row, index1, index2)
  std::int64_t limit1 = 0, limit2 = 0, limit_row = 0;  ///< one more than the largest
  kernels::TermHash hash;
};
TriplesScan scan_triples(const DeviceTriples& triples);

/// A view, and the rows of its output.
struct PlanRequest {
  structure::View view;
  std::int64_t rows;
};

struct DevicePlan {
  at::Tensor array;
  structure::PlanMeta meta;
};

/// The plans of triples whose scan found no fault, in the order of the requests.
std::vector<DevicePlan> build_sorted(const DeviceTriples& triples, const TriplesScan& scan,
                                     const std::vector<PlanRequest>& requests);

/// The array of derived_meta(meta, view, rows, unary).
at::Tensor derive(const structure::PlanMeta& meta, const at::Tensor& array, structure::View view, std::int64_t rows,
                  bool unary);

}  // namespace lacewing::index
