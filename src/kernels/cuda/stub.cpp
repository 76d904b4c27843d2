// Stands in for the CUDA kernels in builds without CUDA.
#include <stdexcept>
#include <string>

#include "kernels/cell.h"
#include "kernels/conv_device.h"
#include "kernels/device_index.h"
#include "kernels/dispatch/rows.h"
#include "kernels/edge_attention.h"
#include "kernels/form.h"
#include "kernels/gather_sum_dots.h"
#include "kernels/pool.h"
#include "kernels/product.h"
#include "kernels/segment_rows.h"
#include "kernels/trace.h"

namespace lacewing::kernels {
namespace {

[[noreturn]] void missing(const char* op = "") {
  throw std::runtime_error(
      "[lacewing" + std::string(op) +
      "] this build has no CUDA kernels: build it where nvcc is found, or with -DLACEWING_CUDA=ON");
}

}  // namespace

RowKernels<Device::cuda> cuda_row_kernels() { missing(".dispatch"); }
PoolKernels<Device::cuda> cuda_pool_kernels() { missing(".sparse_max_pool"); }

namespace cuda {

bool is_capturing(const CudaExecutor&) { missing(); }
std::int64_t conv_tables_bytes(const ConvTableSizes&) { missing(); }
std::int64_t conv_tables_workspace(const ConvTableSizes&) { missing(); }
void make_conv_tables(const ConvMap&, const ConvTableSizes&, void*, const CudaExecutor&, void*) { missing(); }
bool has_conv(const ConvArgs&) { missing(); }
ConvTableSizes conv_table_sizes(const ConvArgs&) { missing(); }
std::int64_t conv_workspace(const ConvArgs&) { missing(); }
void conv(const ConvArgs&, const ConvTableMemory&, const CudaExecutor&, void*) { missing(); }
bool has_conv_weight_grad(const ConvWeightGradArgs&) { missing(); }
std::int64_t conv_weight_grad_workspace(const ConvWeightGradArgs&) { missing(); }
void conv_weight_grad(const ConvWeightGradArgs&, const CudaExecutor&, void*) { missing(); }

std::int64_t product_workspace(const ProductArgs&) { missing(); }
bool is_gather_sum_dots(const GatherSumDotsArgs&) { missing(); }
std::int64_t gather_sum_dots_workspace(const GatherSumDotsArgs&) { missing(); }
void gather_sum_dots(const GatherSumDotsArgs&, const CudaExecutor&, void*) { missing(); }
std::int64_t scale_grad_workspace(const ScaleGradArgs&) { missing(); }
void product(const ProductArgs&, const CudaExecutor&, void*) { missing(); }
void scale_grad(const ScaleGradArgs&, const CudaExecutor&, void*) { missing(); }
void form(const FormArgs&, const CudaExecutor&) { missing(); }

void edge_dropout(const EdgeDropout&, void*, const CudaExecutor&) { missing(); }
std::int64_t edge_attention_workspace(const EdgeAttentionArgs&) { missing(); }
void edge_attention(const EdgeAttentionForward&, const CudaExecutor&, void*) { missing(); }
std::int64_t edge_attention_backward_workspace(const EdgeAttentionBackward&) { missing(); }
void edge_attention_backward(const EdgeAttentionBackward&, const CudaExecutor&, void*) { missing(); }

void segment_extreme(const SegmentRows&, bool, void*, const CudaExecutor&) { missing(); }
void segment_softmax(const SegmentRows&, bool, void*, const CudaExecutor&) { missing(); }

void trace(std::span<const TraceArgs>, const CudaExecutor&) { missing(); }
void cell_step(const CellArgs&, const CudaExecutor&) { missing(); }

std::int64_t sort_workspace(const KeySort&) { missing(); }
void sort_keys(const KeySort&, const CudaExecutor&, void*) { missing(); }
std::int64_t groups_workspace(const KeyGroups&) { missing(); }
void find_groups(const KeyGroups&, const CudaExecutor&, void*) { missing(); }
void write_groups(const KeyGroups&, const CudaExecutor&) { missing(); }
std::int64_t merge_workspace(const SetMerge&) { missing(); }
void find_merged(const SetMerge&, const CudaExecutor&, void*) { missing(); }
void write_merged(const SetMerge&, std::int64_t*, std::int64_t*, const CudaExecutor&) { missing(); }
void write_merged(const SetMerge&, const Elements&, const Elements&, std::int64_t, void*, void*, const CudaExecutor&) {
  missing();
}
void write_merged(const SetMerge&, const Elements&, const Elements&, Combine, bool, void*, const CudaExecutor&) {
  missing();
}
void row_pointers(const std::int64_t*, std::int64_t, std::int64_t, void*, bool, const CudaExecutor&) { missing(); }
void rows_of_terms(const void*, bool, std::int64_t, std::int64_t, std::int64_t*, const CudaExecutor&) { missing(); }
void scan_terms(const TermScan&, const CudaExecutor&) { missing(); }
void scan_indices(const IndexScan&, const CudaExecutor&) { missing(); }
void find_moved(const TermColumns&, const CudaExecutor&) { missing(); }
void reorder(const TermColumns&, const CudaExecutor&) { missing(); }
void linear_keys(const KeyCode&, const std::int64_t*, std::int64_t*, const CudaExecutor&) { missing(); }
void unravel_keys(const KeyCode&, const std::int64_t*, std::int64_t*, const CudaExecutor&) { missing(); }

}  // namespace cuda

}  // namespace lacewing::kernels
