#pragma once

/// Marks what the shared library exports; everything else is hidden.
#if defined(__GNUC__) || defined(__clang__)
#define LACEWING_API __attribute__((visibility("default")))
#else
#define LACEWING_API
#endif
