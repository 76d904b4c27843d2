// A product as data: which letters its roles have, which of them have rows, and which batch row an edge takes.
//
// Roles are numbered: the operands, the output, the coefficients. As text, which crosses the boundary of ops:
//   "u,v,uvw.->w;|@o!@"     operands separated by commas, the output, the coefficients; then their batch maps
// A role is its letters, of which those before a '#' are described by the layout of its rows, and '.' where it has one
// row and no dim for it. A batch map is 'o' (own row for each edge), '!' (shared by all), '@' (a list) or '?' (own
// where the tensor has a dim for it); the coefficients are shared. Each derivative is the same form with another role
// computed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/form.h"

namespace lacewing::products {

struct FormRole {
  std::string letters;
  int layout_letters = -1;  ///< so many letters come first; -1 where the rows are uniform
  bool has_rows = true;
  kernels::BatchMap map = kernels::BatchMap::own;
  bool map_by_rank = false;  ///< own or shared: its tensor tells which

  bool has_batch() const { return map != kernels::BatchMap::shared; }
  bool has_layout() const { return layout_letters >= 0; }
  /// Whether the layout of the rows tells this letter's extent.
  bool lays_out(char letter) const {
    const std::size_t at = letters.find(letter);
    return at != std::string::npos && static_cast<int>(at) < layout_letters;
  }
  bool has(char letter) const { return letters.find(letter) != std::string::npos; }
  /// The letters that are dims of the tensor.
  std::string_view dims() const {
    return std::string_view(letters).substr(has_layout() ? static_cast<std::size_t>(layout_letters) : 0);
  }
  /// How many dims it has, but for the batch.
  std::int64_t rank() const { return (has_rows ? 1 : 0) + static_cast<std::int64_t>(dims().size()); }
};

struct Form {
  static constexpr int kMaxOperands = kernels::kMaxFactors - 2;  ///< beside coefficients and an upstream gradient

  std::vector<FormRole> roles;

  int operands() const { return static_cast<int>(roles.size()) - 2; }
  int output() const { return operands(); }
  int scale() const { return operands() + 1; }
  int count() const { return static_cast<int>(roles.size()); }
  const FormRole& role(int r) const { return roles[static_cast<std::size_t>(r)]; }
  FormRole& role(int r) { return roles[static_cast<std::size_t>(r)]; }

  /// All letters, each once, in the order in which they are met.
  std::string letters() const;
  /// A letter that no role has.
  char unused_letter(const char* op) const;
  /// Whether it is an outer product or a contraction, which autocast runs in its own dtype.
  bool multiplies_matrices() const;

  /// The text without the batch maps, and with them.
  std::string terms_text() const;
  std::string text() const;
  /// The form of a text that an op was given.
  static Form parse(const char* op, std::string_view text);
  /// The form of letters alone, as users write them ("u,v,uvw->w"); `op` is whom errors name.
  static Form of_letters(const char* op, std::string_view text);
};

/// "operands[1]", "grad" for the output's place, "scale".
std::string role_name(const Form& form, int role);

}  // namespace lacewing::products
