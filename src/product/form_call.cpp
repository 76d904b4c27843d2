#include "product/form_call.h"

#include <ATen/native/TypeProperties.h>

#include <lacewing/dispatch/torch.h>

#include "product/shape.h"

namespace lacewing::products {
namespace {

using kernels::BatchMap;

constexpr std::size_t kHeader = 2;
constexpr std::size_t kRoleSizes = 5;
constexpr std::size_t kEdgeHeader = 3;

/// "(E, rows, u, v)": the dims that a role's tensor has.
std::string expected_dims(const Form& form, int r) {
  const FormRole& role = form.role(r);
  std::string text = "(";
  const auto add = [&](std::string_view dim) {
    text += text.size() > 1 ? ", " : "";
    text += dim;
  };
  if (role.has_batch()) {
    add(role.map == BatchMap::own ? "E" : "batch");
  }
  if (role.has_layout() || role.has_rows) {
    add(role.has_layout() ? "elements" : "rows");
  }
  for (const char& letter : role.dims()) {
    add({&letter, 1});
  }
  text += ")";
  return text;
}

/// What has told a size first.
struct Known {
  std::string by;
};

/// Checks one call; remembers who told each size, so that errors name both.
class Checker {
 public:
  Checker(const char* op, FormCall& call, const std::vector<at::Tensor>& tensors)
      : op_(op), call_(call), tensors_(tensors), letters_(call.form.letters()), told_(letters_.size()) {}

  void check(at::TensorList plan) {
    settle_maps();
    for (int r = 0; r < call_.form.count(); ++r) {
      if (at(r).defined()) {
        check_kind(r);
        take_dims(r);
      }
    }
    settle();
    check_plan(plan);
  }

 private:
  const at::Tensor& at(int r) const { return tensors_[static_cast<std::size_t>(r)]; }
  FormSizes::Role& sizes(int r) { return call_.sizes.roles[static_cast<std::size_t>(r)]; }
  std::string name(int r) const { return role_name(call_.form, r); }

  /// A map by rank is own where the tensor has a dim for it, and that of the output where any operand has one.
  void settle_maps() {
    bool any = false;
    for (int r = 0; r < call_.form.scale(); ++r) {
      FormRole& role = call_.form.role(r);
      if (role.map_by_rank) {
        const bool batched = r == call_.form.output() ? any : at(r).defined() && at(r).dim() == role.rank() + 1;
        role.map = batched ? BatchMap::own : BatchMap::shared;
        role.map_by_rank = false;
      }
      any = any || role.map == BatchMap::own;
    }
  }

  void check_kind(int r) const {
    const at::ScalarType type = at(r).scalar_type();
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble ||
                    type == at::kComplexFloat || type == at::kComplexDouble,
                "[lacewing.", op_, "] ", name(r),
                " must have dtype float16, bfloat16, float32, float64, complex64 or complex128, not ",
                dtype_text(type));
    for (int first = 0; first < r; ++first) {
      if (at(first).defined()) {
        TORCH_CHECK(at(r).device() == at(first).device(), "[lacewing.", op_, "] ", name(r), " is on ", at(r).device(),
                    " but ", name(first), " is on ", at(first).device());
        return;
      }
    }
  }

  void same(int r, const char* what, const c10::SymInt& size, const c10::SymInt& expected,
            const std::string& told) const {
    TORCH_CHECK(size == expected, "[lacewing.", op_, "] ", name(r), " of shape ", shape_text(at(r).sym_sizes()),
                " does not fit: it has ", size, " ", what, ", but ", told, " ", expected);
  }

  void take_dims(int r) {
    const FormRole& role = call_.form.role(r);
    TORCH_CHECK(at(r).dim() == role.rank() + (role.has_batch() ? 1 : 0), "[lacewing.", op_, "] ", name(r),
                " must have shape ", expected_dims(call_.form, r), " in \"", call_.form.terms_text(), "\", not ",
                shape_text(at(r).sym_sizes()));
    std::int64_t dim = 0;
    if (role.map == BatchMap::own) {
      const c10::SymInt size = at(r).sym_size(dim++);
      if (edges_by_.by.empty() && call_.sizes.edges.maybe_as_int() == FormSizes::kUnknown) {
        call_.sizes.edges = size;
        edges_by_ = {name(r) + " has"};
      }
      same(r, "rows of the batch", size, call_.sizes.edges, edges_by_.by.empty() ? "the edges are" : edges_by_.by);
    } else if (role.map == BatchMap::list) {
      same(r, "rows of the batch", at(r).sym_size(dim++), sizes(r).batch, "the edges were built for");
    }
    if (role.has_layout()) {
      same(r, "elements", at(r).sym_size(dim++), sizes(r).elements, "the plan's layout has");
    } else if (role.has_rows) {
      same(r, r == call_.form.scale() ? "entries" : "rows", at(r).sym_size(dim++), sizes(r).rows, "the plan has");
    }
    for (const char letter : role.dims()) {
      take_letter(r, letter, at(r).sym_size(dim++));
    }
  }

  void take_letter(int r, char letter, const c10::SymInt& size) {
    const std::size_t i = letters_.find(letter);
    c10::SymInt& extent = call_.sizes.extents[i];
    Known& told = told_[i];
    if (told.by.empty() && extent.maybe_as_int() == FormSizes::kUnknown) {
      extent = size;
      told = {name(r)};
    }
    TORCH_CHECK(size == extent, "[lacewing.", op_, "] letter ", letter, " is ", size, " in ", name(r), " of shape ",
                shape_text(at(r).sym_sizes()), " but ", extent, " in ", told.by.empty() ? "the plan" : told.by);
  }

  /// What no tensor tells must be the plan's.
  void settle() {
    const FormRole& computed = call_.form.role(call_.role);
    if (call_.sizes.edges.maybe_as_int() == FormSizes::kUnknown) {
      call_.sizes.edges = 1;
    }
    for (const char letter : computed.dims()) {
      TORCH_CHECK(call_.extent(letter).maybe_as_int() != FormSizes::kUnknown, "[lacewing.", op_, "] letter ", letter,
                  " stands in the output alone: give its extent with the plan, extents={\"", letter, "\": ...}");
    }
  }

  void check_plan(at::TensorList plan) const {
    const at::Tensor* first = nullptr;
    for (const at::Tensor& tensor : tensors_) {
      first = first == nullptr && tensor.defined() ? &tensor : first;
    }
    if (plan.empty()) {
      return;  // nothing will be computed
    }
    TORCH_CHECK(plan.size() == 2, "[lacewing.", op_, "] plan must be the arrays of terms and edges, not ", plan.size(),
                " tensors");
    for (const at::Tensor& array : plan) {
      TORCH_CHECK(first == nullptr || array.device() == first->device(), "[lacewing.", op_, "] the plan is on ",
                  array.device(), " but operands[0] is on ", first->device());
    }
  }

  const char* op_;
  FormCall& call_;
  const std::vector<at::Tensor>& tensors_;
  std::string letters_;
  std::vector<Known> told_;
  Known edges_by_;
};

std::int64_t known(const c10::SymInt& size) { return size.guard_int(__FILE__, __LINE__); }

}  // namespace

std::vector<c10::SymInt> FormSizes::to_vector() const {
  std::vector<c10::SymInt> values{terms, wide};
  for (const Role& role : roles) {
    values.insert(values.end(), {role.rows, role.flags, role.elements, role.covered, role.widest});
  }
  values.insert(values.end(), extents.begin(), extents.end());
  values.insert(values.end(), {edges, edges_wide, edges_sorted});
  for (std::size_t r = 0; r + 1 < roles.size(); ++r) {
    values.push_back(roles[r].batch);
  }
  return values;
}

FormSizes FormSizes::from(const char* op, const Form& form, c10::SymIntArrayRef values) {
  const std::size_t count = form.roles.size();
  const std::size_t letters = form.letters().size();
  const std::size_t expected = kHeader + kRoleSizes * count + letters + kEdgeHeader + count - 1;
  TORCH_CHECK(values.size() == expected, "[lacewing.", op, "] sizes must have ", expected, " integers for \"",
              form.text(), "\", not ", values.size());
  FormSizes sizes;
  const c10::SymInt* next = values.data();
  sizes.terms = *next++;
  sizes.wide = *next++;
  for (std::size_t r = 0; r < count; ++r, next += kRoleSizes) {
    sizes.roles.push_back({next[0], next[1], next[2], next[3], next[4]});
  }
  sizes.extents.assign(next, next + letters);
  next += letters;
  sizes.edges = *next++;
  sizes.edges_wide = *next++;
  sizes.edges_sorted = *next++;
  for (std::size_t r = 0; r + 1 < count; ++r) {
    sizes.roles[r].batch = *next++;
  }
  return sizes;
}

c10::SymInt FormCall::extent(char letter) const { return sizes.extents[form.letters().find(letter)]; }

c10::SymDimVector FormCall::shape(int of) const {
  const FormRole& role = form.role(of);
  const FormSizes::Role& size = sizes.roles[static_cast<std::size_t>(of)];
  c10::SymDimVector dims;
  if (role.has_batch()) {
    dims.push_back(role.map == BatchMap::own ? sizes.edges : size.batch);
  }
  if (role.has_layout()) {
    dims.push_back(size.elements);
  } else if (role.has_rows) {
    dims.push_back(size.rows);
  }
  for (const char letter : role.dims()) {
    dims.push_back(extent(letter));
  }
  return dims;
}

std::vector<int> FormCall::read() const {
  std::vector<int> roles;
  for (int r = 0; r <= form.output(); ++r) {
    if (r != role) {
      roles.push_back(r);
    }
  }
  return roles;
}

std::vector<at::Tensor> by_role(const char* op, const Form& form, int role, at::TensorList operands,
                                const std::optional<at::Tensor>& scale) {
  TORCH_CHECK(role >= 0 && role < form.count(), "[lacewing.", op, "] role must lie in [0, ", form.count(), "), not ",
              role);
  const int expected = form.operands() + (role == form.scale() ? 1 : 0);
  TORCH_CHECK(static_cast<int>(operands.size()) == expected, "[lacewing.", op, "] \"", form.text(), "\" takes ",
              expected, " operands, not ", operands.size());
  std::vector<at::Tensor> tensors(form.roles.size());
  std::size_t next = 0;
  for (int r = 0; r <= form.output(); ++r) {
    if (r != role) {
      TORCH_CHECK(operands[next].defined(), "[lacewing.", op, "] ", role_name(form, r), " is an undefined tensor");
      tensors[static_cast<std::size_t>(r)] = operands[next++];
    }
  }
  if (scale && scale->defined()) {
    TORCH_CHECK(role != form.scale(), "[lacewing.", op, "] scale is what is computed: it must be absent");
    tensors.back() = *scale;
  }
  return tensors;
}

FormCall check_form(const char* op, std::string_view form, c10::SymIntArrayRef sizes, int role,
                    const std::vector<at::Tensor>& tensors, at::TensorList plan) {
  FormCall call;
  call.form = Form::parse(op, form);
  call.sizes = FormSizes::from(op, call.form, sizes);
  call.role = role;
  Checker(op, call, tensors).check(plan);
  const at::Tensor& scale = tensors.back();
  TORCH_CHECK(!scale.defined() || !scale.is_complex() || c10::isComplexType(form_dtype(call, tensors)), "[lacewing.",
              op, "] scale is complex but all operands are real: its imaginary part would be lost");
  return call;
}

at::ScalarType form_dtype(const FormCall& call, const std::vector<at::Tensor>& tensors) {
  at::native::ResultTypeState state;
  for (const int r : call.read()) {
    state = at::native::update_result_type_state(tensors[static_cast<std::size_t>(r)], state);
  }
  return at::native::result_type(state);
}

structure::TermViews term_views(const FormCall& call) {
  structure::TermViews views;
  views.terms = known(call.sizes.terms);
  views.wide = known(call.sizes.wide) != 0;
  for (std::size_t r = 0; r < call.form.roles.size(); ++r) {
    const FormSizes::Role& size = call.sizes.roles[r];
    views.roles.push_back(
        {known(size.rows), known(size.flags), known(size.elements), call.form.roles[r].layout_letters});
  }
  return views;
}

structure::EdgeViews edge_views(const FormCall& call) {
  structure::EdgeViews views;
  views.edges = known(call.sizes.edges);
  views.wide = known(call.sizes.edges_wide) != 0;
  views.sorted = known(call.sizes.edges_sorted);
  for (std::size_t r = 0; r < call.form.roles.size(); ++r) {
    views.map.push_back(call.form.roles[r].map);
    views.batch.push_back(known(call.sizes.roles[r].batch));
  }
  return views;
}

}  // namespace lacewing::products
