// Compiled with OpenMP: at::parallel_for is an inline header that is silently serial without it.
#include <ATen/Parallel.h>

#include <lacewing/dispatch/torch.h>

namespace lacewing {
namespace {

void run_on_torch_threads(std::int64_t begin, std::int64_t end, std::int64_t grain, CpuExecutor::Chunk chunk,
                          void* context) {
  at::parallel_for(begin, end, grain,
                   [&](std::int64_t chunk_begin, std::int64_t chunk_end) { chunk(context, chunk_begin, chunk_end); });
}

int torch_threads() { return at::get_num_threads(); }

}  // namespace

CpuExecutor torch_executor() { return {run_on_torch_threads, torch_threads}; }

}  // namespace lacewing
