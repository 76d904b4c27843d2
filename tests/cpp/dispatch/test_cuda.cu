// The primitives on a CUDA device against the serial reference; skipped where there is no device.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include <lacewing/dispatch/gather_scatter.h>

namespace lacewing::dispatch {
namespace {

constexpr tag<Device::cuda> cuda;

bool no_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}

/// A copy of host data in device memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    detail::check_cuda(cudaMalloc(&data_, size_ * sizeof(T) + 1), "test");
    detail::check_cuda(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "test");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> out(size_);
    detail::check_cuda(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "test");
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct CountSome {
  std::int64_t last;
  unsigned long long* hits;

  template <typename Tag>
  __device__ void operator()(Tag, std::int64_t i) const {
    if (i % (std::int64_t{1} << 28) == 0 || i == last) {
      atomicAdd(hits, 1ull);
    }
  }
};

TEST(CudaForEach, CountsBeyond32Bits) {
  if (no_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  const std::int64_t count = (std::int64_t{1} << 32) + 3;
  const DeviceArray<unsigned long long> hits({0});

  for_each(cuda, CudaExecutor{nullptr}, count, CountSome{count - 1, hits.get()});

  EXPECT_EQ(hits.host()[0], 18u);
}

struct CountCorners {
  std::array<std::int64_t, 2> extents;
  unsigned long long* hits;

  template <typename Tag>
  __device__ void operator()(Tag, const std::array<std::int64_t, 2>& at) const {
    const bool row = at[0] == 0 || at[0] == extents[0] - 1;
    const bool col = at[1] == 0 || at[1] == extents[1] - 1;
    if (row && col) {
      atomicAdd(hits, 1ull);
    }
  }
};

TEST(CudaForEachNd, BoxesBelowAndBeyond32Bits) {
  if (no_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  for (const std::int64_t cols : {3, 70'000}) {
    const std::array<std::int64_t, 2> extents{70'000, cols};
    const DeviceArray<unsigned long long> hits({0});

    for_each_nd<2>(cuda, CudaExecutor{nullptr}, extents, CountCorners{extents, hits.get()});

    EXPECT_EQ(hits.host()[0], 4u) << cols;
  }
}

TEST(CudaForEach, NothingIsLaunchedForAnEmptyRange) {
  for_each(cuda, CudaExecutor{nullptr}, 0, CountSome{0, nullptr});
  for_each_nd<2>(cuda, CudaExecutor{nullptr}, {0, 5}, CountCorners{{0, 5}, nullptr});
}

template <typename T>
struct Convert {
  float* wide;
  std::uint16_t* back;
  const float* probes;
  std::uint16_t* rounded;

  template <typename Tag>
  __device__ void operator()(Tag, std::int64_t i) const {
    wide[i] = T{static_cast<std::uint16_t>(i)}.to_float();
    back[i] = T::from_float(wide[i]).bits;
    rounded[i] = T::from_float(probes[i]).bits;
  }
};

template <typename T>
void compare_conversions() {
  std::vector<float> probes(65536);
  for (std::uint32_t i = 0, word = 0; i < 65536; ++i, word += 2654435761u) {
    std::memcpy(&probes[i], &word, sizeof word);
  }
  const DeviceArray<float> wide(probes);
  const DeviceArray<float> device_probes(probes);
  const DeviceArray<std::uint16_t> back(std::vector<std::uint16_t>(65536));
  const DeviceArray<std::uint16_t> rounded(std::vector<std::uint16_t>(65536));

  for_each(cuda, CudaExecutor{nullptr}, 65536, Convert<T>{wide.get(), back.get(), device_probes.get(), rounded.get()});

  const auto found_wide = wide.host();
  const auto found_back = back.host();
  const auto found_rounded = rounded.host();
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const T value{static_cast<std::uint16_t>(i)};
    if (value.to_float() == value.to_float()) {
      ASSERT_EQ(found_wide[i], value.to_float()) << i;
      ASSERT_EQ(found_back[i], i);
    } else {
      ASSERT_NE(found_wide[i], found_wide[i]) << i;
    }
    ASSERT_EQ(found_rounded[i], T::from_float(probes[i]).bits) << probes[i];
  }
}

TEST(CudaScalar, ConversionsAreTheHosts) {
  if (no_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  compare_conversions<Half>();
  compare_conversions<BFloat16>();
}

template <ScalarType S>
struct Case {
  static constexpr ScalarType scalar = S;
};

template <typename C>
class CudaRows : public testing::Test {
 protected:
  static constexpr ScalarType S = C::scalar;
  using T = scalar_t<S>;
  static constexpr std::int64_t rows = 97;
  static constexpr std::int64_t cols = 67;
  static constexpr std::int64_t count = 1500;

  static T from_int(int value) {
    if constexpr (is_narrow_v<T>) {
      return T::from_float(static_cast<float>(value));
    } else if constexpr (is_complex_v<T>) {
      return {static_cast<decltype(T::re)>(value), static_cast<decltype(T::re)>(-2 * value)};
    } else {
      return static_cast<T>(value);
    }
  }

  CudaRows() {
    for (std::int64_t i = 0; i < count * cols; ++i) {
      source.push_back(from_int(static_cast<int>(i * 7 % 3) - 1));
    }
    // Interleaved pairs: a sorted index and the same rows in another order.
    for (std::int64_t k = 0; k < count; ++k) {
      pairs.push_back(static_cast<std::int32_t>(k * rows / count));
      pairs.push_back(static_cast<std::int32_t>((k * 31 + 5) % rows));
    }
  }

  template <Device Dev>
  static vector_const_view<Dev, ScalarType::i32> column(const std::int32_t* data, int which) {
    return {data + which, count, 2};
  }

  std::vector<T> source;
  std::vector<std::int32_t> pairs;
  std::vector<T> zeros = std::vector<T>(rows * cols, from_int(0));
};

using Cases =
    testing::Types<Case<ScalarType::f16>, Case<ScalarType::bf16>, Case<ScalarType::f32>, Case<ScalarType::f64>,
                   Case<ScalarType::c64>, Case<ScalarType::c128>, Case<ScalarType::i32>, Case<ScalarType::i64>>;
TYPED_TEST_SUITE(CudaRows, Cases);

TYPED_TEST(CudaRows, PrimitivesGiveTheReferencesBits) {
  if (no_device()) {
    GTEST_SKIP() << "no CUDA device";
  }
  using T = typename TestFixture::T;
  constexpr ScalarType S = TestFixture::S;
  constexpr auto n = TestFixture::count;
  constexpr auto rows = TestFixture::rows;
  constexpr auto cols = TestFixture::cols;
  constexpr Device ref = Device::reference;
  using RefSource = matrix_const_view<ref, S>;
  using RefTarget = matrix_mutable_view<ref, S>;
  using CudaSource = matrix_const_view<Device::cuda, S>;
  using CudaTarget = matrix_mutable_view<Device::cuda, S>;
  const tag<ref, S> reference;
  const tag<Device::cuda, S> device;
  const CpuExecutor host = serial_executor();
  const CudaExecutor stream{nullptr};
  const DeviceArray<T> source(this->source);
  const DeviceArray<std::int32_t> pairs(this->pairs);
  const auto host_index = [&](int which) { return this->template column<ref>(this->pairs.data(), which); };
  const auto index = [&](int which) { return this->template column<Device::cuda>(pairs.get(), which); };

  std::vector<T> gathered(n * cols);
  const DeviceArray<T> device_gathered(gathered);
  gather(reference, host, RefSource{this->source.data(), rows, cols}, RefTarget{gathered.data(), n, cols},
         host_index(1));
  gather(device, stream, CudaSource{source.get(), rows, cols}, CudaTarget{device_gathered.get(), n, cols}, index(1));
  EXPECT_TRUE(same_bytes(gathered, device_gathered.host()));

  auto sums = this->zeros;
  const DeviceArray<T> device_sums(sums);
  scatter_add_sorted(reference, host, RefSource{this->source.data(), n, cols}, RefTarget{sums.data(), rows, cols},
                     host_index(0));
  scatter_add_sorted(device, stream, CudaSource{source.get(), n, cols}, CudaTarget{device_sums.get(), rows, cols},
                     index(0));
  EXPECT_TRUE(same_bytes(sums, device_sums.host()));

  // Small integers: the sums are exact in every order.
  auto atomic = this->zeros;
  const DeviceArray<T> device_atomic(atomic);
  scatter_add_atomic(reference, host, RefSource{this->source.data(), n, cols}, RefTarget{atomic.data(), rows, cols},
                     host_index(1));
  scatter_add_atomic(device, stream, CudaSource{source.get(), n, cols}, CudaTarget{device_atomic.get(), rows, cols},
                     index(1));
  EXPECT_TRUE(same_bytes(atomic, device_atomic.host()));

  // The first 97 entries of the second column are distinct, since 31 and 97 are coprime.
  auto distinct = this->zeros;
  const DeviceArray<T> device_distinct(distinct);
  scatter_add(reference, host, RefSource{this->source.data(), rows, cols}, RefTarget{distinct.data(), rows, cols},
              vector_const_view<ref, ScalarType::i32>{this->pairs.data() + 1, rows, 2});
  scatter_add(device, stream, CudaSource{source.get(), rows, cols}, CudaTarget{device_distinct.get(), rows, cols},
              vector_const_view<Device::cuda, ScalarType::i32>{pairs.get() + 1, rows, 2});
  EXPECT_TRUE(same_bytes(distinct, device_distinct.host()));
}

}  // namespace
}  // namespace lacewing::dispatch
