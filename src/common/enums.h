// Enums from the caller, which a cast may have made of any number.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include <c10/util/Exception.h>

namespace lacewing {

/// Throws "[lacewing.<op>] <argument> must be one of <count> values, not <type>(<value>)".
template <typename Enum>
Enum checked_enum(const char* op, const char* argument, const char* type, Enum value, std::size_t count) {
  const auto number = static_cast<std::underlying_type_t<Enum>>(value);
  TORCH_CHECK(static_cast<std::size_t>(number) < count, "[lacewing.", op, "] ", argument, " must be one of ", count,
              " values, not ", type, "(", +number, ")");
  return value;
}

/// The name of a value; names in the order of the enum.
template <typename Enum, std::size_t count>
std::string_view enum_name(const char* op, const char* argument, const char* type, Enum value,
                           const std::array<std::string_view, count>& names) {
  return names[static_cast<std::size_t>(checked_enum(op, argument, type, value, count))];
}

}  // namespace lacewing
