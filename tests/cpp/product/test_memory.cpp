// What a product allocates and which threads it uses, seen from outside: by a counting allocator in the place of
// torch's, and by the operating system's account of each thread.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <unordered_map>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "support.h"

namespace lacewing::test {
namespace {

/// Counts what torch allocates on the CPU. Its memory may outlive it: blocks are freed by a plain function.
class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0 && posix_memalign(&data, 64, bytes) != 0) {
      throw std::bad_alloc();
    }
    const std::lock_guard lock(mutex());
    if (data != nullptr) {
      blocks()[data] = bytes;
    }
    total_ += bytes;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return {data, data, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  static std::int64_t total() { return static_cast<std::int64_t>(total_); }
  /// The most that was held at a time, beyond what was held at the last reset.
  static std::int64_t peak() { return static_cast<std::int64_t>(peak_ - start_); }
  static void reset() {
    total_ = 0;
    peak_ = start_ = live_;
  }

 private:
  static void release(void* data) {
    if (data == nullptr) {
      return;
    }
    const std::lock_guard lock(mutex());
    const auto block = blocks().find(data);
    live_ -= block->second;
    blocks().erase(block);
    std::free(data);
  }
  static std::mutex& mutex() {
    static auto* const kept = new std::mutex;
    return *kept;
  }
  static std::unordered_map<void*, std::size_t>& blocks() {
    static auto* const kept = new std::unordered_map<void*, std::size_t>;
    return *kept;
  }
  static inline std::size_t total_ = 0, live_ = 0, peak_ = 0, start_ = 0;
};

class Allocations : public testing::Test {
 protected:
  Allocations() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(&counting_); }
  ~Allocations() override { c10::SetCPUAllocator(before_); }

 private:
  static inline CountingAllocator counting_;
  c10::Allocator* before_;
};

/// A gradient as the product that the table of the specification says, for its workspace.
struct GradientProduct {
  const char* name;
  bool transpose_first, transpose_second;
};

/// op(y, gz) over bwd1.
const std::map<std::string, GradientProduct> kOfInput1{
    {"sparse_mul", {"sparse_mul", false, false}},        {"sparse_outer", {"sparse_vecmat", false, true}},
    {"sparse_inner", {"sparse_vecsca", false, false}},   {"sparse_vecmat", {"sparse_mat_t_vec", true, false}},
    {"sparse_vecsca", {"sparse_scavec", false, false}},  {"sparse_scavec", {"sparse_inner", false, false}},
    {"sparse_mat_t_vec", {"sparse_outer", false, false}}};
/// op(gz, x) over bwd2.
const std::map<std::string, GradientProduct> kOfInput2{
    {"sparse_mul", {"sparse_mul", false, false}},        {"sparse_outer", {"sparse_mat_t_vec", false, false}},
    {"sparse_inner", {"sparse_scavec", false, false}},   {"sparse_vecmat", {"sparse_outer", false, false}},
    {"sparse_vecsca", {"sparse_inner", false, false}},   {"sparse_scavec", {"sparse_vecsca", false, false}},
    {"sparse_mat_t_vec", {"sparse_vecmat", false, true}}};

std::int64_t gradient_workspace(const GradientProduct& product, const at::Tensor& first, const at::Tensor& second,
                                const InfoPlan& plan, bool accumulated) {
  return workspace_bytes(product.name, product.transpose_first ? first.transpose(-1, -2) : first,
                         product.transpose_second ? second.transpose(-1, -2) : second, plan, accumulated);
}

struct Workload {
  at::Tensor x, y;
  SparseProductInfos infos;

  /// Of the size of the workload P1 where the operands are vectors: 611 terms on 16 rows.
  Workload(const Op& op, int shared, at::ScalarType type) : infos(make(type)) {
    const bool matrices = op.x.size() + op.y.size() + op.z.size() > 3;
    const std::int64_t n = matrices ? 16 : 256;
    const Extents extents{matrices ? 24 : 64, 16};
    x = random(shape_of(op.x, (shared & 1) != 0 ? -1 : n, 16, extents), type).requires_grad_();
    y = random(shape_of(op.y, (shared & 2) != 0 ? -1 : n, 16, extents), type).requires_grad_();
  }
  static SparseProductInfos make(at::ScalarType type) {
    const auto index = [] { return at::randint(0, 16, {611}, at::kLong); };
    return sparse_product_infos(index(), index(), index(), random({611}, type), 16, 16, 16);
  }
};

TEST_F(Allocations, ForwardIsTheOutputAndTheWorkspaceToldBefore) {
  at::manual_seed(1);
  for (const Op& op : ops()) {
    for (int shared = 0; shared < 8; ++shared) {
      for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
        const Workload s(op, shared, type);
        const bool accumulated = (shared & 4) != 0;
        const std::int64_t workspace = workspace_bytes(op.name, s.x, s.y, s.infos.fwd.plan(), accumulated);

        CountingAllocator::reset();
        const auto z = op.apply(s.x, s.y, s.infos.fwd, s.infos.bwd1, s.infos.bwd2, accumulated);

        const auto output = static_cast<std::int64_t>(z.nbytes());
        EXPECT_EQ(CountingAllocator::total(), output + workspace) << op.name << " " << shared << " " << type;
        EXPECT_EQ(CountingAllocator::peak(), output + workspace) << op.name << " " << shared << " " << type;
      }
    }
  }
}

TEST_F(Allocations, BackwardIsTheGradientsAndTheirWorkspaces) {
  at::manual_seed(2);
  for (const Op& op : ops()) {
    if (!kOfInput1.contains(op.name)) {
      continue;
    }
    for (int shared = 0; shared < 8; ++shared) {
      for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
        const Workload s(op, shared, type);
        const bool accumulated = (shared & 4) != 0;
        const auto z = op.apply(s.x, s.y, s.infos.fwd, s.infos.bwd1, s.infos.bwd2, accumulated);
        const auto upstream = random({z.sizes().begin(), z.sizes().end()}, type);
        const auto x = s.x.detach();
        const auto y = s.y.detach();
        const std::int64_t workspace1 =
            gradient_workspace(kOfInput1.at(op.name), y, upstream, s.infos.bwd1.plan(), (shared & 1) != 0);
        const std::int64_t workspace2 =
            gradient_workspace(kOfInput2.at(op.name), upstream, x, s.infos.bwd2.plan(), (shared & 2) != 0);

        CountingAllocator::reset();
        const auto found = gradients(z, {s.x, s.y}, upstream);

        // The storage, because a gradient that is the same for every n is expanded and holds one n only.
        const auto stored = static_cast<std::int64_t>(found[0].storage().nbytes() + found[1].storage().nbytes());
        EXPECT_EQ(CountingAllocator::total(), stored + workspace1 + workspace2)
            << op.name << " " << shared << " " << type;
        EXPECT_LE(CountingAllocator::peak(), stored + std::max(workspace1, workspace2)) << op.name << " " << shared;
      }
    }
  }
}

TEST_F(Allocations, BackwardIntoLeavesKeepsTheGradientsThatWereMade) {
  at::manual_seed(3);
  for (const Op& op : ops()) {
    if (!kOfInput1.contains(op.name)) {
      continue;
    }
    const Workload s(op, 0, at::kFloat);
    const auto z = op.apply(s.x, s.y, s.infos.fwd, s.infos.bwd1, s.infos.bwd2, false);
    const auto upstream = at::randn_like(z);

    CountingAllocator::reset();
    z.backward(upstream);

    const std::int64_t workspace =
        gradient_workspace(kOfInput1.at(op.name), s.y.detach(), upstream, s.infos.bwd1.plan(), false) +
        gradient_workspace(kOfInput2.at(op.name), upstream, s.x.detach(), s.infos.bwd2.plan(), false);
    EXPECT_EQ(CountingAllocator::total(), static_cast<std::int64_t>(s.x.nbytes() + s.y.nbytes()) + workspace)
        << op.name;
  }
}

TEST_F(Allocations, TheWorkspaceIsSmallAgainstTheOperands) {
  // Each thread has its own.
  const ThreadCount two(2);
  for (const Op& op : ops()) {
    const Workload s(op, 0, at::kFloat);
    const std::int64_t workspace = workspace_bytes(op.name, s.x, s.y, s.infos.fwd.plan());
    if (op.x.size() + op.y.size() + op.z.size() <= 3) {
      EXPECT_EQ(workspace, 0) << op.name;
    } else {
      EXPECT_LT(workspace, static_cast<std::int64_t>(s.x.nbytes() + s.y.nbytes())) << op.name;
    }
  }
}

TEST_F(Allocations, SparseScaleAllocatesItsOutputAlone) {
  const auto index = at::randint(0, 16, {100}, at::kLong);
  const auto infos = sparse_scale_infos(index, index.flip(0), {}, 16, 16);
  const auto input = at::randn({64, 16, 64});

  CountingAllocator::reset();
  const auto z = sparse_scale(input, infos.fwd);

  EXPECT_EQ(workspace_bytes("sparse_scale", input, {}, infos.fwd.plan()), 0);
  EXPECT_EQ(CountingAllocator::total(), static_cast<std::int64_t>(z.nbytes()));
}

TEST(Workspace, AnUnknownNameIsRefused) {
  const auto x = at::ones({1, 1, 1});

  EXPECT_EQ(message_of([&] { workspace_bytes("sparse_add", x, x, SparseProductInfo().plan()); }),
            "[lacewing.workspace_bytes] there is no product named sparse_add");
}

/// Clock ticks that each thread of this process has spent in user code.
std::map<std::string, long> thread_ticks() {
  std::map<std::string, long> ticks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) {  // it ended since
      continue;
    }
    // The name in parentheses may hold blanks; user time is the twelfth field behind it.
    std::istringstream fields(line.substr(line.rfind(')') + 2));
    std::string field;
    for (int i = 0; i < 12; ++i) {
      fields >> field;
    }
    ticks[task.path().filename()] = std::atol(field.c_str());
  }
  return ticks;
}

TEST(Threads, LargeWorkRunsOnTwoThreads) {
  if (!std::filesystem::exists("/proc/self/task")) {
    GTEST_SKIP() << "there is no /proc here";
  }
  const ThreadCount two(2);
  const auto index = [] { return at::randint(0, 16, {611}, at::kLong); };
  const auto info = sparse_product_info(index(), index(), index(), {}, 16);
  const auto x = at::randn({256, 16, 64});
  const auto y = at::randn({256, 16, 64});
  sparse_mul(x, y, info);

  // Until the work is long against a tick. Ticks are counted by sampling, so the shares are rough; a second thread that
  // had no work would have none.
  const auto start = thread_ticks();
  std::vector<long> spent;
  for (int round = 0; round < 2000 && (spent.empty() || spent.front() < 30); ++round) {
    for (int i = 0; i < 20; ++i) {
      sparse_mul(x, y, info);
    }
    spent.clear();
    for (const auto& [thread, ticks] : thread_ticks()) {
      const auto old = start.find(thread);
      spent.push_back(ticks - (old == start.end() ? 0 : old->second));
    }
    std::sort(spent.rbegin(), spent.rend());
  }

  ASSERT_GE(spent.size(), 2u);
  EXPECT_GE(spent[1] * 5, spent[0]);
}

}  // namespace
}  // namespace lacewing::test
