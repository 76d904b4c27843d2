// The memory of large results on the CPU: what is freed is kept for the next ones.
//
// Fresh memory comes from the operating system page by page, cleared: for a large result that costs more than what is
// computed. So results and workspaces of at least 1 MiB that were freed are kept, up to a limit, and handed out again.
#pragma once

#include <cstddef>

#include <lacewing/export.h>

namespace lacewing {

/// The most bytes that are kept: what set_kept_memory_limit last chose, or the environment variable
/// LACEWING_KEPT_MEMORY (in bytes), or a thirty-second of the machine's memory and 1 GiB at most.
LACEWING_API std::size_t kept_memory_limit();

/// Frees what is kept beyond the limit; with 0 everything, and nothing is kept from then on.
LACEWING_API void set_kept_memory_limit(std::size_t bytes);

/// The bytes that are kept now, in use by nobody.
LACEWING_API std::size_t kept_memory();

}  // namespace lacewing
