// Tags: sets of compile-time values (a device, a scalar type, ...) that choose an implementation.
#pragma once

#include <cstdint>
#include <type_traits>

#include <lacewing/dispatch/scalar.h>

namespace lacewing {

/// Where a kernel runs. `reference` is the serial oracle; it works on the CPU's memory.
enum class Device : std::uint8_t { cpu, cuda, reference };

/// The name of a device as it appears in error messages.
constexpr const char* name(Device device) {
  switch (device) {
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
    case Device::reference: return "reference";
  }
  return "unknown";
}

/// The storage types of indices, apart from ScalarType so that one tag can hold both.
enum class IndexType : std::uint8_t { i32, i64 };

constexpr const char* name(IndexType type) { return type == IndexType::i32 ? "int32" : "int64"; }

/// The C++ type of an index type.
template <IndexType I>
using index_t = std::conditional_t<I == IndexType::i32, std::int32_t, std::int64_t>;

/// An index type as a scalar type, for views over indices.
constexpr ScalarType scalar_type(IndexType type) { return type == IndexType::i32 ? ScalarType::i32 : ScalarType::i64; }

/// What an axis of a dispatch table is called in error messages.
constexpr const char* axis_name(Device) { return "device"; }
constexpr const char* axis_name(ScalarType) { return "dtype"; }
constexpr const char* axis_name(IndexType) { return "index dtype"; }

namespace dispatch {

namespace detail {

template <auto A, auto B>
constexpr bool same_value() {
  if constexpr (std::is_same_v<decltype(A), decltype(B)>) {
    return A == B;
  } else {
    return false;
  }
}

template <typename T, auto... Values>
inline constexpr int count_of_type = (0 + ... + (std::is_same_v<T, decltype(Values)> ? 1 : 0));

template <typename T, auto First, auto... Rest>
constexpr T value_of_type() {
  if constexpr (std::is_same_v<T, decltype(First)>) {
    return First;
  } else {
    return value_of_type<T, Rest...>();
  }
}

}  // namespace detail

/// A set of compile-time values with at most one of each type; any subset of the axes may be given,
/// in any order: tag<Device::cpu>, tag<Device::cpu, ScalarType::f32>.
template <auto... Values>
struct tag {
  static_assert(((detail::count_of_type<decltype(Values), Values...> == 1) && ...),
                "a tag holds at most one value of each type");

  /// Whether the tag holds this very value.
  template <auto Value>
  static constexpr bool contains = (detail::same_value<Value, Values>() || ...);

  /// Whether the tag holds a value of this type.
  template <typename T>
  static constexpr bool has = detail::count_of_type<T, Values...> == 1;

  /// The value of this type; ill-formed where the tag has none.
  template <typename T>
    requires has<T>
  static constexpr T get = detail::value_of_type<T, Values...>();
};

namespace detail {

template <typename T>
inline constexpr bool is_tag = false;
template <auto... Values>
inline constexpr bool is_tag<tag<Values...>> = true;

}  // namespace detail

/// Any tag.
template <typename T>
concept tag_type = detail::is_tag<T>;

/// A tag that holds all of these values (and perhaps others).
template <typename Tag, auto... Values>
concept tag_match = tag_type<Tag> && (Tag::template contains<Values> && ...);

}  // namespace dispatch
}  // namespace lacewing
