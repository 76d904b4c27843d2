#include "structure/edge_views.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "structure/term_views.h"

namespace lacewing::structure {
namespace {

using kernels::BatchMap;
using kernels::IndexArray;

bool is_sorted(const EdgeViews& views, std::size_t role) { return ((views.sorted >> role) & 1) != 0; }

template <typename Part>
void for_parts(const EdgeViews& views, const void* array, Part&& part) {
  const char* next = static_cast<const char*>(array);
  const auto take = [&](std::int64_t count) {
    const IndexArray here{next, views.wide};
    next += count * (views.wide ? 8 : 4);
    return here;
  };
  for (std::size_t r = 0; r < views.map.size(); ++r) {
    if (views.map[r] == BatchMap::list) {
      const IndexArray list = take(views.edges);
      const IndexArray segments = take(views.batch[r] + 1);
      part(r, list, segments, is_sorted(views, r) ? IndexArray{} : take(views.edges));
    }
  }
}

template <typename Index>
void fill(const std::int64_t* list, std::int64_t edges, std::int64_t rows, const IndexArray& to,
          const IndexArray& segments, const IndexArray& order) {
  const auto write = [](const IndexArray& array) { return static_cast<Index*>(const_cast<void*>(array.data)); };
  std::copy(list, list + edges, write(to));
  Index* const begins = write(segments);
  std::fill(begins, begins + rows + 1, Index{0});
  for (std::int64_t e = 0; e < edges; ++e) {
    ++begins[list[e] + 1];
  }
  std::partial_sum(begins, begins + rows + 1, begins);
  if (order) {
    std::vector<std::int64_t> permutation(static_cast<std::size_t>(edges));
    std::iota(permutation.begin(), permutation.end(), std::int64_t{0});
    sort_stably(permutation, list, rows);
    std::copy(permutation.begin(), permutation.end(), write(order));
  }
}

}  // namespace

std::int64_t EdgeViews::length() const {
  std::int64_t length = 0;
  for (std::size_t r = 0; r < map.size(); ++r) {
    if (map[r] == BatchMap::list) {
      length += edges + batch[r] + 1 + (is_sorted(*this, r) ? 0 : edges);
    }
  }
  return length;
}

void EdgeViews::read(const void* array, int view, std::span<const int> factors, kernels::FormArgs& args) const {
  const auto v = static_cast<std::size_t>(view);
  args.edges = edges;
  args.out_map = map[v];
  args.batch = map[v] == BatchMap::own ? edges : map[v] == BatchMap::shared ? 1 : batch[v];
  for_parts(*this, array,
            [&](std::size_t role, const IndexArray& list, const IndexArray& segments, const IndexArray& order) {
              for (std::size_t f = 0; f < factors.size(); ++f) {
                if (static_cast<std::size_t>(factors[f]) == role) {
                  args.factor[f].list = list;
                }
              }
              if (role == v) {
                args.edge_segments = segments;
                args.edge_order = order;
              }
            });
}

void build_edge_views(const std::vector<const std::int64_t*>& lists, EdgeViews& views,
                      const std::function<void*(std::int64_t length, bool wide)>& allocate) {
  std::int64_t largest = views.edges;
  views.sorted = 0;
  for (std::size_t r = 0; r < views.map.size(); ++r) {
    if (views.map[r] == BatchMap::list) {
      largest = std::max(largest, views.batch[r]);
      views.sorted |= static_cast<std::int64_t>(std::is_sorted(lists[r], lists[r] + views.edges)) << r;
    }
  }
  views.wide = largest >= std::numeric_limits<std::int32_t>::max();
  const void* const array = allocate(views.length(), views.wide);
  for_parts(views, array,
            [&](std::size_t r, const IndexArray& list, const IndexArray& segments, const IndexArray& order) {
              const auto to = views.wide ? fill<std::int64_t> : fill<std::int32_t>;
              to(lists[r], views.edges, views.batch[r], list, segments, order);
            });
}

}  // namespace lacewing::structure
