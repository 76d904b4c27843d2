// Building plans from the user's tensors: checks with sentences, then the torch-free builders.
#include "product/plan_ops.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <lacewing/backend.h>
#include <lacewing/dispatch/torch.h>

#include "common/transforms.h"
#include "index/device_plans.h"
#include "kernels/cpu/isa.h"
#include "product/shape.h"
#include "structure/plan_builder.h"

namespace lacewing::products {

using structure::PlanMeta;

std::tuple<at::Tensor, std::vector<std::int64_t>> product_plan(
    std::optional<std::int64_t> entries, const OptionalTensor& index1, const OptionalTensor& index2,
    const OptionalTensor& seg_out, const OptionalTensor& gather_index, const OptionalTensor& index_out,
    std::optional<std::int64_t> out_size, bool unary, std::string_view op) {
  const OutsideTransforms outside;
  FieldChecker check{op, std::nullopt};
  const char* const name1 = unary ? "index" : "index1";
  check.size("out_size", out_size);
  const HostIndex first = check.index(name1, index1);
  const HostIndex second = check.index("index2", index2);
  const HostIndex segments = check.index("seg_out", seg_out);
  const HostIndex gather = check.index("gather_index", gather_index);
  const HostIndex target = check.index("index_out", index_out);

  const auto same_length = [&](const char* argument, const HostIndex& index) {
    if (!index.present()) {
      return;
    }
    TORCH_CHECK(!entries || *entries == index.length(), check.prefix(), argument, " has ", index.length(),
                " entries but the fields before it have ", entries.value_or(0));
    entries = index.length();
  };
  same_length(name1, first);
  same_length("index2", second);

  structure::Fields fields;
  fields.unary = unary;
  fields.index1 = first.data();
  fields.index2 = second.data();
  fields.segments = segments.data();
  fields.gather = gather.data();
  fields.index_out = target.data();
  fields.out_size = out_size;
  if (segments.present()) {
    TORCH_CHECK(segments.length() >= 1, check.prefix(), "seg_out must have at least one entry, its start");
    fields.segment_count = segments.length() - 1;
    const std::int64_t* const s = segments.data();
    for (std::int64_t i = 1; i < segments.length(); ++i) {
      TORCH_CHECK(s[i] >= s[i - 1], check.prefix(), "seg_out must not decrease, but seg_out[", i, "] = ", s[i],
                  " follows ", s[i - 1]);
    }
  }
  if (!entries) {
    // Nothing has one entry for each t: T is as small as the other fields allow.
    if (gather.present()) {
      entries = gather.limit;
    } else if (segments.present()) {
      entries = segments.data()[fields.segment_count];
    } else if (target.present()) {
      entries = target.length();
    }
  }
  if (gather.present()) {
    check.below("gather_index", gather, "T", *entries);
    fields.gather_length = gather.length();
  }
  const std::int64_t length = gather.present() ? gather.length() : entries.value_or(0);
  if (segments.present()) {
    const std::int64_t last = segments.data()[fields.segment_count];
    TORCH_CHECK(last <= length, check.prefix(), "seg_out[", fields.segment_count, "] = ", last,
                " is out of range: there are ", length, gather.present() ? " entries of gather_index" : " terms");
  }
  const std::int64_t segment_count = segments.present() ? fields.segment_count : length;
  if (target.present()) {
    TORCH_CHECK(target.length() == segment_count, check.prefix(), "index_out has ", target.length(), " entries for ",
                segment_count, " segments");
    TORCH_CHECK(out_size.has_value(), check.prefix(), "out_size must be given where index_out is");
    check.below("index_out", target, "out_size", *out_size);
    fields.segment_count = segment_count;
    auto seen = with_memory(check, [&] { return std::vector<std::int64_t>(static_cast<std::size_t>(*out_size), -1); });
    for (std::int64_t i = 0; i < target.length(); ++i) {
      std::int64_t& earlier = seen[static_cast<std::size_t>(target.data()[i])];
      TORCH_CHECK(earlier < 0, check.prefix(), "index_out must be distinct, but index_out[", i,
                  "] = ", target.data()[i], " stands at ", earlier, " already");
      earlier = i;
    }
  } else if (entries) {
    TORCH_CHECK(!out_size || *out_size >= segment_count, check.prefix(), "out_size is ", out_size.value_or(0),
                " but there are ", segment_count, " segments");
    TORCH_CHECK(!unary || !segments.present() || !out_size || *out_size == segment_count, check.prefix(),
                "seg_out has ", segment_count, " segments but out_size is ", out_size.value_or(0));
  }
  fields.entries = entries;
  const std::int64_t used = gather.present()     ? gather.limit
                            : segments.present() ? segments.data()[fields.segment_count]
                                                 : length;
  fields.limit1 = first.present() ? first.limit : used;
  fields.limit2 = unary ? 0 : second.present() ? second.limit : used;

  return with_memory(check, [&] {
    PlanMemory memory;
    const PlanMeta meta = structure::build_from_fields(fields, memory.allocate());
    return std::make_tuple(memory.array.to(check.device.value_or(at::kCPU)), meta.to_vector());
  });
}

namespace {

/// Arrays, and their numbers one after the other.
struct PlanParts {
  std::vector<at::Tensor> arrays;
  std::vector<std::int64_t> sizes;

  void add(const at::Tensor& array, const PlanMeta& meta) {
    arrays.push_back(array);
    const std::vector<std::int64_t> numbers = meta.to_vector();
    sizes.insert(sizes.end(), numbers.begin(), numbers.end());
  }
};

/// Of indices on a device: forward, backward1, backward2, those that are asked for. Nothing where an index or a size
/// does not fit: the host names it.
std::optional<PlanParts> sorted_plans_on_device(const index::DeviceTriples& triples,
                                                std::optional<std::int64_t> out_size,
                                                std::optional<std::int64_t> in1_size,
                                                std::optional<std::int64_t> in2_size, bool forward_only) {
  const index::TriplesScan scan = index::scan_triples(triples);
  const auto fits = [](std::int64_t limit, std::optional<std::int64_t> size) {
    return limit <= kLargestSize && limit <= size.value_or(limit);
  };
  if (scan.negative || !fits(scan.limit_row, out_size) || !fits(scan.limit1, in1_size) ||
      !(triples.unary || fits(scan.limit2, in2_size))) {
    return std::nullopt;
  }
  std::vector<index::PlanRequest> requests{{structure::View::forward, out_size.value_or(scan.limit_row)}};
  if (!forward_only) {
    // In the order that the sorts pass through.
    if (!triples.unary) {
      requests.push_back({structure::View::backward2, in2_size.value_or(scan.limit2)});
    }
    requests.push_back({structure::View::backward1, in1_size.value_or(scan.limit1)});
  }
  std::vector<index::DevicePlan> plans = index::build_sorted(triples, scan, requests);
  std::reverse(plans.begin() + 1, plans.end());
  PlanParts parts;
  for (const index::DevicePlan& plan : plans) {
    parts.add(plan.array, plan.meta);
  }
  return parts;
}

}  // namespace

std::tuple<std::vector<at::Tensor>, std::vector<std::int64_t>> sorted_plans(
    const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& index, std::int64_t entries,
    std::optional<std::int64_t> out_size, std::optional<std::int64_t> in1_size, std::optional<std::int64_t> in2_size,
    bool unary, bool forward_only, std::string_view op) {
  const OutsideTransforms outside;
  FieldChecker check{op, std::nullopt};
  check.size("out_size", out_size);
  check.size(unary ? "in_size" : "in1_size", in1_size);
  check.size("in2_size", in2_size);
  const char* const name1 = unary ? "index_in" : "index1";
  const char* const name_out = unary ? "index_out" : "index";
  index::DeviceTriples given;
  given.index1 = check.integers(name1, index1);
  given.index2 = check.integers("index2", index2);
  given.row = check.integers(name_out, index);
  std::optional<std::int64_t> count = entries >= 0 ? std::optional<std::int64_t>(entries) : std::nullopt;
  const auto same_length = [&](const char* argument, const at::Tensor& index) {
    if (index.defined()) {
      TORCH_CHECK(!count || *count == index.size(0), check.prefix(), argument, " has ", index.size(0),
                  " entries but another argument has ", count.value_or(0));
      count = index.size(0);
    }
  };
  same_length(name1, given.index1);
  same_length("index2", given.index2);
  same_length(name_out, given.row);
  if (check.device && check.device->is_cuda()) {
    given.count = count.value_or(0);
    given.unary = unary;
    given.device = *check.device;
    if (auto plans = sorted_plans_on_device(given, out_size, in1_size, in2_size, forward_only)) {
      return {std::move(plans->arrays), std::move(plans->sizes)};
    }
  }

  const HostIndex first = check.index(name1, index1);
  const HostIndex second = check.index("index2", index2);
  const HostIndex row = check.index(name_out, index);
  structure::Triples triples;
  triples.count = count.value_or(0);
  triples.unary = unary;
  triples.index1 = first.data();
  triples.index2 = second.data();
  triples.row = row.data();
  triples.limit1 = first.present() ? first.limit : triples.count;
  triples.limit2 = second.present() ? second.limit : triples.count;
  triples.limit_row = row.present() ? row.limit : triples.count;
  const auto fits = [&](const char* argument, const HostIndex& given, std::int64_t limit, const char* size_name,
                        std::optional<std::int64_t> size) {
    if (size && given.present()) {
      check.below(argument, given, size_name, *size);
    }
    TORCH_CHECK(!size || limit <= *size, check.prefix(), argument, " is absent, which means 0 to ", limit - 1, ", but ",
                size_name, " is ", size.value_or(0));
  };
  fits(name_out, row, triples.limit_row, "out_size", out_size);
  fits(name1, first, triples.limit1, unary ? "in_size" : "in1_size", in1_size);
  if (!unary) {
    fits("index2", second, triples.limit2, "in2_size", in2_size);
  }

  return with_memory(check, [&] {
    std::array<PlanMemory, 3> memory;
    std::vector<structure::Request> requests;
    requests.push_back({structure::View::forward, out_size.value_or(triples.limit_row), memory[0].allocate()});
    if (!forward_only) {
      // In the order that the sorts pass through.
      if (!unary) {
        requests.push_back({structure::View::backward2, in2_size.value_or(triples.limit2), memory[2].allocate()});
      }
      requests.push_back({structure::View::backward1, in1_size.value_or(triples.limit1), memory[1].allocate()});
    }
    const std::vector<PlanMeta> metas = structure::build_sorted(triples, requests, torch_executor());
    const at::Device device = check.device.value_or(at::kCPU);
    PlanParts parts;
    for (const std::size_t view : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (static_cast<std::size_t>(requests[i].view) == view) {
          parts.add(memory[view].array.to(device), metas[i]);
        }
      }
    }
    return std::make_tuple(std::move(parts.arrays), std::move(parts.sizes));
  });
}

namespace {

void set_backend_by_name(std::string_view name) {
  TORCH_CHECK(name == "automatic" || name == "reference",
              "[lacewing.backend] the backend must be automatic or reference, not ", name);
  set_backend(name == "reference" ? Backend::reference : Backend::automatic);
}

std::string backend_name() { return backend() == Backend::reference ? "reference" : "automatic"; }

std::string isa_name() {
  switch (kernels::cpu::isa()) {
    case kernels::cpu::Isa::avx512: return "avx512";
    case kernels::cpu::Isa::avx2: return "avx2";
    default: return "baseline";
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) {
  m.impl("product_plan", product_plan);
  m.impl("sorted_plans", sorted_plans);
  m.impl("set_backend", set_backend_by_name);
  m.impl("get_backend", backend_name);
  m.impl("cpu_isa", isa_name);
}

}  // namespace lacewing::products
