// The raw forms as registered ops: the fields of an info in its place, checked in every call. They have no gradient and
// say so.
#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/product.h>

#include "common/refuse_layouts.h"
#include "common/typed_op.h"
#include "product/calls.h"
#include "product/resolve.h"
#include "product/shape.h"

namespace lacewing {
namespace products {
namespace {

constexpr const char* kSegment = "indexed_scale_segment";

using SegmentSignature = at::Tensor(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                                    const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                                    const OptionalTensor& gather_index);
using SegmentOutSignature = void(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                                 const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                                 const OptionalTensor& gather_index, at::Tensor& out);

const auto& segment_op() { return typed_op<"indexed_scale_segment", SegmentSignature>(); }
const auto& segment_out_op() { return typed_op<"indexed_scale_segment_out", SegmentOutSignature>(); }

/// The shapes of the fields, where there are no values.
struct FieldShapes {
  const std::string& op;
  const at::Tensor& input;

  /// The common length of the fields, or none where all are absent.
  std::optional<c10::SymInt> length(std::initializer_list<std::pair<const char*, OptionalTensor>> fields) const {
    std::optional<c10::SymInt> length;
    for (const auto& [argument, field] : fields) {
      if (!field) {
        continue;
      }
      TORCH_CHECK(!field->is_meta() || input.is_meta(), "[lacewing.", op, "] ", argument, " is on ", field->device(),
                  " but the input is on ", input.device());
      TORCH_CHECK(field->dim() == 1, "[lacewing.", op, "] ", argument, " must have 1 dimension, not shape ",
                  shape_text(field->sym_sizes()));
      const c10::SymInt size = field->sym_size(0);
      TORCH_SYM_CHECK(length.value_or(size).sym_eq(size), "[lacewing.", op, "] ", argument, " has ", size,
                      " entries but the fields before it have ", length.value_or(size));
      length = size;
    }
    return length;
  }

  /// The rows of the output: they never depend on the values of the fields.
  c10::SymInt rows(const std::optional<c10::SymInt>& out_size, const OptionalTensor& seg_out,
                   const OptionalTensor& gather_index, const std::optional<c10::SymInt>& entries,
                   const c10::SymInt& otherwise) const {
    const std::optional<c10::SymInt> segments = length({{"seg_out", seg_out}});
    const std::optional<c10::SymInt> gathered = length({{"gather_index", gather_index}});
    if (out_size) {
      TORCH_SYM_CHECK(out_size->sym_ge(0), "[lacewing.", op, "] out_size must not be negative, not ", *out_size);
      return *out_size;
    }
    return segments ? *segments - 1 : gathered ? *gathered : entries.value_or(otherwise);
  }
};

template <Kind kind>
at::Tensor raw(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
               const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& seg_out,
               const OptionalTensor& gather_index, const OptionalTensor& index_out,
               std::optional<std::int64_t> out_size, bool out_accumulated) {
  const std::string name = raw_name(kind);
  check_operands(kind, name.c_str(), input1, input2, out_accumulated);
  const SparseProductInfo::Fields fields{scale, index1, index2, seg_out, gather_index, index_out, out_size};
  const SparseProductInfo info =
      resolved_for(kind, name.c_str(), SparseProductInfo(fields, name.c_str()).to(input1.device()), input1, input2);
  const Plan plan(info.plan().array, info.plan().sizes);
  check_product(kind, name.c_str(), input1, input2, info.scale(), plan, out_accumulated);
  return call_product(kind, input1, input2, info.scale(), {plan}, out_accumulated);
}

template <Kind kind>
at::Tensor raw_meta(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                    const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& seg_out,
                    const OptionalTensor& gather_index, const OptionalTensor& index_out,
                    std::optional<c10::SymInt> out_size, bool out_accumulated) {
  const std::string name = raw_name(kind);
  const ProductShape shape = check_operands(kind, name.c_str(), input1, input2, out_accumulated);
  const FieldShapes fields{name, input1};
  fields.length({{"index_out", index_out}});
  const auto entries = fields.length({{"index1", index1}, {"index2", index2}, {"scale", scale}});
  return at::empty_symint(
      shape.output(traits(kind).z, fields.rows(out_size, seg_out, gather_index, entries, shape.rows_x)),
      input1.options().dtype(result_dtype(input1, input2)));
}

/// The terms of a segment sum for this input, with T settled.
SparseScaleInfo segment_info(const at::Tensor& input, const SparseScaleInfo::Fields& fields) {
  check_operands(Kind::scale, kSegment, input, {}, false);
  const auto check_segments = [&](std::int64_t segments) {
    TORCH_CHECK_VALUE(!fields.out_size || segments >= *fields.out_size, "[lacewing.", kSegment, "] seg_out has ",
                      segments, " segments but out_size is ", fields.out_size.value_or(0));
  };
  if (fields.seg_out && fields.seg_out->dim() == 1) {
    check_segments(fields.seg_out->size(0) - 1);
  }
  const SparseScaleInfo info = SparseScaleInfo(fields, kSegment).to(input.device()).resolved(input.size(-2));
  if (!fields.seg_out) {
    check_segments(structure::PlanMeta::from(info.plan().sizes).resolved(input.size(-2)).terms);
  }
  check_product(Kind::scale, kSegment, input, {}, info.scale(), {info.plan().array, info.plan().sizes}, false);
  return info;
}

at::Tensor segment(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                   const OptionalTensor& seg_out, std::optional<std::int64_t> out_size,
                   const OptionalTensor& gather_index) {
  const SparseScaleInfo info = segment_info(input, {scale, index, seg_out, gather_index, out_size});
  return call_product(Kind::scale, input, {}, info.scale(), {Plan(info.plan().array, info.plan().sizes)}, false);
}

at::Tensor segment_meta(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                        const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                        const OptionalTensor& gather_index) {
  const ProductShape shape = check_operands(Kind::scale, kSegment, input, {}, false);
  c10::SymDimVector sizes(input.sym_sizes());
  const std::string name = kSegment;
  const FieldShapes fields{name, input};
  const auto entries = fields.length({{"index", index}, {"scale", scale}});
  sizes[sizes.size() - 2] = fields.rows(out_size, seg_out, gather_index, entries, shape.rows_x);
  return at::empty_symint(sizes, input.options());
}

/// The bytes of memory that a tensor reaches, from its first to past its last.
std::pair<const char*, const char*> span_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const char* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * tensor.element_size()};
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || a.device() != b.device()) {
    return false;
  }
  const auto [a_begin, a_end] = span_of(a);
  const auto [b_begin, b_end] = span_of(b);
  return a_begin < b_end && b_begin < a_end;
}

void check_out(const at::Tensor& input, c10::SymIntArrayRef sizes, const at::Tensor& out) {
  TORCH_CHECK_VALUE(
      out.sym_sizes() == sizes && out.scalar_type() == input.scalar_type() && out.device() == input.device(),
      "[lacewing.", kSegment, "] out must have shape ", shape_text(sizes), ", dtype ", dtype_text(input.scalar_type()),
      " and be on ", input.device(), ", not ", shape_text(out.sym_sizes()), ", ", dtype_text(out.scalar_type()),
      " and ", out.device());
}

void segment_out(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                 const OptionalTensor& seg_out, std::optional<std::int64_t> out_size,
                 const OptionalTensor& gather_index, at::Tensor& out) {
  const at::Tensor value = segment(input, scale, index, seg_out, out_size, gather_index);
  check_out(input, value.sym_sizes(), out);
  TORCH_CHECK_VALUE(!share_memory(out, input), "[lacewing.", kSegment, "] out must not share memory with the input");
  out.copy_(value);
}

void segment_out_meta(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                      const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                      const OptionalTensor& gather_index, at::Tensor& out) {
  check_out(input, segment_meta(input, scale, index, seg_out, std::move(out_size), gather_index).sym_sizes(), out);
}

/// Refuses tensors that a gradient would have to flow through.
void refuse_grad(const std::string& op, const char* instead,
                 std::initializer_list<std::pair<const char*, OptionalTensor>> tensors) {
  for (const auto& [argument, tensor] : tensors) {
    const bool backward = tensor && c10::GradMode::is_enabled() && tensor->requires_grad();
    TORCH_CHECK_VALUE(!backward && !(tensor && tensor->_fw_grad(/*level=*/0).defined()), "[lacewing.", op, "] ",
                      argument, " requires grad, but this op has no gradient: use ", instead, ", or detach it");
  }
}

template <Kind kind>
at::Tensor raw_refusing(const at::Tensor& input1, const at::Tensor& input2, const OptionalTensor& scale,
                        const OptionalTensor& index1, const OptionalTensor& index2, const OptionalTensor& seg_out,
                        const OptionalTensor& gather_index, const OptionalTensor& index_out,
                        std::optional<c10::SymInt> out_size, bool out_accumulated) {
  refuse_grad(raw_name(kind), traits(kind).name, {{"input1", input1}, {"input2", input2}, {"scale", scale}});
  const at::AutoDispatchBelowADInplaceOrView below;
  return raw_handle(kind).call(input1, input2, scale, index1, index2, seg_out, gather_index, index_out,
                               std::move(out_size), out_accumulated);
}

at::Tensor segment_refusing(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                            const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                            const OptionalTensor& gather_index) {
  refuse_grad(kSegment, traits(Kind::scale).name, {{"input", input}, {"scale", scale}});
  const at::AutoDispatchBelowADInplaceOrView below;
  return segment_op().call(input, scale, index, seg_out, std::move(out_size), gather_index);
}

void segment_out_refusing(const at::Tensor& input, const OptionalTensor& scale, const OptionalTensor& index,
                          const OptionalTensor& seg_out, std::optional<c10::SymInt> out_size,
                          const OptionalTensor& gather_index, at::Tensor& out) {
  refuse_grad(kSegment, traits(Kind::scale).name, {{"input", input}, {"scale", scale}, {"out", out}});
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    segment_out_op().call(input, scale, index, seg_out, std::move(out_size), gather_index, out);
  }
  torch::autograd::impl::bump_version(out);
}

template <std::size_t... Kinds>
void register_batched(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(raw_name(static_cast<Kind>(Kinds)).c_str(), raw<static_cast<Kind>(Kinds)>), ...);
  m.impl("indexed_scale_segment", segment);
}

template <std::size_t... Kinds>
void register_device(torch::Library& m, std::index_sequence<Kinds...> kinds) {
  register_batched(m, kinds);
  m.impl("indexed_scale_segment_out", segment_out);
}

template <std::size_t... Kinds>
void register_meta(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(raw_name(static_cast<Kind>(Kinds)).c_str(), raw_meta<static_cast<Kind>(Kinds)>), ...);
  m.impl("indexed_scale_segment", segment_meta);
  m.impl("indexed_scale_segment_out", segment_out_meta);
}

template <std::size_t... Kinds>
void register_autograd(torch::Library& m, std::index_sequence<Kinds...>) {
  (m.impl(raw_name(static_cast<Kind>(Kinds)).c_str(), raw_refusing<static_cast<Kind>(Kinds)>), ...);
  m.impl("indexed_scale_segment", segment_refusing);
  m.impl("indexed_scale_segment_out", segment_out_refusing);
}

using Products = std::make_index_sequence<kProducts>;

}  // namespace

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  for (std::int64_t i = 0; i < kProducts; ++i) {
    const std::string schema = raw_name(static_cast<Kind>(i)) +
                               "(Tensor input1, Tensor input2, Tensor? scale=None, Tensor? index1=None, "
                               "Tensor? index2=None, Tensor? seg_out=None, Tensor? gather_index=None, "
                               "Tensor? index_out=None, SymInt? out_size=None, bool out_accumulated=False) -> Tensor";
    define_dense_op(m, schema, {at::Tag::pt2_compliant_tag});
  }
  define_dense_op(
      m,
      "indexed_scale_segment(Tensor input, Tensor? scale, Tensor? index, Tensor? seg_out, SymInt? out_size=None, "
      "Tensor? gather_index=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  define_dense_op(
      m,
      "indexed_scale_segment_out(Tensor input, Tensor? scale, Tensor? index, Tensor? seg_out, SymInt? out_size, "
      "Tensor? gather_index, Tensor(a!) out) -> ()",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(lacewing, CPU, m) { register_device(m, Products{}); }
TORCH_LIBRARY_IMPL(lacewing, CUDA, m) { register_device(m, Products{}); }
TORCH_LIBRARY_IMPL(lacewing, Meta, m) { register_meta(m, Products{}); }
TORCH_LIBRARY_IMPL(lacewing, Autograd, m) { register_autograd(m, Products{}); }

// The batch of the inputs reaches the product, which has a rule for it.
TORCH_LIBRARY_IMPL(lacewing, FuncTorchBatched, m) { register_batched(m, Products{}); }

// The products read conjugated operands in place.
TORCH_LIBRARY_IMPL(lacewing, Conjugate, m) {
  for (std::int64_t i = 0; i < kProducts; ++i) {
    m.impl(raw_name(static_cast<Kind>(i)).c_str(), torch::CppFunction::makeFallthrough());
  }
  m.impl("indexed_scale_segment", torch::CppFunction::makeFallthrough());
  m.impl("indexed_scale_segment_out", torch::CppFunction::makeFallthrough());
}

// torch's own way with negated views does not know ops that return nothing; the kernel calls ops that see to them.
TORCH_LIBRARY_IMPL(lacewing, Negative, m) {
  m.impl("indexed_scale_segment_out", torch::CppFunction::makeFallthrough());
}

}  // namespace products

at::Tensor indexed_product(const char* op, const at::Tensor& input1, const at::Tensor& input2,
                           const SparseProductInfo::Fields& fields, bool out_accumulated) {
  const products::Kind kind = products::kind_named("indexed_product", op);
  products::check_defined(products::raw_name(kind).c_str(), "input1", input1);
  products::check_defined(products::raw_name(kind).c_str(), "input2", input2);
  return products::raw_handle(kind).call(input1, input2, fields.scale, fields.index1, fields.index2, fields.seg_out,
                                         fields.gather_index, fields.index_out, fields.out_size, out_accumulated);
}

at::Tensor indexed_scale_segment(const at::Tensor& input, const SparseScaleInfo::Fields& fields) {
  products::check_defined(products::kSegment, "input", input);
  return products::segment_op().call(input, fields.scale, fields.index, fields.seg_out, fields.out_size,
                                     fields.gather_index);
}

at::Tensor& indexed_scale_segment_out(at::Tensor& out, const at::Tensor& input, const SparseScaleInfo::Fields& fields) {
  products::check_defined(products::kSegment, "input", input);
  products::check_defined(products::kSegment, "out", out);
  products::segment_out_op().call(input, fields.scale, fields.index, fields.seg_out, fields.out_size,
                                  fields.gather_index, out);
  return out;
}

}  // namespace lacewing
