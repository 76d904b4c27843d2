// The three plans of a product as views of one set of terms, and their descriptions: the same for plans that are built
// on the host and on a device. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/term_hash.h"
#include "structure/plan.h"
#include "structure/term.h"

namespace lacewing::structure {

/// Which of a product's three plans: the value, the gradient of input1, the gradient of input2.
enum class View : int { forward, backward1, backward2 };

/// The roles of a term's keys in a view: which are index1, index2 and the row.
struct Roles {
  Key index1, index2, row;
};
Roles roles_of(View view, bool unary);

/// Writes what a view's hashes are.
void write_hash(const kernels::TermHash& hash, PlanMeta& meta, View view, bool unary);

/// Whether sizes and indices up to so many are kept as int32.
bool fits_narrow(std::int64_t largest);

/// PlanMeta::has_groups where a plan of so many terms has them.
std::int64_t group_flag(std::int64_t terms);

/// The description of the plan of a gradient, from that of the plan alone, so that it can be traced.
PlanMeta derived_meta(const PlanMeta& meta, View view, std::int64_t rows, bool unary);

/// Whether the terms of that plan are the plan's in their order: each is the row of its own number.
bool derives_in_order(const PlanMeta& meta, View view, std::int64_t rows);

}  // namespace lacewing::structure
