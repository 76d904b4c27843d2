// The oracle of attention over edges: serial, one row and head at a time, straight from the formulas.
#include "kernels/edge_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/edge_dropout.h"
#include "kernels/terms.h"

namespace lacewing::kernels::reference {
namespace {

template <typename T, typename Index>
struct Attention {
  using Acc = accumulate_t<T>;
  const EdgeAttentionArgs& args;

  std::int64_t row(std::int64_t edge) const { return static_cast<const Index*>(args.row.list)[edge]; }
  std::int64_t column(std::int64_t edge) const { return static_cast<const Index*>(args.column.list)[edge]; }

  static Acc at(const HeadRows& rows, std::int64_t row, std::int64_t element) {
    return widen(static_cast<const T*>(rows.data)[row * rows.stride + element]);
  }
  static Acc at(const EdgeNumbers& numbers, std::int64_t edge, std::int64_t head, Acc absent) {
    return numbers.data == nullptr
               ? absent
               : widen(static_cast<const T*>(numbers.data)[edge * numbers.edge_stride + head * numbers.head_stride]);
  }

  Acc pair(std::int64_t edge, std::int64_t head) const {
    const std::int64_t channels = args.pair_channels;
    if (!args.has_pair_channels()) {
      return at(args.q, row(edge), head) + at(args.k, column(edge), head);
    }
    Acc sum{};
    for (std::int64_t c = head * channels; c < (head + 1) * channels; ++c) {
      sum += at(args.q, row(edge), c) * at(args.k, column(edge), c);
    }
    return static_cast<Acc>(args.scale) * sum;
  }
  Acc factor(std::int64_t edge, std::int64_t head) const { return at(args.factor, edge, head, Acc{1}); }
  /// The logit before leaky ReLU.
  Acc linear(std::int64_t edge, std::int64_t head) const {
    return factor(edge, head) * pair(edge, head) + at(args.bias, edge, head, Acc{0});
  }
  Acc slope(Acc linear) const { return linear > 0 ? Acc{1} : static_cast<Acc>(args.slope); }
  Acc logit(std::int64_t edge, std::int64_t head) const {
    const Acc x = linear(edge, head);
    return x > 0 ? x : static_cast<Acc>(args.slope) * x;
  }
  Acc keep(std::int64_t edge, std::int64_t head) const {
    if (args.drop_below == 0) {
      return Acc{1};
    }
    const bool dropped = edge_random(static_cast<std::uint64_t>(*args.seed), edge, head) < args.drop_below;
    return dropped ? Acc{0} : static_cast<Acc>(args.keep_scale);
  }

  /// The edges of a row.
  std::vector<std::int64_t> edges_of(std::int64_t row) const {
    const auto* const segments = static_cast<const Index*>(args.row.segments);
    const auto* const order = static_cast<const Index*>(args.row.order);
    std::vector<std::int64_t> edges;
    for (std::int64_t t = segments[row]; t < segments[row + 1]; ++t) {
      edges.push_back(order == nullptr ? t : static_cast<std::int64_t>(order[t]));
    }
    return edges;
  }

  void forward(const EdgeAttentionForward& to) const {
    const std::int64_t channels = args.channels;
    for (std::int64_t i = 0; i < args.row.rows; ++i) {
      const std::vector<std::int64_t> edges = edges_of(i);
      for (std::int64_t h = 0; h < args.heads; ++h) {
        Acc largest = -std::numeric_limits<Acc>::infinity();
        for (const std::int64_t e : edges) {
          largest = std::max(largest, logit(e, h));
        }
        const bool none = largest == -std::numeric_limits<Acc>::infinity();
        Acc total{};
        std::vector<Acc> sums(static_cast<std::size_t>(channels), Acc{});
        for (const std::int64_t e : edges) {
          const Acc l = logit(e, h);
          const Acc weight = std::exp(none && l == largest ? l : l - largest);
          total += weight;
          for (std::int64_t c = 0; c < channels; ++c) {
            sums[static_cast<std::size_t>(c)] += keep(e, h) * weight * at(args.v, column(e), h * channels + c);
          }
        }
        const Acc inverse = total == 0 ? Acc{0} : 1 / total;
        static_cast<Acc*>(to.lse)[i * args.heads + h] = total == 0 ? largest : largest + std::log(total);
        for (std::int64_t c = 0; c < channels; ++c) {
          static_cast<T*>(to.out)[(i * args.heads + h) * channels + c] =
              narrow<T>(sums[static_cast<std::size_t>(c)] * inverse);
        }
      }
    }
  }

  void backward(const EdgeAttentionBackward& to) const {
    const std::int64_t per_head = args.has_pair_channels() ? args.pair_channels : 1;
    std::vector<Acc> of_q(static_cast<std::size_t>(args.row.rows * args.heads * per_head), Acc{});
    std::vector<Acc> of_k(static_cast<std::size_t>(args.column.rows * args.heads * per_head), Acc{});
    std::vector<Acc> of_v(static_cast<std::size_t>(args.column.rows * args.heads * args.channels), Acc{});
    for (std::int64_t e = 0; e < args.edges; ++e) {
      const std::int64_t i = row(e);
      const std::int64_t j = column(e);
      for (std::int64_t h = 0; h < args.heads; ++h) {
        const Acc lse = static_cast<const Acc*>(to.lse)[i * args.heads + h];
        const Acc l = logit(e, h);
        const Acc weight = l == -std::numeric_limits<Acc>::infinity() ? Acc{0} : std::exp(l - lse);
        Acc of_weight{};
        for (std::int64_t c = h * args.channels; c < (h + 1) * args.channels; ++c) {
          of_weight += at(to.grad, i, c) * at(args.v, j, c);
          of_v[static_cast<std::size_t>(j * args.heads * args.channels + c)] += keep(e, h) * weight * at(to.grad, i, c);
        }
        const Acc delta = static_cast<const Acc*>(to.delta)[i * args.heads + h];
        const Acc of_linear = weight * (keep(e, h) * of_weight - delta) * slope(linear(e, h));
        const Acc of_pair = of_linear * factor(e, h);
        for (std::int64_t c = h * per_head; c < (h + 1) * per_head; ++c) {
          const bool dot = args.has_pair_channels();
          const Acc scale = static_cast<Acc>(args.scale);
          of_q[static_cast<std::size_t>(i * args.heads * per_head + c)] +=
              of_pair * (dot ? scale * at(args.k, j, c) : 1);
          of_k[static_cast<std::size_t>(j * args.heads * per_head + c)] +=
              of_pair * (dot ? scale * at(args.q, i, c) : 1);
        }
        put(to.of_factor, e * args.heads + h, of_linear * pair(e, h));
        put(to.of_bias, e * args.heads + h, of_linear);
      }
    }
    put_all(to.of_q, of_q);
    put_all(to.of_k, of_k);
    put_all(to.of_v, of_v);
  }

  static void put(void* to, std::int64_t place, Acc value) {
    if (to != nullptr) {
      static_cast<T*>(to)[place] = narrow<T>(value);
    }
  }
  static void put_all(void* to, const std::vector<Acc>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      put(to, static_cast<std::int64_t>(i), values[i]);
    }
  }
};

template <typename F>
void visit_floats(ScalarType type, bool wide, F&& f) {
  visit_types(type, wide, [&](auto scalar, auto index) {
    if constexpr (!is_complex_v<decltype(scalar)>) {
      f(scalar, index);
    }
  });
}

template <typename F>
void visit(const EdgeAttentionArgs& args, F&& f) {
  visit_floats(args.type, args.wide,
               [&](auto scalar, auto index) { f(Attention<decltype(scalar), decltype(index)>{args}); });
}

}  // namespace

void edge_dropout(const EdgeDropout& args, void* out) {
  visit_floats(args.type, /*wide=*/true, [&](auto scalar, auto) {
    using T = decltype(scalar);
    auto* to = static_cast<T*>(out);
    for (std::int64_t e = 0; e < args.edges; ++e) {
      for (std::int64_t h = 0; h < args.heads; ++h) {
        const bool dropped = edge_random(static_cast<std::uint64_t>(*args.seed), e, h) < args.drop_below;
        *to++ = narrow<T>(dropped ? 0 : static_cast<accumulate_t<T>>(args.keep_scale));
      }
    }
  });
}

void edge_attention(const EdgeAttentionForward& args) {
  visit(args.of, [&](const auto& attention) { attention.forward(args); });
}

void edge_attention_backward(const EdgeAttentionBackward& args) {
  visit(args.of, [&](const auto& attention) { attention.backward(args); });
}

}  // namespace lacewing::kernels::reference
