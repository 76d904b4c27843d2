#include "conv/check.h"

#include <lacewing/dispatch/torch.h>

namespace lacewing::conv {
namespace {

constexpr const char* kConv = "sparse_conv";
constexpr const char* kWeightGrad = "sparse_conv_weight_grad";

void check_same(const char* op, const char* argument, const at::Tensor& tensor, const at::Tensor& features) {
  TORCH_CHECK(tensor.scalar_type() == features.scalar_type(), "[lacewing.", op, "] ", argument, " has dtype ",
              dtype_text(tensor.scalar_type()), " but features have ", dtype_text(features.scalar_type()));
  TORCH_CHECK(tensor.device() == features.device(), "[lacewing.", op, "] ", argument, " is on ", tensor.device(),
              " but features are on ", features.device());
}

}  // namespace

PlanMeta known_plan(c10::SymIntArrayRef sizes) {
  std::vector<std::int64_t> numbers;
  for (const c10::SymInt& size : sizes) {
    numbers.push_back(size.guard_int(__FILE__, __LINE__));
  }
  return PlanMeta::from(numbers);
}

std::tuple<at::Tensor, at::Tensor> pairs_of(const at::Tensor& plan, const PlanMeta& meta, std::int64_t tap) {
  TORCH_CHECK_INDEX(tap >= 0 && tap < meta.taps, "[lacewing.convolution_plan] tap ", tap,
                    " is out of range: there are ", meta.taps);
  const std::int64_t begin = meta.tap_offsets[static_cast<std::size_t>(tap)];
  const std::int64_t count = meta.tap_offsets[static_cast<std::size_t>(tap) + 1] - begin;
  const at::Tensor fine = plan.narrow(0, begin, count).clone();
  const at::Tensor coarse = plan.narrow(0, meta.pairs() + begin, count).clone();
  return meta.has(PlanMeta::reversed) ? std::tuple(coarse, fine) : std::tuple(fine, coarse);
}

std::vector<c10::SymInt> reversed(c10::SymIntArrayRef sizes) {
  std::vector<c10::SymInt> numbers = sizes.vec();
  c10::SymInt& flags = numbers[PlanMeta::flags_at];
  flags = flags.guard_int(__FILE__, __LINE__) ^ PlanMeta::reversed;
  return numbers;
}

PlanSizes check_plan(const char* op, const at::Tensor& plan, c10::SymIntArrayRef sizes) {
  const auto refuse_unless = [&](bool valid) {
    TORCH_CHECK(valid, "[lacewing.", op, "] sizes are not the description of a convolution plan");
  };
  std::vector<std::int64_t> numbers;
  for (const c10::SymInt& size : sizes) {
    if (const auto number = size.maybe_as_int()) {
      numbers.push_back(*number);
    }
  }
  // What is traced was built by conv_plan; the op looks at it again when it runs.
  const bool traced = numbers.size() < sizes.size();
  refuse_unless(traced ? sizes.size() > PlanMeta::header : PlanMeta::valid(numbers));
  TORCH_CHECK(plan.scalar_type() == at::kInt && plan.dim() == 1 && plan.is_contiguous(), "[lacewing.", op,
              "] plan must be a contiguous int32 array of one dimension, not ", dtype_text(plan.scalar_type()),
              " of shape ", shape_text(plan.sym_sizes()));
  const std::int64_t flags = sizes[PlanMeta::flags_at].guard_int(__FILE__, __LINE__);
  const c10::SymInt& fine = sizes[0];
  const c10::SymInt& coarse = sizes[1];
  const c10::SymInt taps = static_cast<std::int64_t>(sizes.size() - PlanMeta::header - 1);
  refuse_unless(taps == sizes[2]);
  const c10::SymInt length = PlanMeta::length(fine, coarse, taps, sizes.back(), flags);
  TORCH_SYM_CHECK(plan.sym_size(0).sym_eq(length), "[lacewing.", op, "] plan has ", plan.sym_size(0),
                  " entries, but its description says ", length);
  const bool back = (flags & PlanMeta::reversed) != 0;
  return {back ? coarse : fine, back ? fine : coarse, taps};
}

void check_rows(const char* op, const char* argument, const at::Tensor& tensor, const c10::SymInt& rows,
                const char* side, const at::Tensor& plan) {
  dispatch::detail::check_rank(op, argument, tensor, 2);
  TORCH_CHECK(tensor.layout() == at::kStrided, "[lacewing.", op, "] ", argument,
              " must be a dense tensor, not one of layout ", tensor.layout());
  const auto type = tensor.scalar_type();
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble, "[lacewing.", op,
              "] ", argument, " must have dtype float16, bfloat16, float32 or float64, not ", dtype_text(type));
  TORCH_SYM_CHECK(tensor.sym_size(0).sym_eq(rows), "[lacewing.", op, "] ", argument, " of shape ",
                  shape_text(tensor.sym_sizes()), " do not belong to this plan: its ", side, " coordinates have ", rows,
                  " voxels");
  TORCH_CHECK(tensor.device() == plan.device(), "[lacewing.", op, "] ", argument, " are on ", tensor.device(),
              " but the plan is on ", plan.device());
}

ConvShape check_conv(const at::Tensor& features, const at::Tensor& weight, const OptionalTensor& bias,
                     const at::Tensor& plan, c10::SymIntArrayRef sizes, bool transposed) {
  ConvShape shape;
  shape.plan = check_plan(kConv, plan, sizes);
  check_rows(kConv, "features", features, shape.plan.source_rows, "source", plan);
  TORCH_CHECK(weight.dim() == 4, "[lacewing.", kConv,
              "] weight must be (taps, groups, in/groups, out/groups), not of shape ", shape_text(weight.sym_sizes()));
  TORCH_SYM_CHECK(weight.sym_size(0).sym_eq(shape.plan.taps), "[lacewing.", kConv, "] weight of shape ",
                  shape_text(weight.sym_sizes()), " has ", weight.sym_size(0), " taps, but the plan has ",
                  shape.plan.taps);
  check_same(kConv, "weight", weight, features);
  shape.groups = weight.sym_size(1);
  TORCH_SYM_CHECK(shape.groups.sym_gt(0), "[lacewing.", kConv, "] weight of shape ", shape_text(weight.sym_sizes()),
                  " has no groups");
  shape.in = weight.sym_size(transposed ? 3 : 2);
  shape.out = weight.sym_size(transposed ? 2 : 3);
  TORCH_SYM_CHECK(features.sym_size(1).sym_eq(shape.groups * shape.in), "[lacewing.", kConv, "] features of shape ",
                  shape_text(features.sym_sizes()), " have ", features.sym_size(1), " channels, but weight of shape ",
                  shape_text(weight.sym_sizes()), " takes ", shape.groups * shape.in);
  if (bias) {
    dispatch::detail::check_rank(kConv, "bias", *bias, 1);
    check_same(kConv, "bias", *bias, features);
    TORCH_SYM_CHECK(bias->sym_size(0).sym_eq(shape.groups * shape.out), "[lacewing.", kConv, "] bias has ",
                    bias->sym_size(0), " entries, but there are ", shape.groups * shape.out, " output channels");
  }
  return shape;
}

ConvShape check_weight_grad(const at::Tensor& features, const at::Tensor& grad, const at::Tensor& plan,
                            c10::SymIntArrayRef sizes, std::int64_t groups) {
  ConvShape shape;
  shape.plan = check_plan(kWeightGrad, plan, sizes);
  check_rows(kWeightGrad, "features", features, shape.plan.source_rows, "source", plan);
  check_rows(kWeightGrad, "grad", grad, shape.plan.target_rows, "target", plan);
  check_same(kWeightGrad, "grad", grad, features);
  TORCH_CHECK(groups > 0, "[lacewing.", kWeightGrad, "] groups must be positive, not ", groups);
  for (const at::Tensor* const side : {&features, &grad}) {
    TORCH_SYM_CHECK((side->sym_size(1) % groups).sym_eq(0), "[lacewing.", kWeightGrad, "] ", groups,
                    " groups do not divide ", side->sym_size(1), " channels");
  }
  shape.groups = groups;
  shape.in = features.sym_size(1) / groups;
  shape.out = grad.sym_size(1) / groups;
  return shape;
}

}  // namespace lacewing::conv
