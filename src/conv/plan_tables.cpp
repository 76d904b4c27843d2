#include "conv/plan_tables.h"

#include <list>
#include <mutex>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "common/version.h"

namespace lacewing::conv {
namespace {

/// Voxels onto themselves by an odd kernel: a pair of tap t is, the other way round, one of tap taps - 1 - t.
bool is_symmetric(const PlanMeta& meta) { return meta.taps % 2 == 1 && meta.identity_tap == meta.taps / 2; }

at::Tensor make_tables(const at::Tensor& plan, const PlanMeta& meta, const kernels::ConvTableSizes& sizes,
                       const CudaExecutor& executor) {
  const c10::InferenceMode normal(false);
  const at::TensorOptions bytes = at::TensorOptions().device(plan.device()).dtype(at::kByte);
  const at::Tensor tables = at::empty({kernels::cuda::conv_tables_bytes(sizes)}, bytes);
  const at::Tensor workspace = at::empty({kernels::cuda::conv_tables_workspace(sizes)}, bytes);
  kernels::cuda::make_conv_tables(map_of(meta, plan.const_data_ptr<std::int32_t>()), sizes, tables.mutable_data_ptr(),
                                  executor, workspace.mutable_data_ptr());
  return tables;
}

/// Tables of one array, as they were asked for.
struct Entry {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* array;
  std::int64_t version;
  std::vector<std::int64_t> meta;
  kernels::ConvTableSizes sizes;
  const void* stream;
  at::Tensor tables;
};

class Cache {
 public:
  at::Tensor find_or_make(const at::Tensor& plan, const PlanMeta& meta, const kernels::ConvTableSizes& sizes,
                          const CudaExecutor& executor) {
    const bool capturing = kernels::cuda::is_capturing(executor);
    Entry wanted{plan.storage().getWeakStorageImpl(),
                 plan.const_data_ptr(),
                 version_of(plan),
                 meta.to_vector(),
                 sizes,
                 executor.stream,
                 {}};
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.remove_if([](const Entry& entry) { return entry.storage.expired(); });
    for (const Entry& entry : entries_) {
      if (is_same(entry, wanted, capturing)) {
        return entry.tables;
      }
    }
    wanted.tables = make_tables(plan, meta, sizes, executor);
    if (capturing) {
      return wanted.tables;
    }
    entries_.push_front(wanted);
    return entries_.front().tables;
  }

 private:
  static bool is_same(const Entry& entry, const Entry& wanted, bool any_stream) {
    return entry.array == wanted.array && entry.storage == wanted.storage && entry.version == wanted.version &&
           entry.sizes == wanted.sizes && (any_stream || entry.stream == wanted.stream) && entry.meta == wanted.meta;
  }

  std::mutex mutex_;
  std::list<Entry> entries_;
};

/// Never destroyed: at exit CUDA may be gone before it.
Cache& cache() {
  static Cache* const kept = new Cache;
  return *kept;
}

}  // namespace

PlanTables plan_tables(const at::Tensor& plan, const PlanMeta& meta, const kernels::ConvTableSizes& sizes,
                       const CudaExecutor& executor) {
  PlanMeta described = meta;
  described.algorithm = 0;  // has no part in it
  const bool mirrored = is_symmetric(meta) && meta.has(PlanMeta::reversed);
  if (mirrored) {
    described = described.reverse();
  }
  const at::Tensor tables = cache().find_or_make(plan, described, sizes, executor);
  return {tables, {tables.const_data_ptr(), mirrored}};
}

}  // namespace lacewing::conv
