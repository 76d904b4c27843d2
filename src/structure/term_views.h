// The terms of a product as each of its roles sees them: grouped by the role's rows, with the rows of all other roles
// beside. A role is an operand, the output, or the coefficients; any of them may be what is computed. Torch-free.
//
// One array of int32 or int64 holds, for each role v in turn, what its flags name, and the identity where they do not:
//   segments (rows of v + 1), then for every other role its row in each term (terms), in the order of v;
// then for each role whose rows have a layout
//   offset (rows), extent (rows * letters), stride (rows * letters), first (rows + 1): elements of the rows before.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <lacewing/executor.h>

#include "kernels/form.h"

namespace lacewing::structure {

/// The rows of a role.
struct RoleRows {
  static constexpr std::int64_t none = -1;  ///< one row for all terms, and no dim for it

  std::int64_t rows = none;
  std::int64_t flags = 0;     ///< of its view: bit r, the column of role r is kept; bit `roles`, the segments are
  std::int64_t elements = 0;  ///< of all rows, where they have a layout
  int layout_letters = -1;    ///< how many letters the layout describes; -1 where rows are uniform

  bool has_rows() const { return rows != none; }
  bool has_layout() const { return layout_letters >= 0; }
};

/// Everything about the array but its integers.
struct TermViews {
  std::int64_t terms = 0;
  bool wide = false;
  std::vector<RoleRows> roles;

  int count() const { return static_cast<int>(roles.size()); }
  std::int64_t length() const;
  bool keeps(int view, int role) const { return ((roles[at(view)].flags >> role) & 1) != 0; }
  bool keeps_segments(int view) const { return keeps(view, count()); }

  /// The terms as `view` sees them: segments, rows and terms of args, the index of each factor (factor f is role
  /// `factors[f]`), and the layouts.
  void read(const void* array, int view, std::span<const int> factors, kernels::FormArgs& args) const;

 private:
  static std::size_t at(int role) { return static_cast<std::size_t>(role); }
};

/// What a plan is built from. Indices have `terms` entries below the role's rows; null is the identity, or the one row.
struct TermSource {
  struct Layout {
    std::vector<std::int64_t> offset, extent, stride;
  };
  std::int64_t terms = 0;
  std::vector<const std::int64_t*> index;
  std::vector<Layout> layout;  ///< of each role; empty where its rows are uniform
  std::vector<int> order;      ///< inside a row, terms are sorted by these roles, the most significant first
};

/// Fills in wide, flags and elements of `views`, whose terms, rows and layout letters are set; `allocate` gives the
/// memory of the array.
void build_term_views(const TermSource& source, TermViews& views,
                      const std::function<void*(std::int64_t length, bool wide)>& allocate,
                      const CpuExecutor& executor);

/// Sorts a permutation stably by key[permutation[i]], which lies in [0, rows).
void sort_stably(std::vector<std::int64_t>& permutation, const std::int64_t* key, std::int64_t rows);

/// One more than the largest element that a row reaches, and the number of its elements.
struct RowReach {
  std::int64_t end = 0;
  std::int64_t elements = 0;
};
RowReach reach(const TermSource::Layout& layout, int letters, std::int64_t row);

}  // namespace lacewing::structure
