// Formats of sparse tensors from C++: GCRS and GCCS, torch's own layouts, files.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <lacewing/tensor.h>
#include <lacewing/tensor_files.h>

namespace lacewing {
namespace {

using Dims = std::vector<std::int64_t>;

struct Example {
  at::Tensor indices = torch::tensor({{0, 1, 2, 3, 1}, {1, 0, 4, 2, 0}, {1, 2, 0, 0, 2}}, torch::kLong);
  at::Tensor values = torch::tensor({0.5, -1.0, 2.0, 3.0, 4.0}, torch::kDouble).requires_grad_();
  at::Tensor coo = lacewing::sparse_coo_tensor(indices, values, at::IntArrayRef({4, 5, 3}));
};

class TemporaryFile {
 public:
  explicit TemporaryFile(const char* name) : path_(std::filesystem::temp_directory_path() / name) {}
  ~TemporaryFile() { std::remove(path_.c_str()); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(SparseFormats, TheArraysAreThoseOfTheReducedMatrix) {
  const Example e;

  const at::Tensor g = to_gcs(e.coo, at::IntArrayRef({2, 0}), {}, /*by_column=*/false);

  EXPECT_EQ(format(g), Format::gcrs);
  EXPECT_EQ(row_dims(g), (Dims{2, 0}));
  EXPECT_EQ(col_dims(g), (Dims{1}));
  EXPECT_EQ(nse(g), 4);  // two entries were one element
  // Rows are i2 * 4 + i0: (2, 4, 0), (3, 2, 0), (0, 1, 1), (1, 0, 2).
  const auto rows = torch::tensor({0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 4, 4, 4}, torch::kLong);
  EXPECT_TRUE(torch::equal(compressed_indices(g), rows)) << compressed_indices(g);
  EXPECT_TRUE(torch::equal(plain_indices(g), torch::tensor({4, 2, 1, 0}, torch::kLong)));
  EXPECT_TRUE(torch::equal(to_dense(g), to_dense(e.coo)));
}

TEST(SparseFormats, ColumnsAreTheRowsOfTheOtherSplit) {
  const Example e;

  const at::Tensor rows = to_gcs(e.coo, at::IntArrayRef({1}), at::IntArrayRef({0, 2}));
  const at::Tensor columns = to_gcs(e.coo, at::IntArrayRef({0, 2}), at::IntArrayRef({1}), /*by_column=*/true);

  EXPECT_EQ(format(columns), Format::gccs);
  EXPECT_TRUE(torch::equal(compressed_indices(rows), compressed_indices(columns)));
  EXPECT_TRUE(torch::equal(plain_indices(rows), plain_indices(columns)));
  EXPECT_TRUE(torch::equal(values(rows), values(columns)));
}

TEST(SparseFormats, OpsAndModulesTakeThemWithGradients) {
  const Example e;
  torch::nn::Linear linear(3, 2);
  linear->to(torch::kDouble);
  const at::Tensor x = torch::randn({4, 3, 2}, torch::kDouble).requires_grad_();
  const auto loss = [&](const at::Tensor& s) { return (torch::cos(s).matmul(x) + linear(s)).sin().sum(); };

  const at::Tensor g = to_gcs(e.coo, at::IntArrayRef({2}), {}, /*by_column=*/true);
  const auto found = torch::autograd::grad({loss(g)}, {e.values, x, linear->weight});
  const auto wanted = torch::autograd::grad({loss(to_dense(e.coo))}, {e.values, x, linear->weight});

  EXPECT_EQ(format(torch::cos(g)), Format::gccs);
  for (std::size_t k = 0; k < found.size(); ++k) {
    EXPECT_TRUE(torch::allclose(found[k], wanted[k])) << k;
  }
}

TEST(SparseFormats, GivenArraysAreKept) {
  const auto starts = torch::tensor({0, 2, 2, 3}, torch::kInt);
  const auto columns = torch::tensor({3, 1, 0}, torch::kInt);
  const auto entries = torch::tensor({1.0, 2.0, 3.0});

  const at::Tensor g = sparse_gcs_tensor(starts, columns, entries, {3, 4});

  EXPECT_TRUE(compressed_indices(g).is_same(starts));
  EXPECT_TRUE(plain_indices(g).is_same(columns));
  EXPECT_TRUE(values(g).is_same(entries));
  EXPECT_TRUE(torch::equal(indices(g), torch::tensor({{0, 0, 2}, {3, 1, 0}}, torch::kLong)));
  EXPECT_EQ(to_dense(g)[0][1].item<float>(), 2.0F);
}

TEST(SparseFormats, TorchLayoutsShareMemory) {
  const auto dense = torch::tensor({{0.0, 1.0, 2.0}, {3.0, 0.0, 0.0}}, torch::kDouble);
  const at::Tensor theirs = dense.to_sparse_csr();

  const at::Tensor ours = from_torch(theirs);
  const at::Tensor back = to_torch(ours, torch::kSparseCsr);

  EXPECT_EQ(format(ours), Format::gcrs);
  EXPECT_EQ(values(ours).data_ptr(), theirs.values().data_ptr());
  EXPECT_EQ(back.values().data_ptr(), theirs.values().data_ptr());
  EXPECT_EQ(back.crow_indices().data_ptr(), theirs.crow_indices().data_ptr());
  EXPECT_TRUE(torch::equal(back.to_dense(), dense));
}

TEST(SparseFormats, OptimizersAreToldToTakeTheValues) {
  const Example e;
  torch::optim::SGD wrong({e.coo}, torch::optim::SGDOptions(0.1));

  EXPECT_THROW(wrong.step(), c10::Error);

  torch::optim::SGD right({e.values}, torch::optim::SGDOptions(0.1));
  e.coo.sum().backward();
  right.step();
  EXPECT_DOUBLE_EQ(values(e.coo)[0].item<double>(), 0.4);
}

TEST(SparseFormats, FilesReadBackTheSame) {
  const TemporaryFile mtx("lacewing_test_formats.mtx");
  const TemporaryFile tns("lacewing_test_formats.tns");
  const Example e;
  const at::Tensor matrix = to_gcs(lacewing::sparse_coo_tensor(e.indices.slice(0, 0, 2), e.values.detach() / 3));

  write_mtx(matrix, mtx.path());
  write_tns(e.coo, tns.path());

  EXPECT_TRUE(torch::equal(to_dense(read_mtx(mtx.path())), to_dense(matrix)));
  EXPECT_TRUE(torch::equal(to_dense(read_tns(tns.path(), e.coo.sizes())), to_dense(e.coo)));
}

TEST(SparseFormats, ADamagedFileIsNamedWithItsLine) {
  const TemporaryFile file("lacewing_test_damaged.tns");
  std::ofstream(file.path()) << "1 2 3.0\n1 two 4.0\n";

  try {
    read_tns(file.path());
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()),
              "[lacewing.read_tns] " + file.path() + ": line 2: an index is \"two\", which is no integer");
  }
}

}  // namespace
}  // namespace lacewing
