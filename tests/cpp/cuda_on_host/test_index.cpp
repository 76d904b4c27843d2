// What src/index makes by the device's kernels, run on the host, against what it makes by src/structure: bit for bit.
#include <functional>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <lacewing/dispatch/torch.h>

#include "index/device_plans.h"
#include "index/groups.h"
#include "index/keys.h"
#include "index/merge.h"
#include "index/slice.h"
#include "index/where.h"

namespace lacewing {

CpuExecutor torch_executor() { return serial_executor(); }

}  // namespace lacewing

namespace lacewing::index {
namespace {

at::Tensor random(std::int64_t count, std::int64_t limit) { return at::randint(limit, {count}, at::kLong); }

at::Tensor random_set(std::int64_t count, std::int64_t limit) { return std::get<0>(at::_unique(random(count, limit))); }

/// What f gives on the host and on the device.
template <typename F>
auto both(F&& f) {
  on_device = false;
  auto host = f();
  on_device = true;
  auto device = f();
  on_device = false;
  return std::pair(std::move(host), std::move(device));
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined());
  if (a.defined()) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    EXPECT_TRUE(a.equal(b)) << a << b;
  }
}

TEST(IndexOnHost, KeysAndTheirInverse) {
  const at::Tensor indices = at::stack({random(500, 7), random(500, 1), random(500, 90)});
  const std::vector<std::int64_t> sizes{7, 1, 90};

  const auto [host, device] = both([&] { return linear_keys(indices, sizes); });
  const auto [turned, turned_device] = both([&] { return linear_keys(indices, {2, 0}, {90, 7}); });
  const auto [back, back_device] = both([&] { return unravel_keys(host, sizes); });

  expect_same(host, device);
  expect_same(turned, turned_device);
  expect_same(back, back_device);
  expect_same(back, indices);
}

TEST(IndexOnHost, SortedKeys) {
  for (const at::Tensor& keys : {random(3000, 40), at::arange(50), at::zeros({0}, at::kLong)}) {
    const auto [host, device] = both([&] { return sorting(keys, 3000); });

    expect_same(host, device);
  }
}

TEST(IndexOnHost, RowsAndTheirStarts) {
  const at::Tensor rows = std::get<0>(random(400, 90).sort());

  const auto [starts, starts_device] = both([&] { return row_starts(rows, 95); });
  const auto [back, back_device] = both([&] { return rows_of_entries(starts, 400); });

  expect_same(starts, starts_device);
  expect_same(back, back_device);
  expect_same(back, rows);
}

TEST(IndexOnHost, ScansOfIndices) {
  const auto expect_scan = [](const at::Tensor& indices) {
    const auto [host, device] = both([&] { return scan_entries(indices, {40, 30}); });
    EXPECT_EQ(host.first_outside, device.first_outside);
    EXPECT_EQ(host.in_order, device.in_order);
  };
  const at::Tensor keys = random_set(600, 1200);
  const at::Tensor sorted = unravel_keys(keys, {40, 30});
  at::Tensor outside = sorted.clone();
  outside[1][37] = 30;
  outside[0][333] = -1;

  expect_scan(sorted);
  expect_scan(sorted.flip(1));
  expect_scan(outside);
  expect_scan(at::cat({sorted, sorted}, 1));
  expect_scan(at::zeros({2, 0}, at::kLong));
}

void expect_groups(const at::Tensor& indices, const std::vector<std::int64_t>& dims,
                   const std::vector<std::int64_t>& sizes) {
  const auto group = [&] {
    return group_entries(indices, dims, sizes, {}, [&] { return linear_keys(indices, dims, sizes); });
  };

  const auto [host, device] = both(group);

  EXPECT_EQ(host.plan.to_vector(), device.plan.to_vector());
  expect_same(host.array, device.array);
  expect_same(linear_keys(host.indices, sizes), device.keys);
}

TEST(IndexOnHost, Groups) {
  const at::Tensor indices = at::stack({random(700, 20), random(700, 15)});
  const at::Tensor sorted = unravel_keys(random_set(200, 300), {20, 15});

  expect_groups(indices, {0, 1}, {20, 15});
  expect_groups(indices, {1}, {15});
  expect_groups(sorted, {0, 1}, {20, 15});
  expect_groups(sorted, {1, 0}, {15, 20});
  expect_groups(sorted, {0}, {20});
  expect_groups(indices.narrow(1, 0, 0), {0, 1}, {20, 15});
}

TEST(IndexOnHost, UnionsAndIntersections) {
  const at::Tensor a = random_set(300, 700);
  const at::Tensor b = random_set(500, 700);
  for (auto* const merge : {union_of, intersection_of}) {
    const auto [host, device] = both([&] { return merge(a, b); });

    expect_same(host.keys, device.keys);
    expect_same(host.in_a, device.in_a);
    expect_same(host.in_b, device.in_b);
  }
}

TEST(IndexOnHost, MergedElements) {
  const at::Tensor a = random_set(300, 700);
  const at::Tensor b = random_set(500, 700);
  const at::Tensor a_values = at::rand({a.numel()});
  const at::Tensor b_values = at::rand({b.numel()});
  const at::Tensor fills = at::rand({2});
  const kernels::Elements a_elements{a_values.const_data_ptr(), fills.const_data_ptr<float>()};
  const kernels::Elements b_elements{b_values.const_data_ptr(), fills.const_data_ptr<float>() + 1};
  for (const Kept kept : {Kept::all, Kept::common}) {
    const auto write = [&] {
      const SetMerge merge(a, b, kept);
      std::vector<at::Tensor> out(3, at::Tensor());
      for (at::Tensor& tensor : out) {
        tensor = at::full({merge.count()}, NAN);
      }
      out.push_back(merge.write(a_elements, b_elements, out[0], out[1]));
      out.push_back(merge.write(a_elements, b_elements, kernels::Combine::multiply, out[2]));
      return out;
    };

    const auto [host, device] = both(write);

    for (std::size_t i = 0; i < host.size(); ++i) {
      expect_same(host[i], device[i]);
    }
  }
}

TEST(IndexOnHost, Slices) {
  const at::Tensor indices = unravel_keys(random_set(500, 1200), {40, 30});
  const std::vector<structure::Slice> slices{{0, 3, 31, 2}, {1, 0, 17, 1}};

  const auto [host, device] = both([&] { return slice_entries(indices, slices, /*sorted=*/true); });

  expect_same(host.entries, device.entries);
  expect_same(host.indices, device.indices);
}

/// Triples of absent fields where `given` has no bit.
DeviceTriples triples_of(std::int64_t count, int given, bool unary) {
  DeviceTriples triples;
  triples.count = count;
  triples.unary = unary;
  triples.device = at::kCPU;
  triples.index1 = (given & 1) != 0 ? random(count, 9) : at::Tensor();
  triples.index2 = (given & 2) != 0 && !unary ? random(count, 13) : at::Tensor();
  triples.row = (given & 4) != 0 ? random(count, 11) : at::Tensor();
  return triples;
}

struct HostPlan {
  at::Tensor array;
  structure::PlanMeta meta;

  structure::Allocate allocate() {
    return [this](std::int64_t length, bool wide) {
      array = at::empty({length}, wide ? at::kLong : at::kInt);
      return array.mutable_data_ptr();
    };
  }
};

std::vector<HostPlan> build_on_host(const DeviceTriples& given, const TriplesScan& scan,
                                    const std::vector<PlanRequest>& requests) {
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<std::int64_t>() : nullptr; };
  structure::Triples triples;
  triples.index1 = data(given.index1);
  triples.index2 = data(given.index2);
  triples.row = data(given.row);
  triples.count = given.count;
  triples.unary = given.unary;
  triples.limit1 = scan.limit1;
  triples.limit2 = scan.limit2;
  triples.limit_row = scan.limit_row;
  std::vector<HostPlan> plans(requests.size());
  std::vector<structure::Request> asked;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    asked.push_back({requests[r].view, requests[r].rows, plans[r].allocate()});
  }
  const auto metas = structure::build_sorted(triples, asked, serial_executor());
  for (std::size_t r = 0; r < requests.size(); ++r) {
    plans[r].meta = metas[r];
  }
  return plans;
}

void expect_plans(const DeviceTriples& triples, std::int64_t spare) {
  const TriplesScan scan = scan_triples(triples);
  std::vector<PlanRequest> requests{{structure::View::forward, scan.limit_row + spare}};
  if (!triples.unary) {
    requests.push_back({structure::View::backward2, scan.limit2 + spare});
  }
  requests.push_back({structure::View::backward1, scan.limit1 + spare});

  const std::vector<HostPlan> host = build_on_host(triples, scan, requests);
  const std::vector<DevicePlan> device = build_sorted(triples, scan, requests);

  for (std::size_t r = 0; r < requests.size(); ++r) {
    EXPECT_EQ(host[r].meta.to_vector(), device[r].meta.to_vector()) << "request " << r;
    expect_same(host[r].array, device[r].array);
    for (const auto view : {structure::View::backward1, structure::View::backward2}) {
      if (triples.unary && view == structure::View::backward2) {
        continue;
      }
      for (const structure::PlanMeta& from : {host[r].meta, host[r].meta.mirror()}) {
        if (from.has(structure::PlanMeta::mirrored) && triples.unary) {
          continue;
        }
        const std::int64_t rows = (view == structure::View::backward1 ? from.need1 : from.need2) + spare;
        const structure::PlanMeta meta = structure::derived_meta(from, view, rows, triples.unary);
        at::Tensor derived = at::empty({meta.length()}, host[r].array.options());
        structure::derive(from, host[r].array.const_data_ptr(), view, rows, triples.unary, derived.mutable_data_ptr(),
                          serial_executor());
        expect_same(derived, derive(from, host[r].array, view, rows, triples.unary));
      }
    }
  }
}

TEST(IndexOnHost, PlansOfEveryCombinationOfAbsentIndices) {
  for (const bool unary : {false, true}) {
    for (int given = 0; given < 8; ++given) {
      for (const std::int64_t spare : {0, 3}) {
        for (const std::int64_t count : {0, 1, 60}) {
          expect_plans(triples_of(count, given, unary), spare);
        }
      }
    }
  }
}

TEST(IndexOnHost, PlansOfSortedTriples) {
  const at::Tensor keys = random_set(400, 30 * 20);
  DeviceTriples triples = triples_of(keys.numel(), 0, /*unary=*/false);
  triples.row = keys.div(20, "floor");
  triples.index2 = keys.remainder(20);

  EXPECT_TRUE(scan_triples(triples).sorted);
  expect_plans(triples, 0);
}

TEST(IndexOnHost, PlansOfManyTerms) { expect_plans(triples_of((1 << 14) + 50, 7, /*unary=*/false), 1); }

TEST(IndexOnHost, PlansWithWideIndices) {
  DeviceTriples triples = triples_of(50, 7, /*unary=*/false);
  triples.index2[17] = std::int64_t{1} << 40;

  const TriplesScan scan = scan_triples(triples);
  const std::vector<PlanRequest> requests{{structure::View::forward, scan.limit_row}};

  const std::vector<HostPlan> host = build_on_host(triples, scan, requests);
  const std::vector<DevicePlan> device = build_sorted(triples, scan, requests);
  EXPECT_EQ(host[0].meta.to_vector(), device[0].meta.to_vector());
  expect_same(host[0].array, device[0].array);
}

TEST(IndexOnHost, DerivedPlansOfRepeatedEntries) {
  structure::Fields fields;
  const std::vector<std::int64_t> index1{1, 0, 2}, gather{0, 2, 0, 1};
  fields.index1 = index1.data();
  fields.gather = gather.data();
  fields.entries = 3;
  fields.gather_length = 4;
  fields.limit1 = fields.limit2 = 3;
  HostPlan plan;
  plan.meta = structure::build_from_fields(fields, plan.allocate());
  for (const auto view : {structure::View::backward1, structure::View::backward2}) {
    at::Tensor host = at::empty({structure::derived_meta(plan.meta, view, 3, false).length()}, plan.array.options());
    structure::derive(plan.meta, plan.array.const_data_ptr(), view, 3, false, host.mutable_data_ptr(),
                      serial_executor());

    expect_same(host, derive(plan.meta, plan.array, view, 3, false));
  }
}

}  // namespace
}  // namespace lacewing::index
