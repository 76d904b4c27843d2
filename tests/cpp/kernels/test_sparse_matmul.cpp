// Sparse times sparse at every ISA level, against the reference: the same keys and the same bits.
#include <random>
#include <set>
#include <utility>

#include "kernels/sparse_matmul.h"
#include "support.h"

namespace lacewing::kernels::test {
namespace {

/// A random matrix by its rows; `full_row` has an entry in every column.
struct Matrix {
  Matrix(std::int64_t height, std::int64_t width, std::int64_t drawn, std::mt19937& random, bool full_row = false) {
    std::set<std::pair<std::int64_t, std::int64_t>> places;
    for (std::int64_t k = 0; k < drawn; ++k) {
      places.emplace(static_cast<std::int64_t>(random()) % height, static_cast<std::int64_t>(random()) % width);
    }
    for (std::int64_t c = 0; full_row && c < width; ++c) {
      places.emplace(height / 2, c);
    }
    for (const auto& [row, column] : places) {
      if (keys.empty() || keys.back() != row) {
        keys.push_back(row);
        segments.push_back(static_cast<std::int64_t>(columns.size()));
      }
      columns.push_back(column);
    }
    segments.push_back(static_cast<std::int64_t>(columns.size()));
  }

  std::int64_t entries() const { return static_cast<std::int64_t>(columns.size()); }
  RowsView view() const {
    return {keys.data(), segments.data(), static_cast<std::int64_t>(keys.size()), columns.data(), entries()};
  }

  std::vector<std::int64_t> keys, segments, columns;
};

Array numbers(ScalarType type, std::int64_t count, std::mt19937& random) {
  Array out(type, count);
  for (std::int64_t i = 0; i < count; ++i) {
    out.put(i, Number(static_cast<double>(random() % 2000) - 1000, static_cast<double>(random() % 100)) / 96.0);
  }
  return out;
}

struct Shape {
  std::int64_t rows, shared, columns, a_drawn, b_drawn;
  bool full;
};

// Few and many products for the columns of a row, more than fit one batch, exactly one batch, rows without an entry.
constexpr Shape kShapes[] = {
    {300, 200, 400, 2000, 2000, false},
    {30, 50, 5000, 2000, 2000, false},
    {5, 4, 60'000, 20, 2000, false},
    {40, 30, 1024, 300, 900, true},
    {40, 30, 3000, 300, 2000, true},
    {20, 40, 7000, 700, 8000, false},
    {2000, 2000, 20'000, 9000, 20'000, false},
    {1, 1, 1, 1, 1, false},
    {6, 5, 2048, 25, 0, true},
};

TEST(SparseMatmul, HasTheBitsOfTheReferenceAtEveryLevel) {
  for (const ScalarType type :
       {ScalarType::f16, ScalarType::bf16, ScalarType::f32, ScalarType::f64, ScalarType::c64, ScalarType::c128}) {
    std::mt19937 random(3);
    for (const Shape& shape : kShapes) {
      const Matrix a(shape.rows, shape.shared, shape.a_drawn, random);
      const Matrix b(shape.shared, shape.columns, shape.b_drawn, random, shape.full);
      const Array a_values = numbers(type, a.entries(), random);
      const Array b_values = numbers(type, b.entries(), random);
      std::vector<std::int64_t> column_keys(static_cast<std::size_t>(shape.columns));
      for (std::int64_t c = 0; c < shape.columns; ++c) {
        column_keys[static_cast<std::size_t>(c)] = 3 * c + 1;
      }
      for (const bool has_keys : {false, true}) {
        const std::int64_t* const named = has_keys ? column_keys.data() : nullptr;
        const std::int64_t stride = 3 * shape.columns + 1;
        const auto run = [&](const auto& product) {
          std::vector<std::int64_t> keys(static_cast<std::size_t>(product.count()));
          Array values(type, product.count());
          product.write(type, a_values.data(), b_values.data(), named, stride, keys.data(), values.data());
          return std::pair(std::move(keys), std::move(values));
        };
        const auto [keys, values] = run(SparseMatmulReference(a.view(), b.view()));
        for (const Level level : levels()) {
          if (level == Level::reference) {
            continue;
          }
          chosen_isa = static_cast<cpu::Isa>(level);
          for (const int threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.shared << " x " << shape.columns
                                            << ", type " << static_cast<int>(type) << ", level "
                                            << static_cast<int>(level) << ", " << threads << " threads");
            const auto [found_keys, found_values] =
                run(SparseMatmul(a.view(), b.view(), shape.shared, shape.columns, backwards_executor(threads)));
            ASSERT_EQ(found_keys, keys);
            for (std::int64_t k = 0; k < values.count(); ++k) {
              ASSERT_EQ(found_values.get(k), values.get(k)) << "entry " << k;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lacewing::kernels::test
