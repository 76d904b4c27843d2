// Attention over edges: a thread owns rows. Forward, a running softmax: each chunk of a row's edges may raise the
// largest logit, and then what was summed before decays. Backward, logits and weights are made again, once as the rows
// of q see the edges and once as those of k and v do. Compiled once for each ISA level.
#include "kernels/cpu/edge_attention_isa.h"

#include <cmath>

#include "common/deal.h"
#include "kernels/cpu/edge_walk.h"
#include "kernels/cpu/schedule.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {
namespace {

/// The largest of so many numbers; what fills the last vector must not be larger.
template <typename T>
LACEWING_INLINE T largest_of(const T* numbers, int count) {
  using Lane = Simd<T>;
  typename Lane::Vec largest = Lane::load(numbers);
  for (int k = Lane::lanes; k < count; k += Lane::lanes) {
    const auto next = Lane::load(numbers + k);
    largest = next > largest ? next : largest;
  }
  T found = largest[0];
  for (int k = 1; k < Lane::lanes; ++k) {
    found = largest[k] > found ? largest[k] : found;
  }
  return found;
}

/// Their sum; what fills the last vector must be 0.
template <typename T>
LACEWING_INLINE T sum_of(const T* numbers, int count) {
  using Lane = Simd<T>;
  typename Lane::Vec sum{};
  for (int k = 0; k < count; k += Lane::lanes) {
    sum += Lane::load(numbers + k);
  }
  return Lane::sum(sum);
}

/// exp(numbers - shift), the last vector's rest included.
template <typename T>
LACEWING_INLINE void exponents(T* numbers, T shift, int count) {
  using Lane = Simd<T>;
  for (int k = 0; k < count; k += Lane::lanes) {
    Lane::store(numbers + k, vector_exp<T>(Lane::load(numbers + k) - shift));
  }
}

template <typename T>
LACEWING_INLINE void leaky(T* numbers, T slope, int count) {
  for (int k = 0; k < count; ++k) {
    numbers[k] = numbers[k] > 0 ? numbers[k] : slope * numbers[k];
  }
}

template <typename T>
LACEWING_INLINE void multiply(T* numbers, const T* by, int count) {
  for (int k = 0; k < count; ++k) {
    numbers[k] *= by[k];
  }
}

template <typename T, typename Index>
struct Forward {
  const EdgeAttentionForward& args;
  EdgeWalk<T, Index> walk{args.of, /*by_row=*/true};

  void row(std::int64_t row) const {
    const EdgeAttentionArgs& of = args.of;
    T* const out = static_cast<T*>(args.out) + row * of.heads * of.channels;
    T* const lse = static_cast<T*>(args.lse) + row * of.heads;
    if (walk.begin(row) == walk.begin(row + 1)) {
      std::fill(out, out + of.heads * of.channels, T{0});
      std::fill(lse, lse + of.heads, walk.kNothing);
      return;
    }
    ChunkNumbers<T> pair, weight, keep;
    T largest[kHeadBlock], total[kHeadBlock], decay[kHeadBlock];
    const auto finish = [&](std::int64_t head, int h) {
      const T inverse = total[h] == 0 ? T{0} : 1 / total[h];
      for (std::int64_t c = 0; c < of.channels; ++c) {
        out[head * of.channels + c] *= inverse;
      }
      lse[head] = total[h] == 0 ? walk.kNothing : largest[h] + std::log(total[h]);
    };
    walk.each_chunk(row, of.v, of.channels, [&](const HeadBlock& heads, const Chunk& chunk) {
      walk.logits(row, heads, chunk, pair, weight);
      for (int h = 0; h < heads.count; ++h) {
        if (of.slope != 1) {
          leaky(weight.at[h], static_cast<T>(of.slope), chunk.count);
        }
        const T before = chunk.first ? walk.kNothing : largest[h];
        const T here = largest_of(weight.at[h], chunk.count);
        largest[h] = here > before ? here : before;
        const bool none = largest[h] == walk.kNothing;
        decay[h] = before == walk.kNothing ? T{0} : std::exp(before - largest[h]);
        exponents(weight.at[h], none ? T{0} : largest[h], chunk.count);
        total[h] = (chunk.first ? T{0} : total[h] * decay[h]) + sum_of(weight.at[h], chunk.count);
      }
      if (of.drop_below > 0) {
        walk.keep(heads, chunk, keep);
        for (int h = 0; h < heads.count; ++h) {
          multiply(weight.at[h], keep.at[h], chunk.count);
        }
      }
      walk.add_rows(of.v, of.channels, heads, chunk, weight, chunk.first ? nullptr : decay, out);
      for (int h = 0; chunk.last && h < heads.count; ++h) {
        finish(heads.first + h, h);
      }
    });
  }
};

/// One side's gradients. ByRow: of q, factor and bias; else of k and v.
template <typename T, typename Index, bool ByRow>
struct Backward {
  const EdgeAttentionBackward& args;
  EdgeWalk<T, Index> walk{args.of, ByRow};

  void* of_pairs() const { return ByRow ? args.of_q : args.of_k; }
  void* of_values() const { return ByRow ? nullptr : args.of_v; }
  bool wants_logits() const {
    return of_pairs() != nullptr || (ByRow && (args.of_factor != nullptr || args.of_bias != nullptr));
  }
  bool is_wanted() const { return wants_logits() || of_values() != nullptr; }

  void row(std::int64_t row) const {
    const EdgeAttentionArgs& of = args.of;
    const HeadRows& own = ByRow ? args.grad : of.v;
    const HeadRows& other = ByRow ? of.v : args.grad;
    const std::int64_t pair_channels = of.has_pair_channels() ? of.pair_channels : 1;
    T* const pairs = static_cast<T*>(of_pairs()) + (of_pairs() != nullptr ? row * of.heads * pair_channels : 0);
    T* const values = static_cast<T*>(of_values()) + (of_values() != nullptr ? row * of.heads * of.channels : 0);
    if (walk.begin(row) == walk.begin(row + 1)) {
      if (pairs != nullptr) {
        std::fill(pairs, pairs + of.heads * pair_channels, T{0});
      }
      if (values != nullptr) {
        std::fill(values, values + of.heads * of.channels, T{0});
      }
      return;
    }
    ChunkNumbers<T> pair, logit, weight, keep, of_weight;
    T one[kHeadBlock];
    std::fill(one, one + kHeadBlock, T{1});
    walk.each_chunk(row, other, of.channels, [&](const HeadBlock& heads, const Chunk& chunk) {
      walk.logits(row, heads, chunk, pair, logit);
      if (of.drop_below > 0) {
        walk.keep(heads, chunk, keep);
      }
      for (int h = 0; h < heads.count; ++h) {
        const std::int64_t head = heads.first + h;
        weights(row, head, chunk, logit.at[h], weight.at[h]);
        if (wants_logits()) {
          walk.dots(own, other, row, head, of.channels, T{1}, chunk, of_weight.at[h]);
          if (of.drop_below > 0) {
            multiply(of_weight.at[h], keep.at[h], chunk.count);
          }
          for (int k = 0; k < chunk.count; ++k) {
            const T slope = logit.at[h][k] > 0 ? T{1} : static_cast<T>(of.slope);
            of_weight.at[h][k] =
                weight.at[h][k] * (of_weight.at[h][k] - of_row<T>(args.delta, row, chunk, k, head)) * slope;
          }
          write_numbers(heads.first + h, chunk, pair.at[h], of_weight.at[h]);
          for (int k = 0; k < chunk.count && of.factor.data != nullptr; ++k) {
            of_weight.at[h][k] *= walk.factor(chunk, k, head);
          }
        }
        if (of.drop_below > 0) {
          multiply(weight.at[h], keep.at[h], chunk.count);
        }
      }
      if (values != nullptr) {
        walk.add_rows(other, of.channels, heads, chunk, weight, chunk.first ? nullptr : one, values);
      }
      if (pairs != nullptr) {
        add_pairs(heads, chunk, of_weight, chunk.first ? nullptr : one, pairs);
      }
    });
  }

 private:
  /// A number of the edge's row, of the upstream gradient's side.
  template <typename V>
  LACEWING_INLINE V of_row(const void* numbers, std::int64_t row, const Chunk& chunk, int k, std::int64_t head) const {
    return static_cast<const V*>(numbers)[(ByRow ? row : chunk.other[k]) * args.of.heads + head];
  }

  /// exp(leaky(logit) - lse); 0 where the logit is -inf.
  LACEWING_INLINE void weights(std::int64_t row, std::int64_t head, const Chunk& chunk, const T* logit,
                               T* weight) const {
    std::copy(logit, logit + chunk.count, weight);
    walk.fill_rest(chunk, walk.kNothing, weight);
    if (args.of.slope != 1) {
      leaky(weight, static_cast<T>(args.of.slope), chunk.count);
    }
    for (int k = 0; k < chunk.count; ++k) {
      weight[k] = weight[k] == walk.kNothing ? walk.kNothing : weight[k] - of_row<T>(args.lse, row, chunk, k, head);
    }
    exponents(weight, T{0}, chunk.count);
  }

  LACEWING_INLINE void write_numbers(std::int64_t head, const Chunk& chunk, const T* pair, const T* of_logit) const {
    if constexpr (ByRow) {
      for (int k = 0; k < chunk.count && args.of_factor != nullptr; ++k) {
        static_cast<T*>(args.of_factor)[chunk.edge[k] * args.of.heads + head] = of_logit[k] * pair[k];
      }
      for (int k = 0; k < chunk.count && args.of_bias != nullptr; ++k) {
        static_cast<T*>(args.of_bias)[chunk.edge[k] * args.of.heads + head] = of_logit[k];
      }
    }
  }

  LACEWING_INLINE void add_pairs(const HeadBlock& heads, const Chunk& chunk, ChunkNumbers<T>& of_pair, const T* decay,
                                 T* pairs) const {
    if (args.of.has_pair_channels()) {
      for (int h = 0; h < heads.count; ++h) {
        for (int k = 0; k < chunk.count; ++k) {
          of_pair.at[h][k] *= static_cast<T>(args.of.scale);
        }
      }
      return walk.add_rows(walk.other_pairs(), args.of.pair_channels, heads, chunk, of_pair, decay, pairs);
    }
    for (int h = 0; h < heads.count; ++h) {
      walk.fill_rest(chunk, T{0}, of_pair.at[h]);
      T& sum = pairs[heads.first + h];
      sum = (decay == nullptr ? T{0} : sum) + sum_of(of_pair.at[h], chunk.count);
    }
  }
};

/// Does all rows of a walk.
template <typename Work>
void each_row(const Work& work, const CpuExecutor& executor) {
  const auto& walk = work.walk;
  const std::int64_t shares = std::min(kTasks, std::max<std::int64_t>(walk.rows(), 1));
  const auto boundary = [&](std::int64_t share) {
    return share_boundary(walk.rows(), share, shares, [&](std::int64_t row) { return walk.begin(row); });
  };
  deal_tasks(executor, shares, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = boundary(begin), last = boundary(end); row < last; ++row) {
      work.row(row);
    }
  });
}

template <typename F>
void visit(const EdgeAttentionArgs& args, F&& f) {
  const auto by_width = [&](auto scalar) { args.wide ? f(scalar, std::int64_t{}) : f(scalar, std::int32_t{}); };
  args.type == ScalarType::f64 ? by_width(double{}) : by_width(float{});
}

}  // namespace

void edge_attention(const EdgeAttentionForward& args, const CpuExecutor& executor) {
  visit(args.of,
        [&](auto scalar, auto index) { each_row(Forward<decltype(scalar), decltype(index)>{args}, executor); });
}

void edge_attention_backward(const EdgeAttentionBackward& args, const CpuExecutor& executor) {
  visit(args.of, [&](auto scalar, auto index) {
    const auto with = [&](const auto& work) {
      if (work.is_wanted()) {
        each_row(work, executor);
      }
    };
    with(Backward<decltype(scalar), decltype(index), true>{args});
    with(Backward<decltype(scalar), decltype(index), false>{args});
  });
}

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
