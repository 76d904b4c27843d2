// Walks of groups of lanes over the edges of a row, four at a time, for one head: logits, dots with gathered rows, sums
// of such rows.
//
// Order of a row's sums: in each piece (row_pieces.h) edge after edge for rows, four by four for single numbers; a lane
// of a dot adds its channels in order, lanes are added by a tree. Chunks of a long row are added in the wider type, 32
// sums of every 32nd chunk and a tree over them.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cuda/device/lanes.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/row_pieces.h"
#include "kernels/edge_attention.h"
#include "kernels/edge_dropout.h"
#include "kernels/terms.h"
#include "kernels/wider.h"

namespace lacewing::kernels::cuda {

inline constexpr int kWays = 4;
inline constexpr int kMostTeamLaneBits = 5;

/// The lanes that own a row, or a chunk of it, with one head.
struct Team {
  int lane;
  int lanes;
  unsigned together;

  __device__ static Team of(int bits) {
    const int lanes = 1 << bits;
    return {static_cast<int>(threadIdx.x) & (lanes - 1), lanes, group_mask(bits)};
  }
};

/// What a team does: a piece, a head, and a block of channels.
struct TeamItem {
  RowPiece piece;
  std::int64_t number = 0;  ///< of the piece
  std::int64_t head = 0;
  std::int64_t block = 0;
};

/// Four edges of a piece, or as many as there are left, and the rows of the other side that they lead to.
struct FourEdges {
  int count;
  std::int64_t edge[kWays];
  std::int64_t other[kWays];
};

template <typename T>
struct TeamRows {
  const T* data;
  std::int64_t stride;

  explicit TeamRows(const HeadRows& rows) : data(static_cast<const T*>(rows.data)), stride(rows.stride) {}
  __device__ const T* at(std::int64_t row, std::int64_t element) const { return data + row * stride + element; }
};

/// The edges as one of their sides sees them: `own` rows are walked over, those of the `other` side gathered.
template <typename T, typename Index>
struct EdgeWalk {
  using Acc = accumulate_t<T>;

  RowPieces<Index> cut;
  const Index* order;
  const Index* others;
  TeamRows<T> own, other;  ///< q and k, or k and q
  EdgeNumbers factor, bias;
  std::int64_t heads, pair_channels;
  Acc scale, slope, keep_scale;
  std::uint64_t drop_below;
  const std::int64_t* seed;
  int lane_bits;
  std::int64_t block_channels, channel_blocks;

  EdgeWalk(const EdgeAttentionArgs& args, bool by_row, int bits, std::int64_t channels_of_block, std::int64_t blocks)
      : cut{static_cast<const Index*>((by_row ? args.row : args.column).segments),
            (by_row ? args.row : args.column).rows, args.edges, spans_of(args.edges)},
        order(static_cast<const Index*>((by_row ? args.row : args.column).order)),
        others(static_cast<const Index*>((by_row ? args.column : args.row).list)),
        own(by_row ? args.q : args.k),
        other(by_row ? args.k : args.q),
        factor(args.factor),
        bias(args.bias),
        heads(args.heads),
        pair_channels(args.pair_channels),
        scale(static_cast<Acc>(args.scale)),
        slope(static_cast<Acc>(args.slope)),
        keep_scale(static_cast<Acc>(args.keep_scale)),
        drop_below(args.drop_below),
        seed(args.seed),
        lane_bits(bits),
        block_channels(channels_of_block),
        channel_blocks(blocks) {}

  /// Calls f(item) for each item of this team; heads are innermost, blocks of channels outermost.
  template <typename F>
  __device__ __forceinline__ void each_item(F&& f) const {
    const std::int64_t teams = kRowThreads >> lane_bits;
    const std::int64_t in_block = cut.count() * heads;
    const std::int64_t items = in_block * channel_blocks;
    for (std::int64_t at = blockIdx.x * teams + (threadIdx.x >> lane_bits); at < items; at += gridDim.x * teams) {
      TeamItem item;
      item.block = channel_blocks == 1 ? 0 : at / in_block;
      const std::int64_t inside = at - item.block * in_block;
      item.number = inside / heads;
      item.head = inside - item.number * heads;
      item.piece = cut.piece(item.number);
      if (item.piece.row >= 0) {
        f(item);
      }
    }
  }
  __device__ bool is_chunk(const TeamItem& item) const { return item.number < cut.spans; }

  __device__ __forceinline__ FourEdges edges_at(std::int64_t term, std::int64_t end) const {
    FourEdges four;
    four.count = end - term < kWays ? static_cast<int>(end - term) : kWays;
#pragma unroll
    for (int k = 0; k < kWays; ++k) {
      const std::int64_t t = k < four.count ? term + k : term;
      four.edge[k] = order != nullptr ? order[t] : t;
    }
#pragma unroll
    for (int k = 0; k < kWays; ++k) {
      four.other[k] = others[four.edge[k]];
    }
    return four;
  }

  static __device__ Acc number(const EdgeNumbers& numbers, std::int64_t edge, std::int64_t head, Acc absent) {
    return numbers.data == nullptr
               ? absent
               : widen(static_cast<const T*>(numbers.data)[edge * numbers.edge_stride + head * numbers.head_stride]);
  }

  /// pair, and the logit before leaky ReLU.
  template <int Width>
  __device__ __forceinline__ void logits(const Team& team, const TeamItem& item, const FourEdges& four,
                                         Acc (&pair)[kWays], Acc (&linear)[kWays]) const {
    if (pair_channels >= 0) {
      dots<Width>(team, own.at(item.piece.row, item.head * pair_channels), other, item.head, pair_channels, four, pair);
    } else {
      const Acc mine = widen(*own.at(item.piece.row, item.head));
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        pair[k] = mine + widen(*other.at(four.other[k], item.head));
      }
    }
#pragma unroll
    for (int k = 0; k < kWays; ++k) {
      pair[k] = pair_channels >= 0 ? scale * pair[k] : pair[k];
      linear[k] =
          number(factor, four.edge[k], item.head, Acc{1}) * pair[k] + number(bias, four.edge[k], item.head, Acc{0});
    }
  }
  __device__ Acc leaky(Acc linear) const { return linear > 0 ? linear : slope * linear; }

  /// <mine, rows[other, head]> of four edges, in every lane.
  template <int Width>
  static __device__ __forceinline__ void dots(const Team& team, const T* mine, const TeamRows<T>& rows,
                                              std::int64_t head, std::int64_t channels, const FourEdges& four,
                                              Acc (&to)[kWays]) {
    Acc sums[kWays] = {};
    for (std::int64_t c = team.lane * Width; c < channels; c += team.lanes * Width) {
      const Pack<T, Width> left = load<Width>(mine + c);
      Pack<T, Width> right[kWays];
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        right[k] = load<Width>(rows.at(four.other[k], head * channels + c));
      }
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
#pragma unroll
        for (int i = 0; i < Width; ++i) {
          sums[k] += widen(left.at[i]) * widen(right[k].at[i]);
        }
      }
    }
    if (team.lanes >= kWays) {
      const Acc made = sum_of_each(sums, team.lanes, team.together);
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        to[k] = from_lane(made, k, team.lanes, team.together);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        to[k] = sum_lanes(sums[k], team.lanes, team.together);
      }
    }
  }

  /// What dropout makes of each weight, in every lane; lanes draw for one edge each.
  __device__ __forceinline__ void keep(const Team& team, const TeamItem& item, const FourEdges& four,
                                       Acc (&to)[kWays]) const {
    const auto drawn = [&](std::int64_t edge) {
      return edge_random(static_cast<std::uint64_t>(*seed), edge, item.head) < drop_below ? Acc{0} : keep_scale;
    };
    if (team.lanes >= kWays) {
      const int mine = team.lane & (kWays - 1);
      const std::int64_t edge = mine == 0   ? four.edge[0]
                                : mine == 1 ? four.edge[1]
                                : mine == 2 ? four.edge[2]
                                            : four.edge[3];
      const Acc own_number = drawn(edge);
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        to[k] = from_lane(own_number, k, team.lanes, team.together);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        to[k] = drawn(four.edge[k]);
      }
    }
  }
};

/// The sums of a team over its block of channels of one head: Packs vectors a lane, as many channels apart as all lanes
/// take at a time.
template <int Width, int Packs, typename T>
struct TeamSums {
  Sums<T, Width> pack[Packs];

  static __device__ std::int64_t channel(const Team& team, std::int64_t first, int p) {
    return first + static_cast<std::int64_t>(p * team.lanes + team.lane) * Width;
  }

  __device__ __forceinline__ void multiply(accumulate_t<T> by) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        pack[p].at[i] *= by;
      }
    }
  }

  /// Of the rows that four edges lead to; `first` is the block's first channel.
  __device__ __forceinline__ void add(const Team& team, const TeamRows<T>& rows, std::int64_t head,
                                      std::int64_t channels, std::int64_t first, const FourEdges& four,
                                      const accumulate_t<T> (&weight)[kWays]) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t c = channel(team, first, p);
      if (c >= channels) {
        continue;
      }
      Pack<T, Width> row[kWays];
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        row[k] = k < four.count ? load<Width>(rows.at(four.other[k], head * channels + c)) : Pack<T, Width>{};
      }
#pragma unroll
      for (int k = 0; k < kWays; ++k) {
        pack[p].add(weight[k], row[k], /*conjugate=*/false);
      }
    }
  }

  /// Where a row's, or a chunk's, head begins.
  __device__ __forceinline__ void write(const Team& team, std::int64_t channels, std::int64_t first, T* to) const {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      if (const std::int64_t c = channel(team, first, p); c < channels) {
        Pack<T, Width> out;
#pragma unroll
        for (int i = 0; i < Width; ++i) {
          out.at[i] = narrow<T>(pack[p].at[i]);
        }
        store_once(to + c, out);
      }
    }
  }
  __device__ __forceinline__ void write_part(const Team& team, std::int64_t channels, std::int64_t first,
                                             accumulate_t<T>* to) const {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      if (const std::int64_t c = channel(team, first, p); c < channels) {
#pragma unroll
        for (int i = 0; i < Width; ++i) {
          to[c + i] = pack[p].at[i];
        }
      }
    }
  }
};

/// How many lanes a team has, and the vectors of a lane. No choice depends on the rows.
struct TeamChoice {
  int lane_bits = 0;
  int packs = 1;
  std::int64_t block_channels = 0;
  std::int64_t channel_blocks = 1;
};

/// Vectors of a lane where a team has more than one for each: what registers allow.
template <int Width, typename T>
inline constexpr int kTeamPacks = Width * sizeof(accumulate_t<T>) > 16 ? 2 : 4;

template <int Width, typename T>
TeamChoice choose_team(const EdgeAttentionArgs& args) {
  const std::int64_t widest = args.channels > args.pair_channels ? args.channels : args.pair_channels;
  const std::int64_t vectors = (widest + Width - 1) / Width;
  TeamChoice choice;
  choice.lane_bits = bits_for(vectors, kMostTeamLaneBits);
  const std::int64_t lanes = std::int64_t{1} << choice.lane_bits;
  choice.packs = vectors <= lanes ? 1 : kTeamPacks<Width, T>;
  choice.block_channels = lanes * choice.packs * Width;
  choice.channel_blocks = vectors <= lanes ? 1 : (widest + choice.block_channels - 1) / choice.block_channels;
  return choice;
}

/// Whether rows of q, k, v and the like can be read as vectors.
template <typename T>
bool reads_vectors(const EdgeAttentionArgs& args) {
  const auto fits = [](const HeadRows& rows, std::int64_t channels) {
    return is_aligned<T>(rows.data, 0, rows.stride, channels);
  };
  const bool pairs =
      !args.has_pair_channels() || (fits(args.q, args.pair_channels) && fits(args.k, args.pair_channels));
  return pairs && fits(args.v, args.channels);
}

/// Calls f(T{}, Index{}) for floats.
template <typename F>
void visit_floats(const EdgeAttentionArgs& args, F&& f) {
  visit_types(args.type, args.wide, [&](auto scalar, auto index) {
    if constexpr (!is_complex_v<decltype(scalar)>) {
      f(scalar, index);
    }
  });
}

/// Calls f(constant width, constant packs, choice).
template <typename T, typename F>
void visit_team(const EdgeAttentionArgs& args, bool vectors, F&& f) {
  const auto with = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const TeamChoice choice = choose_team<kWidth, T>(args);
    if (choice.packs == 1) {
      f(width, std::integral_constant<int, 1>{}, choice);
    } else {
      f(width, std::integral_constant<int, kTeamPacks<kWidth, T>>{}, choice);
    }
  };
  vectors ? with(std::integral_constant<int, kVectorWidth<T>>{}) : with(std::integral_constant<int, 1>{});
}

inline std::int64_t team_blocks(const EdgeAttentionArgs& args, std::int64_t rows, const TeamChoice& choice) {
  return blocks_for((spans_of(args.edges) + rows) * args.heads * choice.channel_blocks,
                    kRowThreads >> choice.lane_bits);
}

}  // namespace lacewing::kernels::cuda
