// The kernels of the products on plain arrays: the reference by hand, then every ISA level against the oracle.
#include <array>
#include <thread>
#include <vector>

#include "kernels/cpu/schedule.h"
#include "support.h"

namespace lacewing::kernels::test {
namespace {

/// Terms (0,0) -> 0, (0,1) -> 1, (1,1) -> 1 with scale 1, 2, -1; row 2 has none.
struct ByHand {
  std::array<std::int32_t, 4> segments{0, 1, 3, 3};
  std::array<std::int32_t, 3> index1{0, 0, 1};
  std::array<std::int32_t, 3> index2{0, 1, 1};
  std::array<double, 3> scale{1, 2, -1};
  std::array<double, 4> x{1, 2, 3, 4};
  std::array<double, 4> y{5, 6, 7, 8};
  std::array<double, 8> matrices{1, 0, 2, 1, 0, 1, 1, -1};
  std::array<double, 2> scalars{5, 7};

  ProductArgs arguments(Pattern pattern, double* z) const {
    ProductArgs args;
    args.type = ScalarType::f64;
    args.pattern = pattern;
    args.x = {x.data(), 0, 2, 1, 0, 2, false};
    args.y = {y.data(), 0, 2, 1, 0, 2, false};
    args.z = {z, 0, 2, 1, 0, 3, false};
    args.scale = scale.data();
    args.terms.segments = segments.data();
    args.terms.index1 = index1.data();
    args.terms.index2 = index2.data();
    args.terms.rows = 3;
    args.terms.terms = 3;
    args.terms.entries = 3;
    args.extent_a = 2;
    return args;
  }
};

TEST(ReferenceByHand, Mul) {
  const ByHand hand;
  std::vector<double> z(6, 99);

  reference::product(hand.arguments(Pattern::mul, z.data()));

  EXPECT_EQ(z, (std::vector<double>{5, 12, -7, 0, 0, 0}));
}

TEST(ReferenceByHand, Outer) {
  const ByHand hand;
  std::vector<double> z(12, 99);
  ProductArgs args = hand.arguments(Pattern::outer, z.data());
  args.y.stride_a = 0;
  args.y.stride_b = 1;
  args.z = {z.data(), 0, 4, 2, 1, 3, false};
  args.extent_b = 2;

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{5, 6, 10, 12, -7, -8, 0, 0, 0, 0, 0, 0}));
}

TEST(ReferenceByHand, Inner) {
  const ByHand hand;
  std::vector<double> z(3, 99);
  ProductArgs args = hand.arguments(Pattern::inner, z.data());
  args.z = {z.data(), 0, 1, 0, 0, 3, false};

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{17, -7, 0}));
}

TEST(ReferenceByHand, Vecmat) {
  const ByHand hand;
  std::vector<double> z(6, 99);
  ProductArgs args = hand.arguments(Pattern::vecmat, z.data());
  args.y = {hand.matrices.data(), 0, 4, 2, 1, 2, false};
  args.z = {z.data(), 0, 2, 0, 1, 3, false};
  args.extent_b = 2;

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{5, 2, 0, -1, 0, 0}));
}

TEST(ReferenceByHand, Vecsca) {
  const ByHand hand;
  std::vector<double> z(6, 99);
  ProductArgs args = hand.arguments(Pattern::vecsca, z.data());
  args.y = {hand.scalars.data(), 0, 1, 0, 0, 2, false};

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{5, 10, -7, 0, 0, 0}));
}

TEST(ReferenceByHand, ScaleIsVecscaWithoutASecondOperand) {
  const ByHand hand;
  std::vector<double> z(6, 99);
  ProductArgs args = hand.arguments(Pattern::vecsca, z.data());
  args.y = {};
  args.terms.index2 = nullptr;

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{1, 2, -1, 0, 0, 0}));
}

TEST(ReferenceByHand, AccumulateAddsOverN) {
  const ByHand hand;
  const std::array<double, 8> x{1, 2, 3, 4, 10, 20, 30, 40};
  std::vector<double> z(6, 99);
  ProductArgs args = hand.arguments(Pattern::mul, z.data());
  args.x = {x.data(), 4, 2, 1, 0, 2, false};
  args.batch = 2;
  args.accumulate = true;

  reference::product(args);

  EXPECT_EQ(z, (std::vector<double>{55, 132, -77, 0, 0, 0}));
}

TEST(ReferenceByHand, GradientOfScale) {
  const ByHand hand;
  const std::array<double, 6> upstream{1, 1, 1, -1, 5, 5};
  std::vector<double> out(3, 99);
  ScaleGradArgs args{hand.arguments(Pattern::mul, nullptr), out.data()};
  args.product.z.data = upstream.data();

  reference::scale_grad(args);

  EXPECT_EQ(out, (std::vector<double>{17, -9, -11}));
}

TEST(ReferenceByHand, GradientOfScaleConjugatesTheInputs) {
  const std::array<Complex<double>, 1> x{{{1, 2}}};
  const std::array<Complex<double>, 1> y{{{3, -1}}};
  const std::array<Complex<double>, 1> g{{{0, 1}}};
  std::array<Complex<double>, 1> out{};
  ScaleGradArgs args;
  args.product.type = ScalarType::c128;
  args.product.pattern = Pattern::mul;
  args.product.x = {x.data(), 0, 1, 1, 0, 1, false};
  args.product.y = {y.data(), 0, 1, 1, 0, 1, false};
  args.product.z = {g.data(), 0, 1, 1, 0, 1, false};
  args.product.terms.rows = args.product.terms.terms = args.product.terms.entries = 1;
  args.out = out.data();

  reference::scale_grad(args);

  // (1 + 2i)(3 - i) = 5 + 5i, and (5 - 5i) i = 5 + 5i.
  EXPECT_EQ(out[0], (Complex<double>{5, 5}));
}

TEST(KernelLevels, EveryLevelOfTheBuildRunsHere) {
#if LACEWING_HAVE_X86_ISA
  if (levels().size() < 4) {
    GTEST_SKIP() << "this processor has no AVX-512 (or no AVX2): only " << levels().size() - 1 << " of 3 levels run";
  }
  EXPECT_EQ(levels().size(), 4u);
#else
  EXPECT_EQ(levels().size(), 2u);
#endif
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::Combine(testing::ValuesIn(kForms), testing::ValuesIn(kTypes)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(All, ComplexKernels,
                         testing::Combine(testing::ValuesIn(kForms), testing::ValuesIn(kComplexTypes)), name_of_case);

TEST_P(Kernels, ProductWithAnyArrayAbsent) {
  for (int bits = 0; bits < 64; ++bits) {
    Case c = plain();
    c.segments = (bits & 1) != 0;
    c.index1 = (bits & 2) != 0;
    c.index2 = (bits & 4) != 0;
    c.order = (bits & 8) != 0;
    c.scale = (bits & 16) != 0;
    c.wide = (bits & 32) != 0;
    c.seed = static_cast<std::uint64_t>(bits + 1);

    EXPECT_TRUE(product_is_right(c)) << "absence " << bits;
  }
}

TEST_P(Kernels, ProductInEveryLayout) {
  std::uint64_t seed = 1;
  for (const Layout x : kLayouts) {
    for (const Layout y : kLayouts) {
      for (const int variant : {0, 1, 2, 3}) {
        const bool accumulate = variant == 3;
        Case c = plain();
        c.x = x;
        c.y = y;
        c.z = seed % 2 == 0 ? Layout::padded : Layout::plain;
        c.accumulate = accumulate;
        c.extent_a = 17;
        c.extent_b = 9;
        c.batch = 4;
        c.wide = seed % 3 == 0;
        c.groups = variant > 0;
        c.mirrored = variant == 2;
        c.seed = seed++;
        EXPECT_TRUE(product_is_right(c)) << "x " << static_cast<int>(x) << " y " << static_cast<int>(y)
                                         << " accumulate " << accumulate;
      }
    }
  }
}

TEST_P(ComplexKernels, ProductOfConjugatedOperands) {
  for (int bits = 0; bits < 8; ++bits) {
    for (const Layout y : {Layout::plain, Layout::transposed, Layout::shared, Layout::strided, Layout::spread}) {
      for (const bool accumulate : {false, true}) {
        Case c = plain();
        c.conjugate_x = (bits & 1) != 0;
        c.conjugate_y = (bits & 2) != 0;
        c.conjugate_scale = (bits & 4) != 0;
        c.y = y;
        c.accumulate = accumulate;
        c.groups = c.conjugate_x == (y == Layout::plain);
        c.mirrored = c.conjugate_y;
        c.extent_b = 10;
        c.batch = 6;
        c.seed = static_cast<std::uint64_t>(bits + 1);
        EXPECT_TRUE(product_is_right(c)) << "conjugations " << bits << " y " << static_cast<int>(y);
      }
    }
  }
}

TEST_P(Kernels, ProductOfEveryExtent) {
  const Channels has = channels_y(plain().form);
  const std::vector<std::int64_t> across =
      has.b ? std::vector<std::int64_t>{1, 3, 7, 8, 16, 17, 64, 67, 144} : std::vector<std::int64_t>{1};
  for (const std::int64_t a : {1, 2, 3, 4, 6, 7, 13, 16, 17, 64, 67, 144}) {
    for (const std::int64_t b : across) {
      if (a * b > 2000 && a != 67 && b != 67) {
        continue;
      }
      Case c = plain();
      c.extent_a = a;
      c.extent_b = b;
      c.rows = 3;
      c.seed = static_cast<std::uint64_t>(a * 1000 + b);
      EXPECT_TRUE(product_is_right(c)) << a << " x " << b;
      c.y = Layout::transposed;
      c.batch = 1;
      c.accumulate = true;
      EXPECT_TRUE(product_is_right(c)) << a << " x " << b << ", the other way round";
    }
  }
}

TEST_P(Kernels, WithoutScaleOfEveryExtent) {
  for (const std::int64_t a : {1, 2, 15, 16, 17, 33, 64, 67, 128, 144}) {
    for (int bits = 0; bits < 8; ++bits) {
      Case c = plain();
      c.extent_a = a;
      c.extent_b = channels_y(c.form).b ? 3 : 1;
      c.scale = c.order = false;
      c.index1 = (bits & 1) == 0;
      c.index2 = (bits & 2) == 0;
      c.segments = (bits & 4) == 0;
      c.rows = c.segments ? 11 : 70;
      c.terms_per_row = 7;
      c.batch = 1;
      c.accumulate = bits % 3 == 0;
      c.seed = static_cast<std::uint64_t>(a * 8 + bits);
      EXPECT_TRUE(product_is_right(c)) << a << " channels, case " << bits;
      c.z = Layout::padded;
      c.batch = 3;
      c.accumulate = false;
      EXPECT_TRUE(product_is_right(c)) << a << " channels, case " << bits << ", a batch";
    }
  }
}

TEST_P(Kernels, WithoutScaleOfRowsThatAreFarApart) {
  for (const std::int64_t a : {1, 67}) {
    Case c = plain();
    c.extent_a = a;
    c.extent_b = channels_y(c.form).b ? 2 : 1;
    c.scale = c.order = false;
    c.source_rows = (std::int64_t{5} << 18) / (a * c.extent_b);
    c.batch = 1;
    for (const bool segments : {false, true}) {
      c.segments = segments;
      c.rows = segments ? 30 : 100;
      EXPECT_TRUE(product_is_right(c)) << a << " channels";
    }
  }
}

TEST_P(Kernels, SingleNumbersInRowsOfChangingLength) {
  Case c = plain();
  c.extent_a = c.extent_b = 1;
  c.scale = c.order = false;
  for (const std::int64_t terms : {1, 15, 40, 150}) {  // within a vector, beyond one, beyond any buffer
    c.index2 = terms == 15;
    c.rows = 36;
    c.terms_per_row = terms;
    c.batch = 64;  // a task has all rows of one n
    EXPECT_TRUE(product_is_right(c)) << terms << " terms";
  }
  c.source_rows = 5 << 18;
  c.index2 = true;
  c.batch = 1;
  c.rows = 64 * 34;
  c.terms_per_row = 3;
  EXPECT_TRUE(product_is_right(c)) << "rows that are far apart";
}

TEST_P(Kernels, AccumulateWithFewRowsIsCutIntoParts) {
  for (const std::int64_t rows : {1, 2, 3, 31, 32}) {
    for (const std::int64_t batch : {2, 15, 40}) {
      Case c = plain();
      c.segments = rows != 1;
      c.rows = rows;
      c.terms_per_row = 40 / rows + 1;
      c.batch = batch;
      c.extent_a = 67;
      c.extent_b = 17;
      c.accumulate = true;
      c.z = rows % 2 == 0 ? Layout::padded : Layout::plain;
      if (channels_y(c.form).b) {
        c.extent_a = 17;
        c.terms_per_row = 20 / rows + 1;
      }
      EXPECT_TRUE(product_is_right(c)) << rows << " rows, batch " << batch;
    }
  }
}

TEST_P(Kernels, AccumulateWithManyRows) {
  Case c = plain();
  c.rows = 97;
  c.batch = 9;
  c.extent_a = 19;
  c.accumulate = true;

  EXPECT_TRUE(product_is_right(c));
}

TEST_P(Kernels, SeparateRowsOfManySizes) {
  for (const std::int64_t rows : {1, 2, 63, 64, 65, 200}) {
    for (const bool segments : {false, true}) {
      Case c = plain();
      c.rows = rows;
      c.segments = segments;
      c.batch = rows > 100 ? 1 : 7;
      c.extent_a = 16;
      EXPECT_TRUE(product_is_right(c)) << rows;
    }
  }
}

TEST_P(Kernels, ABatchAgainstOneSharedOperand) {
  for (const std::int64_t batch : {1, 2, 3, 4, 5, 6, 9, 10, 11}) {
    for (const Layout y : {Layout::shared, Layout::plain}) {
      Case c = plain();
      c.batch = batch;
      c.y = y;
      c.x = y == Layout::plain ? Layout::shared : Layout::padded;
      c.extent_a = 18;
      c.extent_b = 21;
      EXPECT_TRUE(product_is_right(c)) << batch;
    }
  }
}

TEST_P(Kernels, TermsThatShareARowAreAddedUpFirst) {
  struct Sizes {
    std::int64_t rows, terms_per_row, batch;
  };
  // More terms of one row, and more rows of one matrix, than are kept at a time; and rows without terms.
  for (const Sizes& sizes : {Sizes{6, 2, 4}, Sizes{3, 150, 4}, Sizes{130, 2, 4}, Sizes{9, 4, 7}}) {
    for (int bits = 0; bits < 8; ++bits) {
      Case c = plain();
      c.rows = sizes.rows;
      c.terms_per_row = sizes.terms_per_row;
      c.batch = sizes.batch;
      c.extent_a = 5;
      c.extent_b = 7;
      c.groups = true;
      c.mirrored = (bits & 1) != 0;
      c.wide = (bits & 2) != 0;
      c.scale = (bits & 4) != 0;
      c.order = bits != 0;
      c.seed = static_cast<std::uint64_t>(bits + 1);
      EXPECT_TRUE(product_is_right(c)) << sizes.rows << " rows, bits " << bits;
    }
  }
}

/// The two forms with matrices.
class MatrixKernels : public Kernels {};
INSTANTIATE_TEST_SUITE_P(All, MatrixKernels,
                         testing::Combine(testing::Values(Form::outer, Form::vecmat), testing::ValuesIn(kTypes)),
                         name_of_case);

TEST_P(MatrixKernels, AddedUpFirstForEveryExtent) {
  for (const std::int64_t a : {2, 3, 5, 8, 13, 17}) {
    for (const std::int64_t b : {2, 3, 4, 8, 15, 16, 17, 33, 64, 67, 81}) {
      Case c = plain();
      c.extent_a = a;
      c.extent_b = b;
      c.batch = 4;
      c.groups = true;
      c.mirrored = b % 2 == 0;
      c.y = a % 2 == 0 ? Layout::plain : Layout::transposed;
      EXPECT_TRUE(product_is_right(c)) << a << " x " << b;
    }
  }
}

TEST_P(Kernels, ProductWithRepeatedEntriesOfScale) {
  for (const bool wide : {false, true}) {
    Case c = plain();
    c.repeated = true;
    c.wide = wide;

    EXPECT_TRUE(product_is_right(c));
  }
}

TEST_P(Kernels, ProductOfNothing) {
  Case no_rows = plain();
  no_rows.rows = 0;
  no_rows.index1 = no_rows.index2 = true;
  EXPECT_TRUE(product_is_right(no_rows));

  Case no_terms = plain();
  no_terms.rows = 1;  // the first row of a case is empty
  EXPECT_TRUE(product_is_right(no_terms));
  no_terms.accumulate = true;
  EXPECT_TRUE(product_is_right(no_terms));
}

TEST_P(Kernels, ProductOfFractionsWithinAFewRoundings) {
  for (const bool accumulate : {false, true}) {
    Case c = plain();
    c.integers = false;
    c.groups = true;
    c.batch = 17;
    c.extent_a = 67;
    c.extent_b = 9;
    c.rows = 8;
    c.accumulate = accumulate;

    EXPECT_TRUE(product_is_right(c));
  }
}

TEST(KernelRounding, NarrowTypesAddInFloat) {
  for (const ScalarType type : {ScalarType::f16, ScalarType::bf16}) {
    for (const Level level : levels()) {
      for (const bool accumulate : {false, true}) {
        // 4,001 ones, rounded to 4,000 at the end: a sum kept in the type itself would stop at 2,048 or at 256.
        Array x(type, 4001);
        for (std::int64_t i = 0; i < 4001; ++i) {
          x.put(i, 1);
        }
        Array z(type, 1);
        const std::array<std::int32_t, 2> segments{0, 4001};
        ProductArgs args;
        args.type = type;
        args.pattern = Pattern::vecsca;
        args.x = {x.data(), accumulate ? 1 : 0, accumulate ? 0 : 1, 1, 0, accumulate ? 1 : 4001, false};
        args.z = {z.data(), 0, 1, 1, 0, 1, false};
        args.batch = accumulate ? 4001 : 1;
        args.accumulate = accumulate;
        args.terms.segments = accumulate ? nullptr : segments.data();
        args.terms.rows = 1;
        args.terms.terms = args.terms.entries = accumulate ? 1 : 4001;

        run_product(level, args, backwards_executor(2));

        EXPECT_EQ(z.get(0).real(), 4000) << name_of(level);
      }
    }
  }
}

/// A product of `batch` entries: 4 terms, 64 channels.
Problem sized(std::int64_t batch, ScalarType type = ScalarType::f32) {
  Case c;
  c.type = type;
  c.batch = batch;
  c.extent_a = 64;
  c.rows = 3;
  c.terms_per_row = 2;
  return Problem(c);
}

TEST(KernelThreads, LargeWorkIsDealtToAllThreadsAndSmallWorkToOne) {
  Array z;
  for (const int threads : {2, 4}) {
    const Problem large = sized(1000);
    run_product(Level::baseline, large.arguments(z), backwards_executor(threads));
    EXPECT_EQ(executor_state.ranges, std::vector<std::int64_t>{threads});

    const Problem small = sized(3);
    run_product(Level::baseline, small.arguments(z), backwards_executor(threads));
    EXPECT_TRUE(executor_state.ranges.empty());
  }
}

TEST(KernelThreads, TheGradientOfScaleIsDealtToo) {
  Array out;
  Problem large = sized(1000);

  run_scale_grad(Level::baseline, large.scale_grad_arguments(out), backwards_executor(2));

  EXPECT_EQ(executor_state.ranges, std::vector<std::int64_t>{2});
}

/// Each chunk on a thread of its own.
CpuExecutor spawning_executor() {
  return {[](std::int64_t begin, std::int64_t end, std::int64_t, CpuExecutor::Chunk chunk, void* context) {
            std::vector<std::thread> workers;
            for (std::int64_t i = begin; i < end; ++i) {
              workers.emplace_back([=] { chunk(context, i, i + 1); });
            }
            for (std::thread& worker : workers) {
              worker.join();
            }
          },
          [] { return 4; }};
}

TEST(KernelThreads, RealThreadsGiveTheSameBits) {
  for (const Form form : kForms) {
    for (const bool accumulate : {false, true}) {
      for (const ScalarType type : {ScalarType::f16, ScalarType::f32}) {
        Case c;
        c.form = form;
        c.type = type;
        c.batch = 100;
        c.extent_a = 33;
        c.extent_b = 5;
        c.rows = 12;
        c.integers = false;
        c.accumulate = accumulate;
        c.repeated = true;
        c.groups = true;
        Problem problem(c);
        for (const Level level : levels()) {
          Array alone, together, grad_alone, grad_together;

          run_product(level, problem.arguments(alone), backwards_executor(1));
          EXPECT_TRUE(run_product(level, problem.arguments(together), spawning_executor()));
          run_scale_grad(level, problem.scale_grad_arguments(grad_alone), backwards_executor(1));
          EXPECT_TRUE(run_scale_grad(level, problem.scale_grad_arguments(grad_together), spawning_executor()));

          EXPECT_TRUE(alone == together) << name_of(form) << " " << name_of(level);
          EXPECT_TRUE(grad_alone == grad_together) << name_of(form) << " " << name_of(level);
        }
      }
    }
  }
}

TEST(KernelWorkspace, NoneForContiguousOperandsOfTheAccumulateType) {
  Array z;
  for (const Form form : kForms) {
    for (const ScalarType type : {ScalarType::f32, ScalarType::f64, ScalarType::c64, ScalarType::c128}) {
      Case c;
      c.form = form;
      c.type = type;
      c.batch = 100;
      c.extent_a = 64;
      const Problem problem(c);

      EXPECT_EQ(cpu::product_workspace(problem.arguments(z), 4), 0) << name_of(form);
    }
  }
}

TEST(KernelWorkspace, TransposedMatricesAreReadInPlace) {
  Array z;
  Case c;
  c.form = Form::vecmat;
  c.y = Layout::transposed;
  c.extent_a = 16;
  c.extent_b = 8;

  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 4), 0);
}

TEST(KernelWorkspace, AddingUpFirstIsCountedForEachThread) {
  Array z;
  Case c;
  c.form = Form::outer;
  c.groups = true;
  c.batch = 4;
  c.extent_a = 9;
  c.extent_b = 16;
  // 64 vectors of the longer extent.
  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 3), 3 * 64 * 16 * 4);

  c.form = Form::vecmat;
  // 64 vectors of 9, and the sums of 6 rows of 16.
  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 3), 3 * (64 * 9 + 6 * 16) * 4);
}

TEST(KernelWorkspace, PartsOfNAreCountedOnceAndScratchForEachThread) {
  Array z;
  Case c;
  c.batch = 1000;
  c.extent_a = 64;
  c.rows = 4;
  c.accumulate = true;
  // 32 / 4 rows = 8 parts of 4 x 64 floats, and no scratch.
  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 1), 8 * 4 * 64 * 4);
  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 7), 8 * 4 * 64 * 4);

  // A strided operand needs a row of 64 for each thread as well.
  c.x = Layout::strided;
  EXPECT_EQ(cpu::product_workspace(Problem(c).arguments(z), 7), (8 * 4 * 64 + 7 * 64) * 4);
}

TEST(KernelSchedule, SharesOfTheRowsCoverEachRowOnce) {
  const std::array<std::int64_t, 8> segments{0, 0, 50, 50, 51, 52, 52, 60};
  Terms with;
  with.segments = segments.data();
  with.rows = 7;
  Terms without;
  without.rows = 7;
  for (const Terms& terms : {with, without}) {
    const TermsView<std::int64_t> view(terms);
    for (const std::int64_t shares : {1, 2, 3, 7, 64}) {
      EXPECT_EQ(cpu::row_boundary(view, 0, shares), 0);
      EXPECT_EQ(cpu::row_boundary(view, shares, shares), 7);
      for (std::int64_t share = 0; share < shares; ++share) {
        EXPECT_LE(cpu::row_boundary(view, share, shares), cpu::row_boundary(view, share + 1, shares));
      }
    }
  }
}

TEST(KernelSchedule, RowsAreSharedByTheirTerms) {
  // One row has 90 of 100 terms: half of the work ends with it.
  const std::array<std::int32_t, 12> segments{0, 1, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100};
  Terms terms;
  terms.segments = segments.data();
  terms.rows = 11;

  EXPECT_EQ(cpu::row_boundary(TermsView<std::int32_t>(terms), 1, 2), 2);
}

}  // namespace
}  // namespace lacewing::kernels::test
