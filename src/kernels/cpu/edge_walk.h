// Walks over the edges of a row, a chunk at a time: their logits, dots with gathered rows, and sums of such rows.
//
// Order of a row's sums: chunks of kChunk edges counted from the row's first one; inside a chunk edge after edge for
// rows, and lane by lane for single numbers.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/shares.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/source.h"
#include "kernels/cpu/vector_exp.h"
#include "kernels/edge_attention.h"
#include "kernels/edge_dropout.h"

namespace lacewing::kernels::cpu::LACEWING_ISA {

inline constexpr int kChunk = 64;     ///< edges at a time
inline constexpr int kHeadBlock = 8;  ///< heads at a time

/// Some edges of a row, and the row of the other side that each leads to.
struct Chunk {
  int count = 0;
  bool first = false;  ///< of the row's edges
  bool last = false;
  std::int64_t edge[kChunk];
  std::int64_t other[kChunk];
};

/// A number for each edge of a chunk and each head of a block. Whole vectors are read: the last one beyond the chunk's
/// end.
template <typename T>
struct alignas(kVectorBytes) ChunkNumbers {
  T at[kHeadBlock][kChunk];
};

struct HeadBlock {
  std::int64_t first = 0;
  int count = 0;
};

/// The edges as one of their sides sees them: `own` rows are walked over, those of the `other` side gathered.
template <typename T, typename Index>
class EdgeWalk {
 public:
  using Lane = Simd<T>;
  using Vec = typename Lane::Vec;
  static constexpr T kNothing = -std::numeric_limits<T>::infinity();

  EdgeWalk(const EdgeAttentionArgs& args, bool by_row)
      : args_(args),
        segments_(static_cast<const Index*>((by_row ? args.row : args.column).segments)),
        order_(static_cast<const Index*>((by_row ? args.row : args.column).order)),
        others_(static_cast<const Index*>((by_row ? args.column : args.row).list)),
        rows_((by_row ? args.row : args.column).rows),
        own_(by_row ? args.q : args.k),
        other_(by_row ? args.k : args.q) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t begin(std::int64_t row) const { return static_cast<std::int64_t>(segments_[row]); }
  const HeadRows& other_pairs() const { return other_; }

  /// Calls f(head block, chunk) for a row, of which `gathered` is read.
  template <typename F>
  LACEWING_INLINE void each_chunk(std::int64_t row, const HeadRows& gathered, std::int64_t channels, F&& f) const {
    const std::int64_t end = begin(row + 1);
    for (std::int64_t head = 0; head < args_.heads; head += kHeadBlock) {
      const HeadBlock heads{head, static_cast<int>(std::min<std::int64_t>(kHeadBlock, args_.heads - head))};
      for (std::int64_t from = begin(row); from < end; from += kChunk) {
        Chunk chunk;
        load(from, end, gathered, heads, channels, chunk);
        chunk.first = from == begin(row);
        chunk.last = from + kChunk >= end;
        f(heads, chunk);
      }
    }
  }

  /// pair, and the logit before leaky ReLU, which is -inf behind the chunk's end.
  LACEWING_INLINE void logits(std::int64_t row, const HeadBlock& heads, const Chunk& chunk, ChunkNumbers<T>& pair,
                              ChunkNumbers<T>& logit) const {
    for (int h = 0; h < heads.count; ++h) {
      const std::int64_t head = heads.first + h;
      if (args_.has_pair_channels()) {
        dots(own_, other_, row, head, args_.pair_channels, static_cast<T>(args_.scale), chunk, pair.at[h]);
      } else {
        const T own = *place(own_, row, head);
        const T* const from = static_cast<const T*>(other_.data) + head;
        for (int k = 0; k < chunk.count; ++k) {
          pair.at[h][k] = own + from[chunk.other[k] * other_.stride];
        }
      }
      for (int k = 0; k < chunk.count; ++k) {
        logit.at[h][k] = factor(chunk, k, head) * pair.at[h][k] + number(args_.bias, chunk.edge[k], head, T{0});
      }
      fill_rest(chunk, kNothing, logit.at[h]);
    }
  }
  /// The rest of a chunk's last vector.
  static LACEWING_INLINE void fill_rest(const Chunk& chunk, T value, T* numbers) {
    for (int k = chunk.count; k % Lane::lanes != 0; ++k) {
      numbers[k] = value;
    }
  }
  LACEWING_INLINE T factor(const Chunk& chunk, int k, std::int64_t head) const {
    return number(args_.factor, chunk.edge[k], head, T{1});
  }

  /// to[k] = scale * <own[row, head], other[chunk.other[k], head]>, and 0 behind the chunk's end.
  LACEWING_INLINE void dots(const HeadRows& own, const HeadRows& other, std::int64_t row, std::int64_t head,
                            std::int64_t channels, T scale, const Chunk& chunk, T* to) const {
    const T* const mine = place(own, row, head * channels);
    const T* const from = static_cast<const T*>(other.data) + head * channels;
    for (int first = 0; first < chunk.count; first += Lane::lanes) {
      Vec sums[Lane::lanes] = {};
      const int count = std::min(Lane::lanes, chunk.count - first);
      std::int64_t c = 0;
      for (; c + Lane::lanes <= channels; c += Lane::lanes) {
        add_products<true>(Lane::load(mine + c), from + c, other.stride, chunk.other + first, count, 0, sums);
      }
      if (c < channels) {
        const int rest = static_cast<int>(channels - c);
        add_products<false>(Lane::load_part(mine + c, rest), from + c, other.stride, chunk.other + first, count, rest,
                            sums);
      }
      Lane::store(to + first, scale * sum_each<T, Lane::lanes / 2>(sums));
    }
  }

  /// What dropout makes of each weight.
  LACEWING_INLINE void keep(const HeadBlock& heads, const Chunk& chunk, ChunkNumbers<T>& keep) const {
    const auto seed = static_cast<std::uint64_t>(*args_.seed);
    for (int k = 0; k < chunk.count; ++k) {
      for (int h = 0; h < heads.count; h += 4) {
        const Philox numbers = Philox::at(seed, static_cast<std::uint64_t>(chunk.edge[k]),
                                          static_cast<std::uint64_t>(heads.first + h) / 4);
        for (int word = 0; word < 4; ++word) {
          keep.at[h + word][k] = numbers.word[word] < args_.drop_below ? T{0} : static_cast<T>(args_.keep_scale);
        }
      }
    }
  }

  /// to[head, channel] = decay[head] * to[head, channel] + sum over the chunk of weight * from[other, head, channel];
  /// without decay what was there is not read. `to` is where the row's heads begin.
  LACEWING_INLINE void add_rows(const HeadRows& from, std::int64_t channels, const HeadBlock& heads, const Chunk& chunk,
                                const ChunkNumbers<T>& weight, const T* decay, T* to) const {
    if (channels % Lane::lanes == 0) {
      add_slots<true>(from, channels, heads, chunk, weight, decay, to);
    } else {
      add_slots<false>(from, channels, heads, chunk, weight, decay, to);
    }
  }

 private:
  /// Vectors of a row that are summed at a time: where each begins, its head in the block, its elements.
  static constexpr int kSlots = 8;
  struct Slots {
    std::int64_t offset[kSlots];
    int head[kSlots];
    int elements[kSlots];
  };

  static LACEWING_INLINE const T* place(const HeadRows& rows, std::int64_t row, std::int64_t element) {
    return static_cast<const T*>(rows.data) + row * rows.stride + element;
  }
  static LACEWING_INLINE T number(const EdgeNumbers& numbers, std::int64_t edge, std::int64_t head, T absent) {
    return numbers.data == nullptr
               ? absent
               : static_cast<const T*>(numbers.data)[edge * numbers.edge_stride + head * numbers.head_stride];
  }

  /// Asks for the rows that the next edges gather, those of the rows that follow among them.
  LACEWING_INLINE void load(std::int64_t from, std::int64_t end, const HeadRows& gathered, const HeadBlock& heads,
                            std::int64_t channels, Chunk& chunk) const {
    chunk.count = static_cast<int>(std::min<std::int64_t>(kChunk, end - from));
    const std::int64_t bytes = heads.count * channels * static_cast<std::int64_t>(sizeof(T));
    for (int k = 0; k < chunk.count; ++k) {
      chunk.edge[k] = edge(from + k);
      chunk.other[k] = static_cast<std::int64_t>(others_[chunk.edge[k]]);
      if (from + k + kAhead < args_.edges) {
        const auto next = static_cast<std::int64_t>(others_[edge(from + k + kAhead)]);
        const char* const line =
            static_cast<const char*>(static_cast<const void*>(place(gathered, next, heads.first * channels)));
        for (std::int64_t byte = 0; byte < bytes; byte += 64) {
          __builtin_prefetch(line + byte);
        }
      }
    }
  }
  LACEWING_INLINE std::int64_t edge(std::int64_t term) const {
    return order_ != nullptr ? static_cast<std::int64_t>(order_[term]) : term;
  }

  template <bool Whole>
  static LACEWING_INLINE void add_products(Vec mine, const T* from, std::int64_t stride, const std::int64_t* other,
                                           int count, int elements, Vec (&sums)[Lane::lanes]) {
    if (count == Lane::lanes) {
#pragma GCC unroll 16
      for (int k = 0; k < Lane::lanes; ++k) {
        sums[k] += mine * load_vec<Whole>(from + other[k] * stride, elements);
      }
    } else {
#pragma GCC unroll 16
      for (int k = 0; k < Lane::lanes; ++k) {
        if (k < count) {
          sums[k] += mine * load_vec<Whole>(from + other[k] * stride, elements);
        }
      }
    }
  }

  template <bool Whole>
  LACEWING_INLINE void add_slots(const HeadRows& from, std::int64_t channels, const HeadBlock& heads,
                                 const Chunk& chunk, const ChunkNumbers<T>& weight, const T* decay, T* to) const {
    const T* const rows = place(from, 0, heads.first * channels);
    T* const sums = to + heads.first * channels;
    Slots slots;
    int filled = 0;
    for (int h = 0; h < heads.count; ++h) {
      for (std::int64_t c = 0; c < channels; c += Lane::lanes) {
        slots.offset[filled] = h * channels + c;
        slots.head[filled] = h;
        slots.elements[filled] = static_cast<int>(std::min<std::int64_t>(Lane::lanes, channels - c));
        if (++filled == kSlots) {
          add_some<kSlots, Whole>(slots, 0, rows, from.stride, chunk, weight, decay, sums);
          filled = 0;
        }
      }
    }
    int done = 0;
    if (filled >= kSlots / 2) {
      add_some<kSlots / 2, Whole>(slots, 0, rows, from.stride, chunk, weight, decay, sums);
      done = kSlots / 2;
    }
    for (; done < filled; ++done) {
      add_some<1, Whole>(slots, done, rows, from.stride, chunk, weight, decay, sums);
    }
  }

  template <int Count, bool Whole>
  static LACEWING_INLINE void add_some(const Slots& slots, int first, const T* rows, std::int64_t stride,
                                       const Chunk& chunk, const ChunkNumbers<T>& weight, const T* decay, T* sums) {
    Vec acc[Count];
    for (int s = 0; s < Count; ++s) {
      const int slot = first + s;
      acc[s] = decay == nullptr
                   ? Vec{}
                   : decay[slots.head[slot]] * load_vec<Whole>(sums + slots.offset[slot], slots.elements[slot]);
    }
    for (int k = 0; k < chunk.count; ++k) {
      const T* const from = rows + chunk.other[k] * stride;
      for (int s = 0; s < Count; ++s) {
        const int slot = first + s;
        acc[s] += weight.at[slots.head[slot]][k] * load_vec<Whole>(from + slots.offset[slot], slots.elements[slot]);
      }
    }
    for (int s = 0; s < Count; ++s) {
      const int slot = first + s;
      store_vec<Whole>(sums + slots.offset[slot], acc[s], slots.elements[slot]);
    }
  }

  EdgeAttentionArgs args_;
  const Index* segments_;
  const Index* order_;
  const Index* others_;
  std::int64_t rows_;
  HeadRows own_, other_;
};

}  // namespace lacewing::kernels::cpu::LACEWING_ISA
