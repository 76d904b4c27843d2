// Random calls of attention over edges on plain memory, for every backend of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/edge_attention.h"

namespace lacewing::kernels::test {

struct AttentionCase {
  std::vector<std::int64_t> lengths;  ///< edges of each row
  std::int64_t columns = 0;
  std::int64_t heads = 1;
  std::int64_t pair_channels = -1;
  std::int64_t channels = 1;
  bool numbers = false;  ///< factor and bias
  bool ordered = false;  ///< edges come in another order than the rows
  double dropout = 0;
  std::int64_t padding = 0;  ///< elements between rows of q, k and v

  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t edges() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
};

/// The results of a call, NaN where nothing was written.
template <typename T>
struct AttentionResults {
  std::vector<T> out, of_q, of_k, of_v, of_factor, of_bias;
  std::vector<accumulate_t<T>> lse;
};

template <typename T, typename Index>
class AttentionCall {
 public:
  using Acc = accumulate_t<T>;

  AttentionCall(const AttentionCase& given, ScalarType type, unsigned seed) : case_(given) {
    std::mt19937 random(seed);
    const std::int64_t edges = given.edges();
    std::vector<Index> places(static_cast<std::size_t>(edges));
    std::iota(places.begin(), places.end(), Index{0});
    if (given.ordered) {
      std::shuffle(places.begin(), places.end(), random);
    }
    row_.list.resize(places.size());
    column_.list.resize(places.size());
    std::size_t next = 0;
    for (std::size_t row = 0; row < given.lengths.size(); ++row) {
      for (std::int64_t k = 0; k < given.lengths[row]; ++k, ++next) {
        const auto edge = static_cast<std::size_t>(places[next]);
        row_.list[edge] = static_cast<Index>(row);
        // The first column has every third edge, so that its row is long where there are many.
        column_.list[edge] =
            static_cast<Index>(random() % 3 == 0 ? 0 : random() % static_cast<std::uint64_t>(given.columns));
      }
    }
    row_.sort(given.rows());
    column_.sort(given.columns);
    args_.type = type;
    args_.wide = sizeof(Index) == 8;
    args_.edges = edges;
    args_.heads = given.heads;
    args_.pair_channels = given.pair_channels;
    args_.channels = given.channels;
    args_.row = row_.side(given.rows());
    args_.column = column_.side(given.columns);
    args_.q = rows(q_, given.rows(), pair_width(), random);
    args_.k = rows(k_, given.columns, pair_width(), random);
    args_.v = rows(v_, given.columns, given.channels, random);
    grad_rows_ = rows(grad_, given.rows(), given.channels, random);
    if (given.numbers) {
      factor_ = values(edges * given.heads, random);
      bias_ = values(edges * given.heads, random);
      args_.factor = {factor_.data(), given.heads, 1};
      args_.bias = {bias_.data(), given.heads, 1};
    }
    args_.scale = 0.3;
    args_.slope = 0.2;
    if (given.dropout > 0) {
      args_.drop_below = static_cast<std::uint64_t>(std::ldexp(given.dropout, 32));
      args_.keep_scale = 1 / (1 - given.dropout);
      args_.seed = &seed_;
    }
    for (std::int64_t i = 0; i < given.rows() * given.heads; ++i) {
      delta_.push_back(static_cast<Acc>(static_cast<double>(random() % 1000) / 700));
    }
  }

  const EdgeAttentionArgs& args() const { return args_; }
  /// Row `row` with its edges, and no other row.
  AttentionCall alone(std::int64_t row) const {
    AttentionCall other(*this);
    const auto begin = row_.segments[static_cast<std::size_t>(row)];
    const auto end = row_.segments[static_cast<std::size_t>(row) + 1];
    other.case_.lengths = {end - begin};
    other.row_.list.assign(static_cast<std::size_t>(end - begin), Index{0});
    other.column_.list.clear();
    for (Index t = begin; t < end; ++t) {
      const auto edge = static_cast<std::size_t>(row_.order.empty() ? t : row_.order[static_cast<std::size_t>(t)]);
      other.column_.list.push_back(column_.list[edge]);
    }
    other.row_.sort(1);
    other.column_.sort(case_.columns);
    other.args_.edges = end - begin;
    other.args_.row = other.row_.side(1);
    other.args_.column = other.column_.side(case_.columns);
    other.args_.q.data = static_cast<const T*>(args_.q.data) + row * args_.q.stride;
    other.args_.k.data = other.k_.data();
    other.args_.v.data = other.v_.data();
    return other;
  }

  /// `forward` and `backward` take the structs of edge_attention.h; the latter has the lse of the former.
  template <typename Forward, typename Backward>
  AttentionResults<T> run(Forward&& forward, Backward&& backward) const {
    AttentionResults<T> results;
    const auto empty = [](auto& values, std::int64_t count) {
      using V = typename std::decay_t<decltype(values)>::value_type;
      values.assign(static_cast<std::size_t>(count), narrow<V>(static_cast<accumulate_t<V>>(NAN)));
      return values.data();
    };
    EdgeAttentionForward ahead{args_};
    ahead.out = empty(results.out, case_.rows() * case_.heads * case_.channels);
    ahead.lse = empty(results.lse, case_.rows() * case_.heads);
    forward(ahead);
    EdgeAttentionBackward back;
    back.of = args_;
    back.grad = grad_rows_;
    back.lse = ahead.lse;
    back.delta = delta_.data();
    back.of_q = empty(results.of_q, case_.rows() * case_.heads * pair_width());
    back.of_k = empty(results.of_k, case_.columns * case_.heads * pair_width());
    back.of_v = empty(results.of_v, case_.columns * case_.heads * case_.channels);
    if (case_.numbers) {
      back.of_factor = empty(results.of_factor, args_.edges * case_.heads);
      back.of_bias = empty(results.of_bias, args_.edges * case_.heads);
    }
    backward(back);
    return results;
  }
  AttentionResults<T> reference() const {
    return run([](const EdgeAttentionForward& args) { reference::edge_attention(args); },
               [](const EdgeAttentionBackward& args) { reference::edge_attention_backward(args); });
  }

 private:
  struct Side {
    std::vector<Index> list, segments, order;

    void sort(std::int64_t rows) {
      segments.assign(static_cast<std::size_t>(rows) + 1, Index{0});
      for (const Index row : list) {
        ++segments[static_cast<std::size_t>(row) + 1];
      }
      std::partial_sum(segments.begin(), segments.end(), segments.begin());
      order.clear();
      if (!std::is_sorted(list.begin(), list.end())) {
        order.resize(list.size());
        std::iota(order.begin(), order.end(), Index{0});
        std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
          return list[static_cast<std::size_t>(a)] < list[static_cast<std::size_t>(b)];
        });
      }
    }
    EdgeSide side(std::int64_t rows) const {
      return {list.data(), segments.data(), order.empty() ? nullptr : order.data(), rows};
    }
  };

  std::int64_t pair_width() const { return case_.pair_channels < 0 ? 1 : case_.pair_channels; }
  static std::vector<T> values(std::int64_t count, std::mt19937& random) {
    std::vector<T> all;
    for (std::int64_t i = 0; i < count; ++i) {
      all.push_back(narrow<T>(static_cast<Acc>(static_cast<double>(random() % 2001) / 1000 - 1)));
    }
    return all;
  }
  HeadRows rows(std::vector<T>& memory, std::int64_t count, std::int64_t channels, std::mt19937& random) const {
    const std::int64_t stride = case_.heads * channels + case_.padding;
    memory = values(count * stride, random);
    return {memory.data(), stride};
  }

  AttentionCase case_;
  Side row_, column_;
  std::vector<T> q_, k_, v_, grad_, factor_, bias_;
  std::vector<Acc> delta_;
  HeadRows grad_rows_;
  std::int64_t seed_ = 12345678901;
  EdgeAttentionArgs args_;
};

template <typename V>
void expect_near(const std::vector<V>& found, const std::vector<V>& expected, double tolerance, const char* what) {
  double largest = 1;
  const auto value = [](V v) { return static_cast<double>(widen(v)); };
  for (const V v : expected) {
    largest = std::isfinite(value(v)) ? std::max(largest, std::abs(value(v))) : largest;
  }
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(value(found[i]) == value(expected[i]) ||
                std::abs(value(found[i]) - value(expected[i])) <= tolerance * largest)
        << what << "[" << i << "] is " << value(found[i]) << ", not " << value(expected[i]);
  }
}

template <typename T>
void expect_near(const AttentionResults<T>& found, const AttentionResults<T>& expected, double tolerance) {
  expect_near(found.lse, expected.lse, tolerance, "lse");
  expect_near(found.out, expected.out, tolerance, "out");
  expect_near(found.of_q, expected.of_q, tolerance, "of_q");
  expect_near(found.of_k, expected.of_k, tolerance, "of_k");
  expect_near(found.of_v, expected.of_v, tolerance, "of_v");
  expect_near(found.of_factor, expected.of_factor, tolerance, "of_factor");
  expect_near(found.of_bias, expected.of_bias, tolerance, "of_bias");
}

/// Rows of no edge, of few, of as many as kernels take at a time and one more, of very many.
inline std::vector<AttentionCase> attention_cases() {
  const std::vector<std::int64_t> few{3, 0, 1, 4, 5, 0, 2, 64, 65, 7};
  const std::vector<std::int64_t> many{2, 700, 0, 511, 512, 1100, 9};
  return {
      {few, 9, 1, -1, 1, false, false, 0, 0},  {few, 9, 8, -1, 16, true, true, 0, 0},
      {few, 5, 3, 5, 7, true, true, 0.3, 2},   {few, 9, 8, 16, 16, false, false, 0.5, 0},
      {few, 9, 2, 64, 132, false, true, 0, 4}, {few, 9, 11, 3, 4, true, false, 0, 0},
      {many, 20, 1, 4, 4, true, true, 0.1, 0}, {many, 20, 5, -1, 3, false, false, 0, 1},
      {many, 20, 2, 8, 12, false, true, 0, 0}, {few, 9, 1, 150, 300, false, false, 0, 0},
      {few, 9, 2, 0, 3, true, false, 0, 0},    {{0, 0}, 2, 2, 3, 4, true, false, 0, 0},
  };
}

}  // namespace lacewing::kernels::test
