#include <vector>

#include <lacewing/dispatch/for_each.h>
#include <lacewing/dispatch/gather_scatter.h>
#include <lacewing/dispatch/table.h>
#include <lacewing/dispatch/views.h>

namespace guide {

using namespace lacewing;
using namespace lacewing::dispatch;

// One body for all scalar types and devices; the tag says which point it was instantiated for.
struct ScaleRows {
  template <typename Tag>
  void operator()(Tag t, const CpuExecutor& executor, void* data, std::int64_t rows, std::int64_t cols) const {
    constexpr Device dev = Tag::template get<Device>;
    constexpr ScalarType scalar = Tag::template get<ScalarType>;
    using T = scalar_t<scalar>;
    const matrix_mutable_view<dev, scalar> matrix{static_cast<T*>(data), rows, cols};

    for_each_nd<2>(t, executor, {rows, cols}, [=](auto, const std::array<std::int64_t, 2>& at) {
      T& entry = matrix(at[0], at[1]);
      entry = narrow<T>(widen(entry) * static_cast<accumulate_t<T>>(at[0]));
    });
  }
};

// The covered points. Nothing else is instantiated, and select() says so in one sentence for anything else.
using Covered = product<axis<Device::cpu, Device::reference>, axis<ScalarType::f16, ScalarType::f32>>;
inline constexpr dispatch_table<void(const CpuExecutor&, void*, std::int64_t, std::int64_t), Covered> scale_rows(
    "scale_rows", ScaleRows{});

// Device and dtype are resolved once; the kernel can then be called in a loop.
inline void scale_all(const CpuExecutor& executor, ScalarType dtype, std::vector<void*> matrices, std::int64_t rows,
                      std::int64_t cols) {
  const auto kernel = scale_rows.select(Device::cpu, dtype);
  for (void* matrix : matrices) {
    kernel(executor, matrix, rows, cols);
  }
}

// dst[pair.second] += src[pair.first], for pairs (first, second) that lie interleaved in memory.
inline void add_pairs(const CpuExecutor& executor, const std::vector<float>& src, std::vector<float>& dst,
                      const std::vector<std::int32_t>& pairs, std::int64_t cols) {
  constexpr tag<Device::cpu, ScalarType::f32> t;
  using Source = matrix_const_view<Device::cpu, ScalarType::f32>;
  using Target = matrix_mutable_view<Device::cpu, ScalarType::f32>;
  using Index = vector_const_view<Device::cpu, ScalarType::i32>;
  const std::int64_t count = static_cast<std::int64_t>(pairs.size()) / 2;
  std::vector<float> buffer(static_cast<std::size_t>(count * cols));

  gather(t, executor, Source{src.data(), static_cast<std::int64_t>(src.size()) / cols, cols},
         Target{buffer.data(), count, cols}, Index{pairs.data(), count, 2});
  scatter_add(t, executor, Source{buffer.data(), count, cols},
              Target{dst.data(), static_cast<std::int64_t>(dst.size()) / cols, cols},
              Index{pairs.data() + 1, count, 2});
}

}  // namespace guide
