#include "product/shape.h"

#include <algorithm>
#include <sstream>

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>

#include <lacewing/dispatch/torch.h>

#include "kernels/terms.h"

namespace lacewing::products {
namespace {

using structure::PlanMeta;

/// "(N, M, C1, C2)" with the letters of an operand, "(M, C1, C2)" where it is shared.
std::string expected_text(Channels channels, bool scale, bool batched) {
  const char* const lead = scale ? "..., M" : batched ? "N, M" : "M";
  const char* const tail = channels.a && channels.b ? ", C1, C2" : channels.a || channels.b ? ", C" : "";
  return std::string("(") + lead + tail + ")";
}

void check_floating(const char* op, const char* argument, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble ||
                  type == at::kComplexFloat || type == at::kComplexDouble,
              "[lacewing.", op, "] ", argument,
              " must have dtype float16, bfloat16, float32, float64, complex64 or complex128, not ", dtype_text(type));
}

void check_device(const char* op, const char* argument, const at::Tensor& tensor, const char* name_x,
                  const at::Tensor& x) {
  TORCH_CHECK(tensor.device() == x.device(), "[lacewing.", op, "] ", argument, " is on ", tensor.device(), " but ",
              name_x, " is on ", x.device());
}

/// Finds the first entry whose index is too large, where the plan can be read: only on the way to an error.
std::string first_bad_index(const char* argument, const PlanMeta& meta, const at::Tensor& plan, bool second,
                            std::int64_t rows) {
  std::ostringstream text;
  if (plan.is_meta() || plan.unsafeGetTensorImpl()->is_python_dispatch()) {
    text << "an entry of " << argument;
    return text.str();
  }
  const at::Tensor host = plan.cpu();
  std::int64_t best_entry = -1;
  std::int64_t best_value = 0;
  const auto search = [&](auto index) {
    const kernels::TermsView<decltype(index)> terms(structure::terms_of(meta, host.const_data_ptr()));
    for (std::int64_t term = 0; term < meta.terms; ++term) {
      const std::int64_t value = second ? terms.second(term) : terms.first(term);
      const std::int64_t entry = terms.entry(term);
      if (value >= rows && (best_entry < 0 || entry < best_entry)) {
        best_entry = entry;
        best_value = value;
      }
    }
  };
  if (meta.has(PlanMeta::wide)) {
    search(std::int64_t{});
  } else {
    search(std::int32_t{});
  }
  if (best_entry < 0) {
    text << "an entry of " << argument << " that no segment uses, " << (second ? meta.need2 : meta.need1) - 1 << ",";
  } else {
    text << argument << "[" << best_entry << "] = " << best_value;
  }
  return text.str();
}

void check_rows(const char* op, const char* index, const char* argument, const at::Tensor& tensor,
                const c10::SymInt& rows, std::int64_t dim, const PlanSizes& sizes, const at::Tensor& plan,
                bool second) {
  if (rows < (second ? sizes.need2 : sizes.need1)) {
    TORCH_CHECK(false, "[lacewing.", op, "] ",
                first_bad_index(index, known(sizes), plan, second, rows.guard_int(__FILE__, __LINE__)),
                " is out of range for ", argument, " of shape ", shape_text(tensor.sym_sizes()), ": dim ", dim, " has ",
                rows, " entries");
  }
}

/// Refuses sizes of more elements than bytes can be counted for.
void check_addressable(const char* op, const char* what, c10::SymIntArrayRef sizes) {
  constexpr std::int64_t most = std::int64_t{1} << 58;
  std::int64_t count = 1;
  bool overflows = false;
  for (const c10::SymInt& size : sizes) {
    const std::optional<std::int64_t> known = size.maybe_as_int();
    if (!known || *known == 0) {
      return;
    }
    overflows = overflows || *known > most / count;
    count = overflows ? count : count * *known;
  }
  TORCH_CHECK(!overflows, "[lacewing.", op, "] ", what, " sizes ", shape_text(sizes), ": more than ", most,
              " elements");
}

struct OperandShape {
  bool batched;
  std::int64_t rows_dim;
};

OperandShape check_rank(Kind kind, const char* op, const char* argument, const at::Tensor& tensor, Channels channels) {
  const std::int64_t shared_rank = 1 + channels.count();
  if (kind == Kind::scale) {
    TORCH_CHECK(tensor.dim() >= 2, "[lacewing.", op, "] ", argument, " must have shape (..., M, C), not ",
                shape_text(tensor.sym_sizes()));
    return {true, tensor.dim() - 2};
  }
  TORCH_CHECK(tensor.dim() == shared_rank || tensor.dim() == shared_rank + 1, "[lacewing.", op, "] ", argument,
              " must have shape ", expected_text(channels, false, true), ", or ", expected_text(channels, false, false),
              " where it is shared, not ", shape_text(tensor.sym_sizes()));
  const bool batched = tensor.dim() == shared_rank + 1;
  return {batched, batched ? 1 : 0};
}

/// Takes the channel extents of an operand, or compares them with those that are known.
void take_channels(const char* op, const at::Tensor& x, const at::Tensor& y, const at::Tensor& tensor,
                   Channels channels, std::int64_t dim, std::optional<c10::SymInt>& a, std::optional<c10::SymInt>& b) {
  const auto take = [&](std::optional<c10::SymInt>& extent) {
    const c10::SymInt size = tensor.sym_size(dim++);
    TORCH_CHECK(!extent.has_value() || *extent == size, "[lacewing.", op, "] input1 of shape ",
                shape_text(x.sym_sizes()), " and input2 of shape ", shape_text(y.sym_sizes()),
                " do not fit: they must agree in the channels that the product joins, and have ", *extent, " and ",
                size);
    extent = size;
  };
  if (channels.a) {
    take(a);
  }
  if (channels.b) {
    take(b);
  }
}

}  // namespace

std::string shape_text(c10::SymIntArrayRef sizes) {
  std::ostringstream text;
  text << "(";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text << (i == 0 ? "" : ", ") << sizes[i];
  }
  text << (sizes.size() == 1 ? ",)" : ")");
  return text.str();
}

void check_defined(const char* op, const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "[lacewing.", op, "] ", argument, " is an undefined tensor");
}

at::ScalarType result_dtype(const at::Tensor& x, const at::Tensor& y) {
  const auto state = at::native::update_result_type_state(x, {});
  return at::native::result_type(at::native::update_result_type_state(y, state));
}

Kind kind_of(const char* op, std::int64_t number) {
  TORCH_CHECK(number >= 0 && number <= kProducts, "[lacewing.", op, "] kind must lie in [0, ", kProducts, "], not ",
              number);
  return static_cast<Kind>(number);
}

Kind kind_named(const char* op, std::string_view name, bool also_scale) {
  for (std::size_t i = 0; i < kTraits.size() && (also_scale || static_cast<Kind>(i) != Kind::scale); ++i) {
    if (name == kTraits[i].name) {
      return static_cast<Kind>(i);
    }
  }
  TORCH_CHECK(false, "[lacewing.", op, "] there is no product named ", name);
}

void check_same_rows(const char* op, const ProductShape& shape, bool unary) {
  TORCH_CHECK(unary || shape.rows_x == shape.rows_y, "[lacewing.", op,
              "] an info whose fields are all absent takes as many rows of input1 as of input2, not ", shape.rows_x,
              " and ", shape.rows_y);
}

c10::SymDimVector ProductShape::output(Channels z, const c10::SymInt& rows) const {
  c10::SymDimVector sizes;
  if (z_batched) {
    sizes.push_back(batch);
  }
  sizes.push_back(rows);
  if (z.a) {
    sizes.push_back(extent_a);
  }
  if (z.b) {
    sizes.push_back(extent_b);
  }
  return sizes;
}

ProductShape check_operands(Kind kind, const char* op, const at::Tensor& x, const at::Tensor& y, bool accumulated) {
  const KindTraits& of = traits(kind);
  const bool unary = kind == Kind::scale;
  const char* const name_x = unary ? "input" : "input1";
  check_floating(op, name_x, x);
  ProductShape shape;
  const OperandShape layout_x = check_rank(kind, op, name_x, x, of.x);
  shape.x_batched = layout_x.batched;
  shape.rows_dim_x = layout_x.rows_dim;
  shape.rows_x = x.sym_size(layout_x.rows_dim);
  std::optional<c10::SymInt> a;
  std::optional<c10::SymInt> b;
  take_channels(op, x, y, x, of.x, layout_x.rows_dim + 1, a, b);
  if (unary) {
    const c10::SymIntArrayRef leading = x.sym_sizes().slice(0, static_cast<std::size_t>(layout_x.rows_dim));
    check_addressable(op, "the leading dims of input are", leading);
    const bool none = std::any_of(leading.begin(), leading.end(), [](const c10::SymInt& n) { return n == 0; });
    for (const c10::SymInt& size : leading) {
      shape.batch = none ? c10::SymInt(0) : shape.batch * size;
    }
  } else {
    check_floating(op, "input2", y);
    check_device(op, "input2", y, name_x, x);
    const OperandShape layout_y = check_rank(kind, op, "input2", y, of.y);
    shape.y_batched = layout_y.batched;
    shape.rows_dim_y = layout_y.rows_dim;
    shape.rows_y = y.sym_size(layout_y.rows_dim);
    take_channels(op, x, y, y, of.y, layout_y.rows_dim + 1, a, b);
    if (shape.x_batched) {
      shape.batch = x.sym_size(0);
    }
    if (shape.y_batched) {
      TORCH_CHECK(!shape.x_batched || shape.batch == y.sym_size(0), "[lacewing.", op, "] input1 of shape ",
                  shape_text(x.sym_sizes()), " and input2 of shape ", shape_text(y.sym_sizes()),
                  " must agree in N; an operand that is the same for every n has no dim N");
      shape.batch = y.sym_size(0);
    }
  }
  shape.z_batched = (shape.x_batched || shape.y_batched) && !accumulated;
  shape.extent_a = a.value_or(1);
  shape.extent_b = b.value_or(1);
  return shape;
}

ProductShape check_product(Kind kind, const char* op, const at::Tensor& x, const at::Tensor& y,
                           const std::optional<at::Tensor>& scale, const Plan& given, bool accumulated) {
  const bool unary = kind == Kind::scale;
  const char* const name_x = unary ? "input" : "input1";
  const at::Tensor& plan = *given.array;
  check_device(op, "the info", plan, name_x, x);
  ProductShape shape = check_operands(kind, op, x, y, accumulated);
  shape.plan = given.sizes;
  if (given.sizes.is_dynamic()) {
    check_same_rows(op, shape, unary);
    shape.plan = given.sizes.resolved(shape.rows_x);
  }
  TORCH_CHECK(shape.plan.terms >= 0 && shape.plan.rows >= 0 && plan.sym_numel() == shape.plan.length() &&
                  plan.is_contiguous() && plan.scalar_type() == (shape.plan.has(PlanMeta::wide) ? at::kLong : at::kInt),
              "[lacewing.", op, "] sizes do not describe the plan, an array of ", plan.sym_numel(), " integers");
  check_rows(op, unary ? "index" : "index1", name_x, x, shape.rows_x, shape.rows_dim_x, shape.plan, plan, false);
  if (!unary) {
    check_rows(op, "index2", "input2", y, shape.rows_y, shape.rows_dim_y, shape.plan, plan, true);
  }
  check_addressable(op, "the output has", shape.output(traits(kind).z));
  if (scale.has_value()) {
    check_floating(op, "scale", *scale);
    check_device(op, "scale", *scale, name_x, x);
    TORCH_CHECK(scale->dim() == 1 && scale->sym_size(0) == shape.plan.entries, "[lacewing.", op,
                "] scale must have shape (", shape.plan.entries, ",), one entry for each term, not ",
                shape_text(scale->sym_sizes()));
    TORCH_CHECK(!scale->is_complex() || x.is_complex() || (y.defined() && y.is_complex()), "[lacewing.", op,
                "] scale is complex but ", unary ? "the input is" : "both inputs are",
                " real: its imaginary part would be lost");
  }
  return shape;
}

void check_backward_plan(Kind kind, const char* argument, bool second, const PlanSizes& forward,
                         const PlanSizes& backward, const c10::SymInt& rows) {
  bool same = true;
  if (backward.is_dynamic() || forward.is_dynamic()) {
    same = (backward.is_dynamic() || backward.is_identity()) && (forward.is_dynamic() || forward.is_identity());
  } else {
    const bool known = backward.hash != 0 && forward.hash != 0 && !forward.has(PlanMeta::mirrored);
    same = backward.terms == forward.terms &&
           (!known || backward.hash == (second ? forward.hash_bwd2 : forward.hash_bwd1));
  }
  TORCH_CHECK(
      same, "[lacewing.", traits(kind).name, "] ", argument,
      " does not hold the same terms as info_fwd, in the roles of this gradient: build the infos together, or leave it "
      "out");
  TORCH_CHECK(backward.is_dynamic() || rows == backward.rows, "[lacewing.", traits(kind).name, "] ", argument,
              " gives a gradient of ", backward.rows, " rows for an input of ", rows,
              " rows: build it with the input's size");
}

void check_grad(Kind kind, const ProductShape& shape, const at::Tensor& x, const at::Tensor& grad) {
  const c10::SymDimVector expected = shape.output(traits(kind).z);
  check_device(traits(kind).name, "grad", grad, kind == Kind::scale ? "input" : "input1", x);
  TORCH_CHECK(grad.sym_sizes() == c10::SymIntArrayRef(expected), "[lacewing.", traits(kind).name,
              "] grad must have the shape ", shape_text(expected), " of the output, not ",
              shape_text(grad.sym_sizes()));
}

}  // namespace lacewing::products
