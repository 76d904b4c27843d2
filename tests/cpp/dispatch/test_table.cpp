// Tags and dispatch tables.
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <lacewing/dispatch/table.h>

namespace lacewing::dispatch {
namespace {

using CpuFloat = tag<Device::cpu, ScalarType::f32>;

static_assert(tag_match<CpuFloat>);
static_assert(tag_match<CpuFloat, Device::cpu>);
static_assert(tag_match<CpuFloat, ScalarType::f32, Device::cpu>);
static_assert(!tag_match<CpuFloat, Device::cuda>);
static_assert(!tag_match<CpuFloat, Device::cpu, ScalarType::f64>);
static_assert(!tag_match<tag<Device::cpu>, ScalarType::f32>, "a partial tag holds only what it names");
static_assert(!tag_match<int, Device::cpu>);
static_assert(!tag_match<tag<ScalarType::i32>, IndexType::i32>, "values of two types are never the same");
static_assert(CpuFloat::get<Device> == Device::cpu && CpuFloat::get<ScalarType> == ScalarType::f32);
static_assert(CpuFloat::has<Device> && !CpuFloat::has<IndexType>);
static_assert(std::is_same_v<product<axis<Device::cpu, Device::cuda>, axis<ScalarType::f32>>,
                             points<tag<Device::cpu, ScalarType::f32>, tag<Device::cuda, ScalarType::f32>>>);
static_assert(std::is_same_v<scalar_t<ScalarType::c128>, Complex<double>>);

struct BytesTimes {
  template <typename Tag>
  int operator()(Tag, int factor) const {
    return factor * static_cast<int>(sizeof(scalar_t<Tag::template get<ScalarType>>));
  }
};

using Covered = join<product<axis<Device::cpu>, axis<ScalarType::f32, ScalarType::f64>>,
                     points<tag<Device::cuda, ScalarType::f32>>>;
constexpr dispatch_table<int(int), Covered> table("demo", BytesTimes{});

// Would not compile for any other point: the table must instantiate no more than it covers.
struct OnlyFloat {
  template <typename Tag>
  int operator()(Tag) const {
    static_assert(tag_match<Tag, ScalarType::f32>);
    return 1;
  }
};
constexpr dispatch_table<int(), points<tag<Device::cpu, ScalarType::f32>>> narrow_table("only", OnlyFloat{});

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const UncoveredError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Table, SelectReturnsTheFunctionOfThePoint) {
  const auto kernel = table.select(Device::cpu, ScalarType::f64);

  EXPECT_EQ(kernel(1), 8);
  EXPECT_EQ(kernel(5), 40);
}

TEST(Table, ValuesMayComeInAnyOrder) {
  EXPECT_EQ(table.select(ScalarType::f32, Device::cuda), table.select(Device::cuda, ScalarType::f32));
}

TEST(Table, SelectsAtCompileTimeToo) {
  static_assert(table.covers(Device::cpu, ScalarType::f64));
  static_assert(!table.covers(Device::cuda, ScalarType::f64));
  constexpr auto kernel = table.select(Device::cpu, ScalarType::f32);

  EXPECT_EQ(kernel(1), 4);
  EXPECT_EQ(narrow_table.select(Device::cpu, ScalarType::f32)(), 1);
}

TEST(Table, AnUncoveredPointGivesOneSentence) {
  const auto message = message_of([] { table.select(Device::cuda, ScalarType::f64); });

  EXPECT_EQ(message,
            "[lacewing.demo] no kernel for device cuda, dtype float64; covered: cpu x {float32, float64}; cuda x "
            "float32");
}

TEST(Table, ACoveredProductIsWrittenAsSuch) {
  constexpr dispatch_table<int(int), product<axis<Device::cpu, Device::reference>, axis<ScalarType::f32>,
                                             axis<IndexType::i32, IndexType::i64>>>
      cube("demo", BytesTimes{});

  const auto message = message_of([&] { cube.select(Device::cuda, ScalarType::f32, IndexType::i64); });

  EXPECT_EQ(message,
            "[lacewing.demo] no kernel for device cuda, dtype float32, index dtype int64; covered: {cpu, reference} "
            "x float32 x {int32, int64}");
}

TEST(Table, AnEmptyTableCoversNothing) {
  constexpr dispatch_table<int(int), points<>> empty("demo", BytesTimes{});

  const auto message = message_of([&] { empty.select(Device::cpu, ScalarType::f16); });

  EXPECT_EQ(message, "[lacewing.demo] no kernel for device cpu, dtype float16; covered: none");
}

}  // namespace
}  // namespace lacewing::dispatch
