// One call of a form: its sizes, the sentences for tensors that do not fit, and the shape of what it computes.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include "product/form.h"
#include "structure/edge_views.h"
#include "structure/term_views.h"

namespace lacewing::products {

/// The sizes of a plan and its edges, as they cross the boundary of an op: integers that may be symbolic. Whatever is
/// kUnknown is told by the operands.
struct FormSizes {
  static constexpr std::int64_t kUnknown = -1;

  struct Role {
    c10::SymInt rows;              ///< structure::RoleRows::none where the role has no dim for them
    c10::SymInt flags;             ///< structure::RoleRows::flags
    c10::SymInt elements;          ///< where the rows have a layout: of all rows, gaps included
    c10::SymInt covered;           ///< the same without gaps
    c10::SymInt widest;            ///< of the widest row
    c10::SymInt batch = kUnknown;  ///< batch rows, where a list names them
  };

  c10::SymInt terms = 0;
  c10::SymInt wide = 0;
  c10::SymInt edges = kUnknown;
  c10::SymInt edges_wide = 0;
  c10::SymInt edges_sorted = 0;
  std::vector<Role> roles;
  std::vector<c10::SymInt> extents;  ///< of the form's letters

  std::vector<c10::SymInt> to_vector() const;
  static FormSizes from(const char* op, const Form& form, c10::SymIntArrayRef values);
};

/// A call whose tensors fit together: what any of its derivatives needs beside them.
struct FormCall {
  Form form;
  FormSizes sizes;  ///< nothing is unknown, but for extents that layouts tell
  int role = 0;     ///< the role that is computed

  /// The shape of a role's tensor.
  c10::SymDimVector shape(int of) const;
  c10::SymInt extent(char letter) const;
  /// The roles that are read, in order, but for the coefficients.
  std::vector<int> read() const;
};

/// The tensors of a call in their roles: `operands` are those of every role but `role` and the coefficients, in order.
std::vector<at::Tensor> by_role(const char* op, const Form& form, int role, at::TensorList operands,
                                const std::optional<at::Tensor>& scale);

/// Checks tensors, plan and each other. Throws c10::Error with one sentence.
FormCall check_form(const char* op, std::string_view form, c10::SymIntArrayRef sizes, int role,
                    const std::vector<at::Tensor>& tensors, at::TensorList plan);

/// The dtype of the result.
at::ScalarType form_dtype(const FormCall& call, const std::vector<at::Tensor>& tensors);

/// The views of a call whose sizes are not symbolic.
structure::TermViews term_views(const FormCall& call);
structure::EdgeViews edge_views(const FormCall& call);

}  // namespace lacewing::products
