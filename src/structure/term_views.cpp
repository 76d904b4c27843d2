#include "structure/term_views.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lacewing::structure {
namespace {

using kernels::IndexArray;

constexpr std::int64_t kNarrowLimit = std::numeric_limits<std::int32_t>::max();

/// Walks through the parts of the array in their order.
class Parts {
 public:
  Parts(const void* array, bool wide) : next_(static_cast<const char*>(array)), wide_(wide) {}

  IndexArray take(std::int64_t count) {
    const IndexArray part{next_, wide_};
    next_ += count * (wide_ ? 8 : 4);
    return part;
  }
  IndexArray take_if(bool kept, std::int64_t count) { return kept ? take(count) : IndexArray{}; }

 private:
  const char* next_;
  bool wide_;
};

/// Calls view(v, segments), column(v, r, array) and layout(r, offset, extent, stride, first) for the parts in turn.
template <typename View, typename Column, typename Layout>
void for_parts(const TermViews& views, const void* array, View&& view, Column&& column, Layout&& layout) {
  Parts parts(array, views.wide);
  for (int v = 0; v < views.count(); ++v) {
    view(v, parts.take_if(views.keeps_segments(v), views.roles[static_cast<std::size_t>(v)].rows + 1));
    for (int r = 0; r < views.count(); ++r) {
      column(v, r, parts.take_if(views.keeps(v, r), views.terms));
    }
  }
  for (int r = 0; r < views.count(); ++r) {
    const RoleRows& role = views.roles[static_cast<std::size_t>(r)];
    if (role.has_layout()) {
      const IndexArray offset = parts.take(role.rows);
      const IndexArray extent = parts.take(role.rows * role.layout_letters);
      const IndexArray stride = parts.take(role.rows * role.layout_letters);
      layout(r, offset, extent, stride, parts.take(role.rows + 1));
    }
  }
}

void write(const IndexArray& to, std::int64_t i, std::int64_t value) {
  if (to.wide) {
    static_cast<std::int64_t*>(const_cast<void*>(to.data))[i] = value;
  } else {
    static_cast<std::int32_t*>(const_cast<void*>(to.data))[i] = static_cast<std::int32_t>(value);
  }
}

/// The row of a role in a term.
std::int64_t row_of(const TermSource& source, const TermViews& views, int role, std::int64_t term) {
  const auto r = static_cast<std::size_t>(role);
  return source.index[r] != nullptr ? source.index[r][term] : views.roles[r].has_rows() ? term : 0;
}

/// The terms in the order of a view: by its rows, and inside by source.order.
std::vector<std::int64_t> order_of(const TermSource& source, const TermViews& views, int view,
                                   const std::vector<std::int64_t>& base) {
  std::vector<std::int64_t> order = base;
  const auto v = static_cast<std::size_t>(view);
  if (source.index[v] != nullptr) {
    sort_stably(order, source.index[v], views.roles[v].rows);
  } else if (views.roles[v].has_rows()) {
    std::iota(order.begin(), order.end(), std::int64_t{0});  // every term is a row of its own
  }
  return order;
}

std::int64_t flags_of(const TermSource& source, const TermViews& views, int view,
                      const std::vector<std::int64_t>& order) {
  const auto v = static_cast<std::size_t>(view);
  std::int64_t flags = 0;
  const auto differs = [&](int role) {
    for (std::int64_t i = 0; i < views.terms; ++i) {
      if (row_of(source, views, role, order[static_cast<std::size_t>(i)]) != i) {
        return true;
      }
    }
    return false;
  };
  for (int r = 0; r < views.count(); ++r) {
    if (r != view && views.roles[static_cast<std::size_t>(r)].has_rows() && differs(r)) {
      flags |= std::int64_t{1} << r;
    }
  }
  if (views.roles[v].has_rows() && (views.roles[v].rows != views.terms || differs(view))) {
    flags |= std::int64_t{1} << views.count();
  }
  return flags;
}

void fill_segments(const TermSource& source, const TermViews& views, int view, const std::vector<std::int64_t>& order,
                   const IndexArray& segments) {
  const std::int64_t rows = views.roles[static_cast<std::size_t>(view)].rows;
  std::int64_t term = 0;
  for (std::int64_t row = 0; row <= rows; ++row) {
    while (term < views.terms && row_of(source, views, view, order[static_cast<std::size_t>(term)]) < row) {
      ++term;
    }
    write(segments, row, term);
  }
}

}  // namespace

RowReach reach(const TermSource::Layout& layout, int letters, std::int64_t row) {
  RowReach to{layout.offset[static_cast<std::size_t>(row)] + 1, 1};
  for (std::int64_t k = row * letters; k < (row + 1) * letters; ++k) {
    const std::int64_t extent = layout.extent[static_cast<std::size_t>(k)];
    to.elements *= extent;
    to.end += (extent - 1) * layout.stride[static_cast<std::size_t>(k)];
  }
  to.end = to.elements == 0 ? 0 : to.end;
  return to;
}

void sort_stably(std::vector<std::int64_t>& permutation, const std::int64_t* key, std::int64_t rows) {
  const auto of = [&](std::int64_t i) { return key[i]; };
  if (std::is_sorted(permutation.begin(), permutation.end(),
                     [&](std::int64_t a, std::int64_t b) { return of(a) < of(b); })) {
    return;
  }
  constexpr std::int64_t kRowsForCounts = 1 << 16;
  if (rows > 2 * static_cast<std::int64_t>(permutation.size()) + kRowsForCounts) {
    std::stable_sort(permutation.begin(), permutation.end(),
                     [&](std::int64_t a, std::int64_t b) { return of(a) < of(b); });
    return;
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(rows) + 1, 0);
  for (const std::int64_t i : permutation) {
    ++next[static_cast<std::size_t>(of(i)) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<std::int64_t> sorted(permutation.size());
  for (const std::int64_t i : permutation) {
    sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(of(i))]++)] = i;
  }
  permutation.swap(sorted);
}

std::int64_t TermViews::length() const {
  std::int64_t length = 0;
  for (int v = 0; v < count(); ++v) {
    const RoleRows& role = roles[at(v)];
    length += keeps_segments(v) ? role.rows + 1 : 0;
    for (int r = 0; r < count(); ++r) {
      length += keeps(v, r) ? terms : 0;
    }
    length += role.has_layout() ? role.rows * (1 + 2 * role.layout_letters) + role.rows + 1 : 0;
  }
  return length;
}

void TermViews::read(const void* array, int view, std::span<const int> factors, kernels::FormArgs& args) const {
  const auto each_factor = [&](int role, auto&& f) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (factors[i] == role) {
        f(args.factor[i]);
      }
    }
  };
  args.terms = terms;
  args.single_row = !roles[at(view)].has_rows();
  args.rows = args.single_row ? 1 : roles[at(view)].rows;
  for_parts(
      *this, array,
      [&](int v, IndexArray segments) {
        if (v == view) {
          args.segments = segments;
        }
      },
      [&](int v, int r, IndexArray column) {
        if (v == view) {
          each_factor(r, [&](kernels::Place& place) { place.index = column; });
        }
      },
      [&](int r, IndexArray offset, IndexArray extent, IndexArray stride, IndexArray first) {
        const auto set = [&](kernels::Place& place) {
          place.layout.offset = offset;
          place.layout.extent = extent;
          place.layout.stride = stride;
          place.layout.count = roles[at(r)].layout_letters;
        };
        each_factor(r, set);
        if (r == view) {
          set(args.out);
          args.first = first;
        }
      });
}

void build_term_views(const TermSource& source, TermViews& views,
                      const std::function<void*(std::int64_t length, bool wide)>& allocate,
                      const CpuExecutor& executor) {
  const auto roles = static_cast<std::size_t>(views.count());
  std::vector<std::int64_t> base(static_cast<std::size_t>(views.terms));
  std::iota(base.begin(), base.end(), std::int64_t{0});
  for (auto role = source.order.rbegin(); role != source.order.rend(); ++role) {
    const auto r = static_cast<std::size_t>(*role);
    if (source.index[r] != nullptr) {
      sort_stably(base, source.index[r], views.roles[r].rows);
    } else if (views.roles[r].has_rows()) {
      std::iota(base.begin(), base.end(), std::int64_t{0});
    }
  }
  std::vector<std::vector<std::int64_t>> order(roles);
  executor.parallel_for(0, views.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t v = begin; v < end; ++v) {
      order[static_cast<std::size_t>(v)] = order_of(source, views, static_cast<int>(v), base);
      views.roles[static_cast<std::size_t>(v)].flags =
          flags_of(source, views, static_cast<int>(v), order[static_cast<std::size_t>(v)]);
    }
  });
  std::int64_t largest = views.terms;
  for (std::size_t r = 0; r < roles; ++r) {
    RoleRows& role = views.roles[r];
    largest = std::max(largest, role.rows);
    for (std::int64_t row = 0; role.has_layout() && row < role.rows; ++row) {
      const RowReach to = reach(source.layout[r], role.layout_letters, row);
      role.elements = std::max(role.elements, to.end);
      largest = std::max({largest, to.end, source.layout[r].offset[static_cast<std::size_t>(row)]});
    }
    for (const std::int64_t stride : source.layout[r].stride) {
      largest = std::max(largest, stride);
    }
  }
  views.wide = largest >= kNarrowLimit;
  void* const array = allocate(views.length(), views.wide);
  for_parts(
      views, array,
      [&](int v, const IndexArray& segments) {
        if (segments) {
          fill_segments(source, views, v, order[static_cast<std::size_t>(v)], segments);
        }
      },
      [&](int v, int r, const IndexArray& column) {
        for (std::int64_t i = 0; column && i < views.terms; ++i) {
          write(column, i, row_of(source, views, r, order[static_cast<std::size_t>(v)][static_cast<std::size_t>(i)]));
        }
      },
      [&](int r, const IndexArray& offset, const IndexArray& extent, const IndexArray& stride,
          const IndexArray& first) {
        const TermSource::Layout& layout = source.layout[static_cast<std::size_t>(r)];
        const int letters = views.roles[static_cast<std::size_t>(r)].layout_letters;
        std::int64_t before = 0;
        for (std::size_t row = 0; row < layout.offset.size(); ++row) {
          write(offset, static_cast<std::int64_t>(row), layout.offset[row]);
          write(first, static_cast<std::int64_t>(row), before);
          before += reach(layout, letters, static_cast<std::int64_t>(row)).elements;
        }
        write(first, static_cast<std::int64_t>(layout.offset.size()), before);
        for (std::size_t k = 0; k < layout.extent.size(); ++k) {
          write(extent, static_cast<std::int64_t>(k), layout.extent[k]);
          write(stride, static_cast<std::int64_t>(k), layout.stride[k]);
        }
      });
}

}  // namespace lacewing::structure
