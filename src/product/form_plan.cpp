#include "product/form_plan.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <lacewing/dispatch/torch.h>

#include "common/refuse_layouts.h"
#include "common/transforms.h"
#include "product/form_call.h"
#include "product/plan_fields.h"

namespace lacewing::products {
namespace {

using structure::RoleRows;
using structure::TermSource;

std::string place_name(std::size_t role, std::size_t operands, const char* of, const char* out) {
  return role == operands ? std::string(out) : std::string(of) + "[" + std::to_string(role) + "]";
}

/// An integer tensor on the host, row by row.
std::vector<std::int64_t> host_table(FieldChecker& check, const std::string& name, const at::Tensor& given,
                                     std::int64_t columns) {
  TORCH_CHECK(given.dim() == (columns < 0 ? 1 : 2) && (columns < 0 || given.size(1) == columns), check.prefix(), name,
              columns < 0 ? std::string(" must have shape (rows,)")
                          : " must have shape (rows, " + std::to_string(columns) + "), a column for each letter",
              ", not ", given.sizes());
  const HostIndex values = check.index(name.c_str(), given.reshape({-1}));
  return {values.data(), values.data() + values.length()};
}

/// Reads and checks everything that a plan is made of.
class PlanReader {
 public:
  PlanReader(std::string_view form, std::string_view op)
      : check_{op, std::nullopt}, form_(Form::of_letters(std::string(op).c_str(), form)) {
    const auto roles = form_.roles.size();
    source_.index.resize(roles, nullptr);
    source_.layout.resize(roles);
    views_.roles.resize(roles);
    covered_.resize(roles, 0);
    widest_.resize(roles, 0);
    extents_.resize(form_.letters().size(), FormSizes::kUnknown);
  }

  std::tuple<at::Tensor, std::vector<std::int64_t>, std::string> read(const OptionalTensors& index,
                                                                      at::IntArrayRef rows,
                                                                      const OptionalTensors& layout,
                                                                      std::string_view letters, at::IntArrayRef extents,
                                                                      std::int64_t entries) {
    take_extents(letters, extents);
    take_layouts(layout);
    take_indices(index, rows, entries);
    check_terms();
    for (int r = 0; r < form_.scale(); ++r) {
      check_gapless(r);
    }
    source_.order = sort_order();
    return with_memory(check_, [&] {
      PlanMemory memory;
      structure::build_term_views(source_, views_, memory.allocate(), torch_executor());
      return std::make_tuple(memory.array.to(check_.device.value_or(at::kCPU)), sizes(), form_.terms_text());
    });
  }

 private:
  std::size_t operands() const { return static_cast<std::size_t>(form_.operands()); }
  std::int64_t& extent(char letter) { return extents_[form_.letters().find(letter)]; }

  void take_extents(std::string_view letters, at::IntArrayRef extents) {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      TORCH_CHECK(form_.letters().find(letters[i]) != std::string::npos, check_.prefix(), "extents names the letter ",
                  letters[i], ", which the product does not have");
      TORCH_CHECK(extents[i] >= 0 && extents[i] <= kLargestSize, check_.prefix(), "the extent of ", letters[i],
                  " must lie in [0, ", kLargestSize, "], not ", extents[i]);
      extent(letters[i]) = extents[i];
    }
  }

  void take_layouts(const OptionalTensors& layout) {
    for (std::size_t r = 0; 3 * r < layout.size(); ++r) {
      const std::optional<at::Tensor> offset = layout.get(3 * r);
      const std::optional<at::Tensor> extent = layout.get(3 * r + 1);
      const std::optional<at::Tensor> stride = layout.get(3 * r + 2);
      if (!extent) {
        continue;
      }
      FormRole& role = form_.roles[r];
      const std::string name = place_name(r, operands(), "layout", "layout of the output");
      const auto letters = static_cast<std::int64_t>(role.letters.size());
      role.layout_letters = views_.roles[r].layout_letters = static_cast<int>(letters);
      TermSource::Layout& to = source_.layout[r];
      to.extent = host_table(check_, name + ".extent", *extent, letters);
      const std::int64_t rows = extent->size(0);
      views_.roles[r].rows = rows;
      to.stride = stride ? host_table(check_, name + ".stride", *stride, letters) : contiguous(to.extent, letters);
      to.offset = offset ? host_table(check_, name + ".offset", *offset, -1) : one_after_the_other(to, rows, letters);
      TORCH_CHECK(to.stride.size() == to.extent.size() && static_cast<std::int64_t>(to.offset.size()) == rows,
                  check_.prefix(), name, " has ", rows, " rows of extents, ", to.offset.size(), " offsets and ",
                  letters == 0 ? rows : static_cast<std::int64_t>(to.stride.size()) / letters, " rows of strides");
    }
  }

  static std::vector<std::int64_t> contiguous(const std::vector<std::int64_t>& extent, std::int64_t letters) {
    std::vector<std::int64_t> stride(extent.size());
    for (std::size_t end = extent.size(); end > 0; end -= static_cast<std::size_t>(letters)) {
      std::int64_t step = 1;
      for (std::size_t k = end; k > end - static_cast<std::size_t>(letters); --k) {
        stride[k - 1] = step;
        step *= extent[k - 1];
      }
    }
    return stride;
  }

  static std::vector<std::int64_t> one_after_the_other(TermSource::Layout layout, std::int64_t rows,
                                                       std::int64_t letters) {
    std::vector<std::int64_t> offset(static_cast<std::size_t>(rows), 0);
    layout.offset.assign(static_cast<std::size_t>(rows), 0);
    std::int64_t next = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      offset[static_cast<std::size_t>(row)] = next;
      next += structure::reach(layout, static_cast<int>(letters), row).elements;
    }
    return offset;
  }

  void take_indices(const OptionalTensors& index, at::IntArrayRef rows, std::int64_t entries) {
    std::int64_t terms = entries;  // -1: not known yet
    std::string told = "scale";
    for (std::size_t r = 0; r <= operands(); ++r) {
      const std::string name = place_name(r, operands(), "index", "out");
      held_.push_back(check_.index(name.c_str(), index.get(r)));
      if (held_.back().present()) {
        TORCH_CHECK(terms < 0 || terms == held_.back().length(), check_.prefix(), name, " has ", held_.back().length(),
                    " entries but ", told, " has ", terms);
        terms = held_.back().length();
        told = name;
      }
    }
    for (std::size_t r = 0; r <= operands(); ++r) {
      settle_rows(r, rows[r]);
      if (!held_[r].present() && views_.roles[r].has_rows() && entries < 0 && told == "scale") {
        terms = terms < 0 ? views_.roles[r].rows : std::min(terms, views_.roles[r].rows);
      }
    }
    views_.terms = terms < 0 ? 1 : terms;
    source_.terms = views_.terms;
    for (std::size_t r = 0; r <= operands(); ++r) {
      const std::int64_t has = views_.roles[r].rows;
      TORCH_CHECK(held_[r].present() || !views_.roles[r].has_rows() || views_.terms <= has, check_.prefix(),
                  place_name(r, operands(), "index", "out"), " is absent, which means 0 to ", views_.terms - 1,
                  ", but there are ", has, " rows");
    }
    views_.roles.back().rows = views_.terms;
  }

  void settle_rows(std::size_t r, std::int64_t given) {
    RoleRows& role = views_.roles[r];
    const HostIndex& index = held_[r];
    const std::string name = place_name(r, operands(), "rows", "out_rows");
    TORCH_CHECK(given >= -1 && given <= kLargestSize, check_.prefix(), name, " must lie in [0, ", kLargestSize,
                "], not ", given);
    TORCH_CHECK(given < 0 || !role.has_layout() || given == role.rows, check_.prefix(), name, " is ", given,
                " but the layout has ", role.rows, " rows");
    if (!role.has_layout()) {
      role.rows = given >= 0 ? given : index.present() ? index.limit : RoleRows::none;
    }
    form_.roles[r].has_rows = role.has_rows();
    if (index.present()) {
      check_.below(place_name(r, operands(), "index", "out").c_str(), index, name.c_str(), role.rows);
      source_.index[r] = index.data();
    }
  }

  std::int64_t row_of(std::size_t r, std::int64_t term) const {
    return source_.index[r] != nullptr ? source_.index[r][term] : views_.roles[r].has_rows() ? term : 0;
  }

  /// In a term all rows that carry a letter have one extent; where a uniform role carries it, so do all terms.
  void check_terms() {
    for (const char letter : form_.letters()) {
      std::vector<std::size_t> laid_out;
      bool uniform = false;
      for (std::size_t r = 0; r <= operands(); ++r) {
        const FormRole& role = form_.roles[r];
        if (role.lays_out(letter)) {
          laid_out.push_back(r);
        } else {
          uniform = uniform || role.has(letter);
        }
      }
      for (std::int64_t t = 0; t < views_.terms && !laid_out.empty(); ++t) {
        std::int64_t first = uniform ? extent(letter) : FormSizes::kUnknown;
        for (const std::size_t r : laid_out) {
          const std::int64_t row = row_of(r, t);
          const std::size_t k = form_.roles[r].letters.find(letter);
          const std::int64_t here =
              source_.layout[r].extent[static_cast<std::size_t>(row) * form_.roles[r].letters.size() + k];
          TORCH_CHECK(first == FormSizes::kUnknown || first == here, check_.prefix(), "term ", t, " joins rows of ",
                      first, " and ", here, " entries of letter ", letter, ": row ", row, " of ",
                      place_name(r, operands(), "operands", "the output"), " has ", here);
          first = here;
        }
        if (uniform) {
          extent(letter) = first;
        }
      }
    }
  }

  /// Elements of two rows of a layout may not be the same: each is written once.
  void check_gapless(int role) {
    const auto r = static_cast<std::size_t>(role);
    const TermSource::Layout& layout = source_.layout[r];
    const int letters = views_.roles[r].layout_letters;
    std::int64_t elements = 0;
    for (std::int64_t row = 0; letters >= 0 && row < views_.roles[r].rows; ++row) {
      const structure::RowReach to = structure::reach(layout, letters, row);
      elements = std::max(elements, to.end);
      covered_[r] += to.elements;
      widest_[r] = std::max(widest_[r], to.elements);
    }
    TORCH_CHECK(elements <= kLargestSize && covered_[r] <= elements, check_.prefix(),
                place_name(r, operands(), "layout", "layout of the output"), " has rows of ", covered_[r],
                " elements in all, in a tensor of ", elements, ": rows must not overlap");
    std::vector<bool> taken(static_cast<std::size_t>(elements), false);
    for (std::int64_t row = 0; letters >= 0 && row < views_.roles[r].rows; ++row) {
      mark(r, row, letters, taken);
    }
  }

  void mark(std::size_t r, std::int64_t row, int letters, std::vector<bool>& taken) const {
    const TermSource::Layout& layout = source_.layout[r];
    std::vector<std::int64_t> at(static_cast<std::size_t>(letters), 0);
    const std::int64_t count = structure::reach(layout, letters, row).elements;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t element = layout.offset[static_cast<std::size_t>(row)];
      for (int k = 0; k < letters; ++k) {
        element += at[static_cast<std::size_t>(k)] * layout.stride[static_cast<std::size_t>(row * letters + k)];
      }
      TORCH_CHECK(!taken[static_cast<std::size_t>(element)], check_.prefix(),
                  place_name(r, operands(), "layout", "layout of the output"), " has element ", element, " in row ",
                  row, " and before it: rows must not overlap");
      taken[static_cast<std::size_t>(element)] = true;
      for (int k = letters - 1; k >= 0; --k) {
        if (++at[static_cast<std::size_t>(k)] < layout.extent[static_cast<std::size_t>(row * letters + k)]) {
          break;
        }
        at[static_cast<std::size_t>(k)] = 0;
      }
    }
  }

  /// Rows with letters first: so terms that differ in rows without letters alone are neighbours.
  std::vector<int> sort_order() const {
    std::vector<int> order;
    for (const bool lettered : {true, false}) {
      for (int r = 0; r < form_.operands(); ++r) {
        if (form_.role(r).letters.empty() != lettered) {
          order.push_back(r);
        }
      }
      if (lettered) {
        order.push_back(form_.output());
      }
    }
    return order;
  }

  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> sizes{views_.terms, views_.wide ? 1 : 0};
    for (std::size_t r = 0; r < views_.roles.size(); ++r) {
      const RoleRows& role = views_.roles[r];
      sizes.insert(sizes.end(), {role.rows, role.flags, role.elements, covered_[r], widest_[r]});
    }
    sizes.insert(sizes.end(), extents_.begin(), extents_.end());
    return sizes;
  }

  FieldChecker check_;
  Form form_;
  TermSource source_;
  structure::TermViews views_;
  std::vector<HostIndex> held_;
  std::vector<std::int64_t> covered_, widest_, extents_;
};

}  // namespace

std::tuple<at::Tensor, std::vector<std::int64_t>, std::string> plan_terms(
    std::string_view form, const OptionalTensors& index, at::IntArrayRef rows, const OptionalTensors& layout,
    std::string_view letters, at::IntArrayRef extents, std::int64_t entries, std::string_view op) {
  const OutsideTransforms outside;
  PlanReader reader(form, op);
  const std::size_t roles = static_cast<std::size_t>(Form::of_letters(std::string(op).c_str(), form).operands()) + 1;
  TORCH_CHECK(index.size() == roles && rows.size() == roles && (layout.empty() || layout.size() == 3 * roles) &&
                  letters.size() == extents.size(),
              "[lacewing.", op, "] \"", form, "\" takes an index, rows and a layout for each of its ", roles - 1,
              " operands, not ", index.size() - 1, ", ", rows.size() - 1, " and ",
              layout.empty() ? 0 : layout.size() / 3 - 1);
  return reader.read(index, rows, layout, letters, extents, entries);
}

std::tuple<at::Tensor, std::vector<std::int64_t>> plan_edges(const OptionalTensors& lists, std::string_view maps,
                                                             std::int64_t edges, at::IntArrayRef batch, bool sorted,
                                                             std::string_view op) {
  const OutsideTransforms outside;
  FieldChecker check{op, std::nullopt};
  const std::size_t roles = maps.size();
  TORCH_CHECK(lists.size() == roles && batch.size() == roles && roles >= 2, check.prefix(),
              "there must be a map for each operand and one for the output");
  structure::EdgeViews views;
  std::vector<HostIndex> held;
  std::vector<const std::int64_t*> data;
  std::int64_t count = edges;  // -1: not known yet
  TORCH_CHECK(edges >= -1 && edges <= kLargestSize, check.prefix(), "edges must lie in [0, ", kLargestSize, "], not ",
              edges);
  std::string told = "edges is";
  for (std::size_t r = 0; r < roles; ++r) {
    const std::string name = place_name(r, roles - 1, "maps", "out");
    const bool is_list = maps[r] == '@';
    held.push_back(is_list ? check.index(name.c_str(), lists.get(r)) : HostIndex{});
    TORCH_CHECK(!is_list || held.back().present(), check.prefix(), name, " has no list");
    data.push_back(held.back().data());
    views.map.push_back(is_list          ? kernels::BatchMap::list
                        : maps[r] == '!' ? kernels::BatchMap::shared
                                         : kernels::BatchMap::own);
    std::int64_t rows = FormSizes::kUnknown;
    if (is_list) {
      const HostIndex& list = held.back();
      TORCH_CHECK(count < 0 || count == list.length(), check.prefix(), name, " has ", list.length(), " edges but ",
                  told, " ", count);
      count = list.length();
      told = name + " has";
      const std::string size = place_name(r, roles - 1, "batch", "out_batch");
      TORCH_CHECK(batch[r] >= -1 && batch[r] <= kLargestSize, check.prefix(), size, " must lie in [0, ", kLargestSize,
                  "], not ", batch[r]);
      rows = batch[r] >= 0 ? batch[r] : list.limit;
      check.below(name.c_str(), list, size.c_str(), rows);
    }
    views.batch.push_back(rows);
  }
  if (sorted && held.back().present()) {
    const std::int64_t* const list = held.back().data();
    const std::int64_t* const bad =
        std::adjacent_find(list, list + held.back().length(), [](std::int64_t a, std::int64_t b) { return a > b; });
    TORCH_CHECK(bad == list + held.back().length(), check.prefix(), "out was promised not to decrease, but out[",
                bad - list + 1, "] = ", bad[1], " follows ", *bad);
  }
  views.edges = std::max<std::int64_t>(count, 0);
  return with_memory(check, [&] {
    PlanMemory memory;
    structure::build_edge_views(data, views, memory.allocate());
    std::vector<std::int64_t> sizes{count, views.wide ? 1 : 0, views.sorted};
    sizes.insert(sizes.end(), views.batch.begin(), views.batch.end());
    return std::make_tuple(memory.array.to(check.device.value_or(at::kCPU)), sizes);
  });
}

TORCH_LIBRARY_FRAGMENT(lacewing, m) {
  define_dense_op(
      m,
      "plan_terms(str form, Tensor?[] index, int[] rows, Tensor?[] layout, str letters, int[] extents, int entries, "
      "str op) -> (Tensor, int[], str)");
  define_dense_op(
      m, "plan_edges(Tensor?[] lists, str maps, int edges, int[] batch, bool sorted, str op) -> (Tensor, int[])");
}

TORCH_LIBRARY_IMPL(lacewing, CompositeExplicitAutograd, m) {
  m.impl("plan_terms", plan_terms);
  m.impl("plan_edges", plan_edges);
}

}  // namespace lacewing::products
