#include "product/form_args.h"

#include <lacewing/dispatch/torch.h>

namespace lacewing::products {
namespace {

using kernels::FormArgs;
using kernels::Place;

/// The letters of a call in the kernels' order: those of the role that is computed first.
std::string kernel_letters(const FormCall& call) {
  std::string letters = call.form.role(call.role).letters;
  for (const char letter : call.form.letters()) {
    if (letters.find(letter) == std::string::npos) {
      letters += letter;
    }
  }
  return letters;
}

/// A role's tensor as the kernels see it.
Place place_of(const FormCall& call, int r, const at::Tensor& tensor, const std::string& letters) {
  const FormRole& role = call.form.role(r);
  Place place;
  std::int64_t dim = 0;
  place.data = tensor.const_data_ptr();
  place.conjugate = tensor.is_conj();
  place.batch_stride = role.has_batch() ? tensor.stride(dim++) : 0;
  place.row_stride = role.has_rows ? tensor.stride(dim++) : 0;
  for (const char letter : role.dims()) {
    const std::int64_t size = tensor.size(dim);
    const std::int64_t stride = tensor.stride(dim++);
    place.letter_stride[letters.find(letter)] = size == 1 ? 0 : stride;
  }
  for (std::size_t i = 0; i < letters.size(); ++i) {
    place.layout.column[i] =
        role.lays_out(letters[i]) ? static_cast<std::int8_t>(role.letters.find(letters[i])) : std::int8_t{-1};
  }
  return place;
}

/// Whose rows tell a letter's extent: nobody's where a uniform role tells it.
std::int8_t extent_source(const FormCall& call, char letter, const std::vector<int>& factors) {
  const FormRole& out = call.form.role(call.role);
  if (out.has(letter)) {
    return out.lays_out(letter) ? FormArgs::kOutExtent : FormArgs::kOwnExtent;
  }
  std::int8_t from = FormArgs::kOwnExtent;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const FormRole& role = call.form.role(factors[f]);
    if (role.has(letter)) {
      if (!role.lays_out(letter)) {
        return FormArgs::kOwnExtent;
      }
      from = static_cast<std::int8_t>(f);
    }
  }
  return from;
}

void check_array(const at::Tensor& array, std::int64_t length, bool wide) {
  TORCH_CHECK(array.numel() == length && array.is_contiguous() && array.scalar_type() == (wide ? at::kLong : at::kInt),
              "[lacewing.product] sizes do not describe the plan, an array of ", array.numel(), " integers");
}

}  // namespace

FormArgs form_arguments(const FormCall& call, const std::vector<at::Tensor>& tensors, at::TensorList plan,
                        const at::Tensor& out) {
  FormArgs args;
  args.type = scalar_type("product", "operands", out.scalar_type());
  const std::string letters = kernel_letters(call);
  std::vector<int> factors;
  for (int r = 0; r < call.form.count(); ++r) {
    const at::Tensor& tensor = tensors[static_cast<std::size_t>(r)];
    if (r != call.role && tensor.defined()) {
      args.factor[factors.size()] = place_of(call, r, tensor, letters);
      factors.push_back(r);
    }
  }
  args.factors = static_cast<int>(factors.size());
  args.out = place_of(call, call.role, out, letters);
  const FormRole& computed = call.form.role(call.role);
  args.letters = static_cast<int>(letters.size());
  args.out_letters = static_cast<int>(computed.letters.size());
  for (std::size_t i = 0; i < letters.size(); ++i) {
    args.extent[i] = call.extent(letters[i]).expect_int();
    args.extent_from[i] = extent_source(call, letters[i], factors);
  }
  const structure::TermViews terms = term_views(call);
  const structure::EdgeViews edges = edge_views(call);
  check_array(plan[0], terms.length(), terms.wide);
  check_array(plan[1], edges.length(), edges.wide);
  terms.read(plan[0].const_data_ptr(), call.role, factors, args);
  edges.read(plan[1].const_data_ptr(), call.role, factors, args);
  for (const char letter : computed.dims()) {
    args.first_unit *= call.extent(letter).expect_int();
  }
  const FormSizes::Role& size = call.sizes.roles[static_cast<std::size_t>(call.role)];
  args.row_elements = args.first_unit * (computed.has_layout() ? size.widest.expect_int() : 1);
  args.out_elements = args.first_unit * (computed.has_layout() ? size.covered.expect_int() : args.rows);
  return args;
}

bool is_empty_sum(const FormArgs& args) {
  for (int letter = 0; letter < args.letters; ++letter) {
    if (args.extent_from[letter] == FormArgs::kOwnExtent && args.extent[letter] == 0) {
      return true;
    }
  }
  return args.terms == 0 || args.edges == 0;
}

}  // namespace lacewing::products
