// Thread-sanitizer builds only. OpenMP's runtime is not instrumented, so the sanitizer would see neither the start nor
// the end of a parallel region and call every one a race. This definition, hidden in our library, takes the place of
// GOMP_parallel for our own regions, tells the sanitizer about both ends, and calls the real one.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

using Body = void (*)(void*);
using Parallel = void (*)(Body, void*, unsigned, unsigned);

struct Region {
  Body body;
  void* data;
  char start;
  char end;
};

void run_body(void* argument) {
  auto* region = static_cast<Region*>(argument);
  __tsan_acquire(&region->start);
  region->body(region->data);
  __tsan_release(&region->end);
}

}  // namespace

extern "C" __attribute__((no_sanitize("thread"))) void GOMP_parallel(Body body, void* data, unsigned threads,
                                                                     unsigned flags) {
  static const auto real = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  Region region{body, data, 0, 0};
  __tsan_release(&region.start);
  real(run_body, &region, threads, flags);
  __tsan_acquire(&region.end);
}
