// Large pages under memory that was just allocated. Torch-free.
#pragma once

#include <cstddef>

namespace lacewing::structure {

/// Less memory than this is not worth the call.
inline constexpr std::size_t kLargePageBytes = std::size_t{4} << 20;

/// Memory that the system has not given out before comes page by page as it is first touched: asks for large pages. A
/// hint: where it has no effect, nothing is lost.
void prefer_large_pages(void* data, std::size_t bytes);

}  // namespace lacewing::structure
