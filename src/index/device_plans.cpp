#include "index/device_plans.h"

#include <algorithm>
#include <array>

#include "index/host_read.h"
#include "index/key_order.h"
#include "kernels/device_index.h"

namespace lacewing::index {
namespace {

using kernels::Column;
using kernels::TermColumns;
using structure::PlanMeta;
using structure::Roles;
using structure::View;

const std::int64_t* data_of(const at::Tensor& index) {
  return index.defined() ? index.const_data_ptr<std::int64_t>() : nullptr;
}

Column column_of(const at::Tensor& integers) {
  return integers.defined() ? Column{integers.const_data_ptr(), integers.scalar_type() == at::kLong} : Column{};
}

/// One column in another order, as int64 or int32. An undefined order is the identity.
at::Tensor reordered(const DeviceCall& call, Column from, const at::Tensor& order, std::int64_t count, bool wide) {
  TermColumns columns;
  columns.count = count;
  columns.columns = 1;
  columns.from[0] = from;
  columns.order = column_of(order);
  columns.wide = wide;
  const at::Tensor to = call.integers(count, wide);
  columns.to[0] = to.mutable_data_ptr();
  kernels::cuda::reorder(columns, call.stream());
  return to;
}

/// The order of terms after one more stable sort by a column with values below a limit.
at::Tensor sorted_by(const DeviceCall& call, const at::Tensor& order, Column column, std::int64_t limit,
                     std::int64_t count) {
  const at::Tensor keys = reordered(call, column, order, count, /*wide=*/true);
  const at::Tensor next = sort_keys(call, keys, limit).order;
  return order.defined() ? reordered(call, column_of(order), next, count, has_wide_places(count)) : next;
}

/// Terms of a plan to be: their columns by structure::Key, and the entry of each.
struct TermSource {
  std::array<Column, 3> key;
  Column entry;
  std::int64_t count = 0;

  Column first(const Roles& roles) const { return key[roles.index1]; }
  Column second(const Roles& roles) const { return key[roles.index2]; }
  Column row(const Roles& roles) const { return key[roles.row]; }
};

/// Fills the arrays that a description names from terms in an order that sorts them by row.
at::Tensor filled(const DeviceCall& call, const TermSource& terms, const Roles& roles, const at::Tensor& order,
                  const PlanMeta& meta) {
  const bool wide = meta.has(PlanMeta::wide);
  const at::Tensor array = call.integers(meta.length(), wide);
  PlanMeta own = meta;
  own.flags &= ~PlanMeta::mirrored;
  const kernels::Terms to = structure::terms_of(own, array.mutable_data_ptr());
  TermColumns columns;
  columns.count = terms.count;
  columns.columns = 3;
  columns.order = column_of(order);
  columns.wide = wide;
  columns.from[0] = terms.first(roles);
  columns.from[1] = terms.second(roles);
  columns.from[2] = terms.entry;
  columns.to[0] = const_cast<void*>(to.index1);
  columns.to[1] = const_cast<void*>(to.index2);
  columns.to[2] = const_cast<void*>(to.order);
  kernels::cuda::reorder(columns, call.stream());
  if (to.segments != nullptr) {
    const at::Tensor rows = reordered(call, terms.row(roles), order, terms.count, /*wide=*/true);
    kernels::cuda::row_pointers(rows.const_data_ptr<std::int64_t>(), terms.count, meta.rows,
                                const_cast<void*>(to.segments), wide, call.stream());
  }
  // Places in the array by what stands there.
  const auto write_order = [&](const void* place, Column by, std::int64_t limit) {
    const at::Tensor sorted = sorted_by(call, {}, by, limit, terms.count);
    columns.columns = 1;
    columns.order = {};
    columns.from[0] = column_of(sorted);
    columns.to[0] = const_cast<void*>(place);
    kernels::cuda::reorder(columns, call.stream());
  };
  if (to.inverse_segments != nullptr) {
    const at::Tensor entries = reordered(call, {to.order, wide}, {}, terms.count, /*wide=*/true);
    const SortedKeys sorted = sort_keys(call, entries, meta.entries);
    kernels::cuda::row_pointers(sorted.keys.const_data_ptr<std::int64_t>(), terms.count, meta.entries,
                                const_cast<void*>(to.inverse_segments), wide, call.stream());
    write_order(to.inverse_terms, {to.order, wide}, meta.entries);
  }
  if (to.by_index1 != nullptr) {
    const std::int64_t limit1 = std::max(meta.need1, terms.count);
    const std::int64_t limit2 = std::max(meta.need2, terms.count);
    write_order(to.by_index1, {to.index1, wide}, limit1);
    write_order(to.by_index2, {to.index2, wide}, limit2);
  }
  return array;
}

}  // namespace

TriplesScan scan_triples(const DeviceTriples& triples) {
  using kernels::TermScan;
  const DeviceCall call(triples.device);
  const at::Tensor words = call.integers(TermScan::kWords);
  kernels::cuda::scan_terms({data_of(triples.index1), data_of(triples.index2), data_of(triples.row), triples.count,
                             triples.unary, reinterpret_cast<std::uint64_t*>(words.mutable_data_ptr<std::int64_t>())},
                            call.stream());
  const std::vector<std::int64_t> found = read_back(words);
  TriplesScan scan;
  scan.negative = found[TermScan::negative] != 0;
  scan.sorted = found[TermScan::unsorted] == 0;
  scan.limit1 = found[TermScan::limit1];
  scan.limit2 = found[TermScan::limit2];
  scan.limit_row = found[TermScan::limit_row];
  scan.hash.forward = static_cast<std::uint64_t>(found[TermScan::hash]);
  scan.hash.backward1 = static_cast<std::uint64_t>(found[TermScan::hash_bwd1]);
  scan.hash.backward2 = static_cast<std::uint64_t>(found[TermScan::hash_bwd2]);
  scan.hash.order = static_cast<std::uint64_t>(found[TermScan::order_hash]);
  return scan;
}

std::vector<DevicePlan> build_sorted(const DeviceTriples& triples, const TriplesScan& scan,
                                     const std::vector<PlanRequest>& requests) {
  const DeviceCall call(triples.device);
  const TermSource terms{
      {column_of(triples.index1), column_of(triples.index2), column_of(triples.row)}, {}, triples.count};
  const std::array<std::int64_t, 3> limits{scan.limit1, scan.limit2, scan.limit_row};
  std::int64_t largest = std::max({triples.count, scan.limit1, scan.limit2, scan.limit_row});
  // Sorted by (row, index1, index2), terms pass through the orders of the other views.
  std::vector<at::Tensor> orders;
  at::Tensor order;
  const at::Tensor moved = call.integers(static_cast<std::int64_t>(requests.size()) * TermColumns::kMost);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const Roles roles = structure::roles_of(requests[r].view, triples.unary);
    const auto sort_by = [&](structure::Key key) {
      order = sorted_by(call, order, terms.key[key], limits[key], triples.count);
    };
    largest = std::max(largest, requests[r].rows);
    if (r == 0 && !(scan.sorted && requests[r].view == View::forward)) {
      if (!triples.unary) {
        sort_by(roles.index2);
      }
      sort_by(roles.index1);
    }
    if (r > 0 || !(scan.sorted && requests[r].view == View::forward)) {
      sort_by(roles.row);
    }
    orders.push_back(order);
    TermColumns columns;
    columns.count = triples.count;
    columns.columns = TermColumns::kMost;
    columns.from[0] = terms.row(roles);
    columns.from[1] = terms.first(roles);
    columns.from[2] = terms.second(roles);
    columns.order = column_of(order);
    columns.moved = reinterpret_cast<std::uint64_t*>(moved.mutable_data_ptr<std::int64_t>()) + r * TermColumns::kMost;
    kernels::cuda::find_moved(columns, call.stream());
  }
  const std::vector<std::int64_t> found = read_back(moved);
  std::vector<DevicePlan> plans;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const Roles roles = structure::roles_of(requests[r].view, triples.unary);
    const std::int64_t* const is_moved = found.data() + r * TermColumns::kMost;
    PlanMeta meta;
    meta.entries = meta.terms = triples.count;
    meta.rows = requests[r].rows;
    meta.need1 = limits[roles.index1];
    meta.need2 = triples.unary ? 0 : limits[roles.index2];
    meta.flags = (is_moved[0] != 0 || meta.rows != meta.terms ? PlanMeta::has_segments : 0) |
                 (is_moved[1] != 0 ? PlanMeta::has_index1 : 0) |
                 (is_moved[2] != 0 && !triples.unary ? PlanMeta::has_index2 : 0) |
                 (is_moved[3] != 0 ? PlanMeta::has_order : 0) | (structure::fits_narrow(largest) ? 0 : PlanMeta::wide) |
                 structure::group_flag(meta.terms);
    structure::write_hash(scan.hash, meta, requests[r].view, triples.unary);
    plans.push_back({filled(call, terms, roles, orders[r], meta), meta});
  }
  return plans;
}

at::Tensor derive(const PlanMeta& meta, const at::Tensor& array, View view, std::int64_t rows, bool unary) {
  const DeviceCall call(array.device());
  const PlanMeta derived = structure::derived_meta(meta, view, rows, unary);
  const bool wide = meta.has(PlanMeta::wide);
  const kernels::Terms from = structure::terms_of(meta, array.const_data_ptr());
  const bool same = derived.is_identity() && rows == meta.rows;
  at::Tensor row_of;
  if (from.segments != nullptr) {
    row_of = call.integers(meta.terms);
    kernels::cuda::rows_of_terms(from.segments, wide, meta.rows, meta.terms, row_of.mutable_data_ptr<std::int64_t>(),
                                 call.stream());
  }
  const TermSource terms{
      {Column{from.index1, wide}, Column{from.index2, wide}, column_of(row_of)}, {from.order, wide}, meta.terms};
  const Roles roles = structure::roles_of(view, unary);
  at::Tensor order;
  if (!same && !structure::derives_in_order(meta, view, rows)) {
    order = sorted_by(call, {}, terms.row(roles), rows, meta.terms);
  }
  return filled(call, terms, roles, order, derived);
}

}  // namespace lacewing::index
