// Dispatch tables: from run-time values to a function instantiated for exactly those values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <lacewing/dispatch/tag.h>

namespace lacewing::dispatch {

/// Thrown by dispatch_table::select; what() is one sentence that names the op, the values asked for
/// and the covered points.
class UncoveredError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A list of covered points.
template <tag_type... Tags>
struct points {};

/// The values that one coordinate takes.
template <auto... Values>
struct axis {};

namespace detail {

template <typename... Lists>
struct Concat {
  using type = points<>;
};
template <typename... Tags>
struct Concat<points<Tags...>> {
  using type = points<Tags...>;
};
template <typename... A, typename... B, typename... Rest>
struct Concat<points<A...>, points<B...>, Rest...> : Concat<points<A..., B...>, Rest...> {};

template <typename Prefix, typename... Axes>
struct Product;
template <auto... Prefix>
struct Product<tag<Prefix...>> {
  using type = points<tag<Prefix...>>;
};
template <auto... Prefix, auto... Values, typename... Axes>
struct Product<tag<Prefix...>, axis<Values...>, Axes...>
    : Concat<typename Product<tag<Prefix..., Values>, Axes...>::type...> {};

}  // namespace detail

/// Every combination of the axes' values, as points.
template <typename... Axes>
using product = typename detail::Product<tag<>, Axes...>::type;

/// Several lists of points as one; a point must not occur twice.
template <typename... Lists>
using join = typename detail::Concat<Lists...>::type;

namespace detail {

// "cpu x {float16, float32}; cuda x float32": full products are written as such, other sets are split
// by their first coordinate. Each point is the list of its values' names.
inline std::string coverage_text(const std::vector<std::vector<std::string>>& points) {
  std::vector<std::vector<std::string>> axes(points.empty() ? 0 : points.front().size());
  std::size_t product_size = 1;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    for (const auto& point : points) {
      if (std::find(axes[a].begin(), axes[a].end(), point[a]) == axes[a].end()) {
        axes[a].push_back(point[a]);
      }
    }
    product_size *= axes[a].size();
  }

  std::string text;
  if (product_size == points.size()) {
    for (const auto& values : axes) {
      std::string list;
      for (const auto& value : values) {
        list += (list.empty() ? "" : ", ") + value;
      }
      text += (text.empty() ? "" : " x ") + (values.size() == 1 ? list : "{" + list + "}");
    }
    return text;
  }
  for (std::size_t i = 0; !axes.empty() && i < axes[0].size(); ++i) {
    std::vector<std::vector<std::string>> rest;
    for (const auto& point : points) {
      if (point[0] == axes[0][i]) {
        rest.emplace_back(point.begin() + 1, point.end());
      }
    }
    text += (i == 0 ? "" : "; ") + axes[0][i] + " x " + coverage_text(rest);
  }
  return text.empty() ? "none" : text;
}

template <auto... Values>
std::vector<std::string> value_names(tag<Values...>) {
  return {name(Values)...};
}

}  // namespace detail

template <typename Signature, typename Points>
class dispatch_table;

/// A table of function pointers, one per covered point and no others. Op is a stateless functor with
/// `R operator()(tag, Args...)`, instantiated once for each point.
template <typename R, typename... Args, typename... Tags>
class dispatch_table<R(Args...), points<Tags...>> {
 public:
  using function = R (*)(Args...);

  /// `op_name` is a literal; messages begin with "[lacewing.<op_name>]".
  template <typename Op>
    requires(std::is_empty_v<Op> && (std::is_invocable_r_v<R, Op, Tags, Args...> && ...))
  constexpr dispatch_table(const char* op_name, Op) : op_name_(op_name), functions_{entry<Op, Tags>...} {}

  /// The function for these values (one per axis, in any order), to be called once or many times.
  /// Throws UncoveredError where the table has no such point.
  template <typename... Values>
  constexpr function select(Values... values) const {
    function found = nullptr;
    std::size_t i = 0;
    ((matches<Tags>(values...) ? void(found = functions_[i]) : void(), ++i), ...);
    if (found == nullptr) {
      throw UncoveredError(uncovered(values...));
    }
    return found;
  }

  /// Whether the table has a point with these values.
  template <typename... Values>
  static constexpr bool covers(Values... values) {
    return (matches<Tags>(values...) || ...);
  }

 private:
  template <typename Op, typename Tag>
  static constexpr function entry = [](Args... args) -> R { return Op{}(Tag{}, std::forward<Args>(args)...); };

  template <typename Tag, typename... Values>
  static constexpr bool matches(Values... values) {
    static_assert((Tag::template has<Values> && ...), "every value needs an axis of the table");
    return ((Tag::template get<Values> == values) && ...);
  }

  template <typename... Values>
  std::string uncovered(Values... values) const {
    std::string asked;
    ((asked += (asked.empty() ? "" : ", ") + std::string(axis_name(values)) + " " + name(values)), ...);
    return "[lacewing." + std::string(op_name_) + "] no kernel for " + asked +
           "; covered: " + detail::coverage_text({detail::value_names(Tags{})...});
  }

  const char* op_name_;
  std::array<function, sizeof...(Tags)> functions_;
};

}  // namespace lacewing::dispatch
