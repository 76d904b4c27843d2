// Building plans and merging voxels from the user's tensors: checks with sentences, then the torch-free builders.
#include <cstring>
#include <string_view>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "conv/calls.h"
#include "conv/check.h"
#include "conv/kernel_map.h"
#include "conv/lidar.h"
#include "conv/plan_check.h"

namespace lacewing::conv {
namespace {

/// Runs a torch-free builder; its complaint becomes the sentence of the op.
template <typename F>
auto named(const std::string& op, F&& f) {
  try {
    return f();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, "[lacewing.", op, "] ", error.what());
  }
}

/// Coordinates on the host, dense.
class HostCoordinates {
 public:
  HostCoordinates(const std::string& op, const char* name, const at::Tensor& given) : name_(name) {
    TORCH_CHECK(given.scalar_type() == at::kInt, "[lacewing.", op, "] ", name, " must have dtype int32, not ",
                dtype_text(given.scalar_type()));
    TORCH_CHECK(given.dim() == 2 && given.size(1) >= 2 && given.size(1) <= kMaxAxes + 1, "[lacewing.", op, "] ", name,
                " must be (voxels, 1 + axes) with 1 to ", kMaxAxes, " axes, not of shape ", shape_text(given.sizes()));
    check_memory(op.c_str(), name, given);
    host_ = given.cpu().contiguous();
  }

  Coordinates view() const {
    return {host_.const_data_ptr<std::int32_t>(), host_.size(0), static_cast<int>(host_.size(1)) - 1, name_};
  }
  /// Whether both hold the same voxels, row by row.
  bool is(const HostCoordinates& other) const {
    return host_.sizes() == other.host_.sizes() &&
           (host_.const_data_ptr() == other.host_.const_data_ptr() ||
            std::memcmp(host_.const_data_ptr(), other.host_.const_data_ptr(), host_.nbytes()) == 0);
  }

 private:
  at::Tensor host_;
  const char* name_;
};

at::Tensor to_tensor(const OwnedCoordinates& coordinates) {
  const at::Tensor tensor = at::empty({coordinates.rows(), coordinates.axes + 1}, at::TensorOptions().dtype(at::kInt));
  std::copy(coordinates.values.begin(), coordinates.values.end(), tensor.mutable_data_ptr<std::int32_t>());
  return tensor;
}

template <typename Value>
at::Tensor to_tensor(const std::vector<Value>& values) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())},
                                      at::TensorOptions().dtype(c10::CppTypeToScalarType<std::int64_t>::value));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

Geometry::PerAxis per_axis(const std::string& op, const char* name, at::IntArrayRef values, int axes) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 24;
  TORCH_CHECK(static_cast<int>(values.size()) == axes, "[lacewing.", op, "] ", name, " has ", values.size(),
              " entries, but the coordinates have ", axes, " axes");
  Geometry::PerAxis result{1, 1, 1, 1};
  for (std::size_t a = 0; a < values.size(); ++a) {
    TORCH_CHECK(values[a] >= 1 && values[a] <= kLargest, "[lacewing.", op, "] ", name, "[", a, "] = ", values[a],
                " must lie in [1, 2^24]");
    result[a] = values[a];
  }
  return result;
}

Geometry geometry_of(const std::string& op, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef dilation,
                     int axes) {
  constexpr std::int64_t kMostTaps = std::int64_t{1} << 16;
  Geometry geometry;
  geometry.axes = axes;
  geometry.kernel = per_axis(op, "kernel_size", kernel, axes);
  geometry.stride = per_axis(op, "stride", stride, axes);
  geometry.dilation = per_axis(op, "dilation", dilation, axes);
  std::int64_t taps = 1;
  for (const std::int64_t size : kernel) {
    taps = std::min(taps * size, kMostTaps + 1);
  }
  TORCH_CHECK(taps <= kMostTaps, "[lacewing.", op, "] kernel_size ", shape_text(kernel), " has more than ", kMostTaps,
              " taps");
  return geometry;
}

/// The plan, its integers, and the coordinates that were made for the side that was not given (else empty). `targets`:
/// "same", "given", "strided" (coarse made) or "reachable" (the side that is absent is made).
std::tuple<at::Tensor, std::vector<std::int64_t>, at::Tensor> conv_plan(
    const OptionalTensor& fine, const OptionalTensor& coarse, at::IntArrayRef kernel, at::IntArrayRef stride,
    at::IntArrayRef dilation, std::string_view targets, std::string_view op_name) {
  const std::string op(op_name);
  // A plan may be kept and trained on: its tensors are none of inference mode.
  const c10::InferenceMode normal(false);
  const at::Device device = fine ? fine->device() : coarse->device();
  TORCH_CHECK(!fine || !coarse || fine->device() == coarse->device(), "[lacewing.", op, "] the coordinates are on ",
              fine->device(), " and on ", coarse->device());
  std::optional<HostCoordinates> fine_host;
  std::optional<HostCoordinates> coarse_host;
  if (fine) {
    fine_host.emplace(op, coarse ? "fine coordinates" : "coordinates", *fine);
  }
  if (coarse) {
    coarse_host.emplace(op, fine ? "coarse coordinates" : "coordinates", *coarse);
  }
  const Coordinates given = fine ? fine_host->view() : coarse_host->view();
  const Geometry geometry = geometry_of(op, kernel, stride, dilation, given.axes);
  TORCH_CHECK(!fine || !coarse || coarse_host->view().axes == given.axes, "[lacewing.", op,
              "] the two sets of coordinates have ", given.axes, " and ", coarse_host->view().axes, " axes");
  const CpuExecutor executor = torch_executor();
  return named(op, [&]() -> std::tuple<at::Tensor, std::vector<std::int64_t>, at::Tensor> {
    OwnedCoordinates made;
    made.axes = given.axes;
    if (targets == "strided") {
      made = strided_targets(given, geometry, executor);
    } else if (targets == "reachable") {
      made = fine ? reachable_coarse(given, geometry, executor) : reachable_fine(given, geometry, executor);
    }
    const bool same =
        targets == "same" || (targets == "given" && fine_host->is(*coarse_host) && geometry.unit_stride());
    if (targets == "same" && !geometry.unit_stride()) {
      throw std::invalid_argument("a submanifold convolution has stride 1, not " + shape_text(stride));
    }
    const Coordinates other = targets == "same"    ? given
                              : targets == "given" ? coarse_host->view()
                                                   : made.view("made coordinates");
    at::Tensor array;
    const auto allocate = [&](std::int64_t length) {
      array = at::empty({length}, at::TensorOptions().dtype(at::kInt));
      return array.mutable_data_ptr<std::int32_t>();
    };
    const PlanMeta meta = build_map(fine ? given : other, fine ? other : given, geometry, same, allocate, executor);
    return {array.to(device), meta.to_vector(), to_tensor(made).to(device)};
  });
}

/// Throws one sentence where these are not the parts of a plan, as conv_plan makes them.
void check_parts(const at::Tensor& array, const at::Tensor& source, const at::Tensor& target, at::IntArrayRef meta,
                 at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef dilation) {
  const std::string op = "convolution_plan";
  constexpr const char* kRefusal = "[lacewing.convolution_plan] this is not a plan as it was saved: ";
  TORCH_CHECK(array.defined() && source.defined() && target.defined(), kRefusal, "a tensor is undefined");
  TORCH_CHECK(PlanMeta::valid(meta), kRefusal, "its description does not fit together");
  const PlanMeta description = PlanMeta::from(meta);
  TORCH_CHECK(array.scalar_type() == at::kInt && array.dim() == 1 && array.is_contiguous() &&
                  array.size(0) == description.length(),
              kRefusal, "its array is ", dtype_text(array.scalar_type()), " of shape ", shape_text(array.sizes()),
              ", but the description says ", description.length(), " entries of int32");
  TORCH_CHECK(source.device() == array.device() && target.device() == array.device(), kRefusal,
              "its tensors are on several devices");
  const HostCoordinates from(op, "source coordinates", source);
  const HostCoordinates to(op, "target coordinates", target);
  const int axes = from.view().axes;
  TORCH_CHECK(from.view().rows == description.source_rows() && to.view().rows == description.target_rows() &&
                  to.view().axes == axes,
              kRefusal, "coordinates of shapes ", shape_text(source.sizes()), " and ", shape_text(target.sizes()),
              " are not those of ", description.source_rows(), " and ", description.target_rows(), " voxels");
  const Geometry geometry = geometry_of(op, kernel, stride, dilation, axes);
  TORCH_CHECK(geometry.taps() == description.taps, kRefusal, "kernel_size ", shape_text(kernel), " has ",
              geometry.taps(), " taps, but the description says ", description.taps);
  check_memory(op.c_str(), "array", array);
  const at::Tensor host = array.cpu();
  const std::string flaw =
      plan_flaw(description, host.const_data_ptr<std::int32_t>(), from.view(), to.view(), geometry);
  TORCH_CHECK(flaw.empty(), kRefusal, flaw);
  // A plan says how its coordinates meet, so that they alone can make it anew.
  const bool back = description.has(PlanMeta::reversed);
  const HostCoordinates& fine = back ? to : from;
  const HostCoordinates& coarse = back ? from : to;
  const bool same = description.identity_tap >= 0;
  TORCH_CHECK(!same || (geometry.unit_stride() && at::equal(source, target)), kRefusal,
              "its middle tap leads to other voxels");
  named(op, [&] {
    std::vector<std::int32_t> made;
    const auto allocate = [&](std::int64_t length) {
      made.resize(static_cast<std::size_t>(length));
      return made.data();
    };
    PlanMeta meta = build_map(fine.view(), coarse.view(), geometry, same, allocate, torch_executor());
    meta.flags |= description.flags & PlanMeta::reversed;
    meta.algorithm = description.algorithm;
    TORCH_CHECK(meta.to_vector() == description.to_vector() &&
                    std::equal(made.begin(), made.end(), host.const_data_ptr<std::int32_t>()),
                kRefusal, "its pairs are not those of its coordinates");
  });
}

/// Distinct voxels in sorted order, the first row of each, and where each row went.
std::tuple<at::Tensor, at::Tensor, at::Tensor> unique(const at::Tensor& coordinates) {
  const std::string op = "unique_voxels";
  const HostCoordinates host(op, "coordinates", coordinates);
  return named(op, [&]() -> std::tuple<at::Tensor, at::Tensor, at::Tensor> {
    const UniqueVoxels voxels = unique_voxels(host.view(), torch_executor());
    const at::Device device = coordinates.device();
    return {to_tensor(voxels.coordinates).to(device), to_tensor(voxels.first).to(device),
            to_tensor(voxels.inverse).to(device)};
  });
}

/// Names of Algorithm.
constexpr std::array<std::string_view, 3> kAlgorithms = {"automatic", "tiles", "gather_gemm_scatter"};

Algorithm algorithm_named(std::string_view name) {
  const auto* const found = std::find(kAlgorithms.begin(), kAlgorithms.end(), name);
  TORCH_CHECK_VALUE(found != kAlgorithms.end(),
                    "[lacewing.convolution_plan] algorithm must be one of automatic, tiles, gather_gemm_scatter, not '",
                    name, "'");
  return static_cast<Algorithm>(found - kAlgorithms.begin());
}

PlanMeta read_plan(at::IntArrayRef sizes) {
  TORCH_CHECK(PlanMeta::valid(sizes),
              "[lacewing.convolution_plan] sizes are not the description of a convolution plan");
  return PlanMeta::from(sizes);
}

/// Points (n, 4) and classes (n,) of a generated scan.
std::tuple<at::Tensor, at::Tensor> lidar(std::int64_t seed, std::int64_t beams, std::int64_t azimuths,
                                         std::int64_t objects) {
  constexpr std::int64_t kMostRays = std::numeric_limits<std::int32_t>::max();
  TORCH_CHECK(beams > 0 && azimuths > 0 && objects >= 0,
              "[lacewing.synthetic_scan] beams and azimuths must be positive and objects not negative, not ", beams,
              ", ", azimuths, " and ", objects);
  TORCH_CHECK(beams <= kMostRays / azimuths && objects <= kMostRays, "[lacewing.synthetic_scan] ", beams, " beams of ",
              azimuths, " azimuths and ", objects, " objects are too many: there can be 2^31 - 1 rays and objects");
  LidarOptions options;
  options.seed = static_cast<std::uint64_t>(seed);
  options.beams = beams;
  options.azimuths = azimuths;
  options.objects = objects;
  const LidarScan scan = synthetic_scan(options, torch_executor());
  const auto count = static_cast<std::int64_t>(scan.classes.size());
  const at::Tensor points = at::empty({count, 4}, at::TensorOptions().dtype(at::kFloat));
  std::copy(scan.points.begin(), scan.points.end(), points.mutable_data_ptr<float>());
  return {points, to_tensor(scan.classes)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  m.def("synthetic_scan(int seed, int beams, int azimuths, int objects) -> (Tensor, Tensor)");
  define_dense_op(
      m,
      "sparse_conv_plan(Tensor? fine, Tensor? coarse, int[] kernel_size, int[] stride, int[] dilation, str targets, "
      "str op) -> (Tensor, int[], Tensor)");
  define_dense_op(
      m,
      "check_conv_plan(Tensor array, Tensor source, Tensor target, int[] meta, int[] kernel_size, int[] stride, int[] "
      "dilation) -> ()");
  define_dense_op(m, "unique_voxels(Tensor coordinates) -> (Tensor, Tensor, Tensor)");
  m.def("conv_plan_reversed(int[] sizes) -> int[]",
        [](at::IntArrayRef sizes) { return read_plan(sizes).reverse().to_vector(); });
  m.def("conv_plan_with(int[] sizes, str algorithm) -> int[]", [](at::IntArrayRef sizes, std::string_view algorithm) {
    return read_plan(sizes).with(algorithm_named(algorithm)).to_vector();
  });
  m.def("conv_plan_is_reversed(int[] sizes) -> bool",
        [](at::IntArrayRef sizes) { return read_plan(sizes).has(PlanMeta::reversed); });
  m.def("conv_plan_algorithm(int[] sizes) -> str", [](at::IntArrayRef sizes) {
    return std::string(kAlgorithms[static_cast<std::size_t>(read_plan(sizes).algorithm)]);
  });
  m.def("conv_plan_pair_count(int[] sizes) -> int", [](at::IntArrayRef sizes) { return read_plan(sizes).pairs(); });
  define_dense_op(m, "conv_plan_pairs(Tensor plan, int[] sizes, int tap) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) {
  m.impl("synthetic_scan", lidar);
  m.impl("check_conv_plan", check_parts);
  m.impl("conv_plan_pairs", [](const at::Tensor& plan, at::IntArrayRef sizes, std::int64_t tap) {
    return pairs_of(plan, read_plan(sizes), tap);
  });
}

TORCH_LIBRARY_IMPL(lacewing, CPU, m) {
  m.impl("sparse_conv_plan", conv_plan);
  m.impl("unique_voxels", unique);
}

TORCH_LIBRARY_IMPL(lacewing, CUDA, m) {
  m.impl("sparse_conv_plan", conv_plan);
  m.impl("unique_voxels", unique);
}

}  // namespace lacewing::conv
