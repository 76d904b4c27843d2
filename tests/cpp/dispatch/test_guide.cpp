// The snippet of docs/dispatch.md compiles, works, and is the one that the guide shows.
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "guide_snippet.h"

namespace {

/// The file without white space: formatters may break lines differently in the two places.
std::string text_of(const std::string& path) {
  std::ifstream file(std::string(LACEWING_SOURCE_DIR) + "/" + path);
  std::string text;
  for (char c; file >> c;) {
    text += c;
  }
  return text;
}

TEST(Guide, ShowsThisSnippet) {
  const auto snippet = text_of("tests/cpp/dispatch/guide_snippet.h");

  ASSERT_FALSE(snippet.empty());
  EXPECT_NE(text_of("docs/dispatch.md").find("```cpp" + snippet + "```"), std::string::npos);
}

TEST(Guide, ScalesRowsByTheirNumber) {
  std::vector<float> matrix{1, 2, 3, 4, 5, 6};

  guide::scale_all(lacewing::serial_executor(), lacewing::ScalarType::f32, {matrix.data()}, 3, 2);

  EXPECT_EQ(matrix, (std::vector<float>{0, 0, 3, 4, 10, 12}));
}

TEST(Guide, AddsAlongPairs) {
  const std::vector<float> src{1, 2, 3, 4};
  std::vector<float> dst(6, 0);

  guide::add_pairs(lacewing::serial_executor(), src, dst, {0, 2, 1, 0}, 2);

  EXPECT_EQ(dst, (std::vector<float>{3, 4, 0, 0, 1, 2}));
}

}  // namespace
