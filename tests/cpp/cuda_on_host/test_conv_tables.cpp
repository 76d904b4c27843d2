// The tables and chunks that the tensor-core kernels of convolution read, made by their kernels on the host.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/conv_choose.h"
#include "kernels/cuda/conv_chunks.h"
#include "kernels/cuda/conv_tables.h"

namespace lacewing::kernels::cuda {
namespace {

/// A map with random pairs; of the last target and of every tenth there is none.
class RandomMap {
 public:
  RandomMap(std::int64_t rows, std::int64_t taps, unsigned seed) : sources_(static_cast<std::size_t>(taps)) {
    std::mt19937 random(seed);
    for (auto& of_tap : sources_) {
      const unsigned share = 1 + random() % 8;
      for (std::int64_t row = 0; row < rows; ++row) {
        const bool paired = row % 10 != 9 && row + 1 < rows && random() % 8 < share;
        of_tap.push_back(paired ? static_cast<std::int32_t>(random() % 1000) : -1);
        if (paired) {
          source_.push_back(of_tap.back());
          target_.push_back(static_cast<std::int32_t>(row));
        }
      }
      offsets_.push_back(static_cast<std::int64_t>(source_.size()));
    }
    map.source_rows = 1000;
    map.target_rows = rows;
    map.taps = taps;
    map.tap_offsets = offsets_.data();
    map.source = source_.data();
    map.target = target_.data();
  }

  std::int32_t source(std::int64_t tap, std::int64_t row) const {
    return sources_[static_cast<std::size_t>(tap)][static_cast<std::size_t>(row)];
  }

  ConvMap map;

 private:
  std::vector<std::vector<std::int32_t>> sources_;
  std::vector<std::int64_t> offsets_{0};
  std::vector<std::int32_t> source_, target_;
};

/// Tables in memory that held something else before.
class MadeTables {
 public:
  MadeTables(const ConvMap& map, int parts)
      : layout({map.target_rows, map.taps, parts}),
        memory_(static_cast<std::size_t>(layout.bytes) / sizeof(TileTaps) + 1, {0x55, {0x55, 0x55, 0x55}}) {
    std::vector<TileTaps> workspace(
        static_cast<std::size_t>(conv_tables_workspace(layout.sizes)) / sizeof(TileTaps) + 1, {-1, {7, 7, 7}});
    make_conv_tables(map, layout.sizes, memory_.data(), {}, workspace.data());
  }

  std::int32_t row_at(int part, std::int64_t place) { return layout.parts[part].rows.at(memory_.data())[place]; }
  std::int32_t source_at(std::int64_t tap, std::int64_t place) {
    return layout.sources.at(memory_.data())[tap * layout.padded_rows + place];
  }
  bool begun(int part, std::int64_t place) {
    return (layout.parts[part].begun.at(memory_.data())[place / kConvSetRows] >> place % kConvSetRows & 1u) != 0;
  }
  const TileTaps* tiles(int part, ConvTile tile) { return layout.tiles_at(memory_.data(), part, tile); }

  ConvTables layout;

 private:
  std::vector<TileTaps> memory_;
};

struct Case {
  std::int64_t rows;
  std::int64_t taps;
  int parts;
};

class ConvTablesOf : public testing::TestWithParam<Case> {
 protected:
  RandomMap map{GetParam().rows, GetParam().taps, 7};
  MadeTables tables{map.map, GetParam().parts};

  /// The taps of a part that have a source for a row.
  std::set<std::int64_t> taps_of(int part, std::int64_t row) const {
    const ConvTables::Part& chosen = tables.layout.parts[part];
    std::set<std::int64_t> taps;
    for (std::int64_t tap = chosen.first_tap; tap < chosen.first_tap + chosen.taps; ++tap) {
      if (row >= 0 && map.source(tap, row) >= 0) {
        taps.insert(tap);
      }
    }
    return taps;
  }
};

TEST_P(ConvTablesOf, EveryPartHoldsEveryRowOnceAndItsTapsOnce) {
  std::int64_t next_tap = 0;
  for (int part = 0; part < GetParam().parts; ++part) {
    EXPECT_EQ(tables.layout.parts[part].first_tap, next_tap);
    next_tap += tables.layout.parts[part].taps;

    std::set<std::int64_t> rows;
    for (std::int64_t place = 0; place < tables.layout.padded_rows; ++place) {
      const std::int32_t row = tables.row_at(part, place);
      EXPECT_EQ(row < 0, place >= GetParam().rows);
      EXPECT_TRUE(row < 0 || rows.insert(row).second);
    }
  }
  EXPECT_EQ(next_tap, GetParam().taps);
}

TEST_P(ConvTablesOf, SourcesAreThoseOfTheMap) {
  for (int part = 0; part < GetParam().parts; ++part) {
    const ConvTables::Part& chosen = tables.layout.parts[part];
    for (std::int64_t tap = chosen.first_tap; tap < chosen.first_tap + chosen.taps; ++tap) {
      for (std::int64_t place = 0; place < tables.layout.padded_rows; ++place) {
        const std::int32_t row = tables.row_at(part, place);

        ASSERT_EQ(tables.source_at(tap, place), row < 0 ? -1 : map.source(tap, row)) << tap << " " << place;
      }
    }
  }
}

TEST_P(ConvTablesOf, RowsThatEarlierPartsBeganAreMarked) {
  for (int part = 0; part < GetParam().parts; ++part) {
    for (std::int64_t place = 0; place < tables.layout.padded_rows; ++place) {
      bool expected = false;
      for (int earlier = 0; earlier < part; ++earlier) {
        expected = expected || !taps_of(earlier, tables.row_at(part, place)).empty();
      }

      EXPECT_EQ(tables.begun(part, place), expected) << part << " " << place;
    }
  }
}

TEST_P(ConvTablesOf, RowsThatNeedTheSameTapsAreNeighbours) {
  for (int part = 0; part < GetParam().parts; ++part) {
    if (tables.layout.parts[part].taps > 64) {
      continue;  // the order looks at no more
    }
    std::set<std::set<std::int64_t>> seen;
    std::set<std::int64_t> last;
    for (std::int64_t place = 0; place < GetParam().rows; ++place) {
      const std::set<std::int64_t> taps = taps_of(part, tables.row_at(part, place));

      EXPECT_TRUE(place > 0 || taps.empty());  // the last row has none
      EXPECT_TRUE((place > 0 && taps == last) || seen.insert(taps).second) << place;
      last = taps;
    }
  }
}

TEST_P(ConvTablesOf, TilesNameTheTapsThatTheirGroupsNeedAndTheHeaviestComeFirst) {
  for (int part = 0; part < GetParam().parts; ++part) {
    for (const ConvTile tile : {ConvTile::one_set, ConvTile::two_groups, ConvTile::three_groups}) {
      const std::int64_t group_rows = std::min(conv_tile_rows(tile), kConvGroupRows);
      std::set<std::int64_t> numbers;
      std::int64_t last_work = conv_tile_rows(tile) * GetParam().taps;
      for (std::int64_t i = 0; i < tables.layout.tiles(tile); ++i) {
        const TileTaps* const words = tables.tiles(part, tile) + i * tables.layout.words;
        EXPECT_TRUE(numbers.insert(words->tile).second);
        std::set<std::int64_t> all;
        for (std::int64_t group = 0; group < TileTaps::kMostGroups; ++group) {
          std::set<std::int64_t> needed;
          for (std::int64_t r = 0; group * group_rows < conv_tile_rows(tile) && r < group_rows; ++r) {
            needed.merge(
                taps_of(part, tables.row_at(part, words->tile * conv_tile_rows(tile) + group * group_rows + r)));
          }
          for (std::int64_t tap = 0; tap < GetParam().taps; ++tap) {
            const bool named = (words[tap / kWordTaps].taps[group] >> tap % kWordTaps & 1u) != 0;
            ASSERT_EQ(named, needed.count(tap) == 1);
          }
          all.merge(needed);
        }
        const auto work = static_cast<std::int64_t>(all.size());
        EXPECT_LE(work, last_work);
        last_work = work;
      }
      EXPECT_EQ(*numbers.begin(), 0);
      EXPECT_EQ(*numbers.rbegin(), tables.layout.tiles(tile) - 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ConvTablesOf,
                         testing::Values(Case{1, 1, 1}, Case{31, 27, 1}, Case{385, 27, 2}, Case{700, 8, 1},
                                         Case{130, 33, 1}, Case{260, 125, 1}, Case{70, 300, 1}));

TEST(ConvTablesOfNothing, NeedNoRowsAndNoTaps) {
  RandomMap none(0, 27, 1);

  EXPECT_NO_THROW(MadeTables(none.map, 1));
}

class ChunksOf : public testing::TestWithParam<Case> {
 protected:
  ChunksOf() {
    args.map = map.map;
    args.type = ScalarType::bf16;
    args.in = 8;
    args.out = 24;
  }
  RandomMap map{GetParam().rows, GetParam().taps, 3};
  ConvWeightGradArgs args;
};

TEST_P(ChunksOf, CoverThePairsOfEachTapOnceInTheOrderOfTheirSlots) {
  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t) {
    std::vector<ConvChunk> list(static_cast<std::size_t>(chunks.count()), ConvChunk{-1, -1, -1});
    list_chunks(chunks, list.data(), {});

    std::map<std::int32_t, ConvChunk> by_slot;
    for (const ConvChunk& chunk : list) {
      EXPECT_TRUE(by_slot.emplace(chunk.slot, chunk).second);
    }
    for (std::int32_t tap = 0; tap < chunks.taps; ++tap) {
      std::int64_t next = map.map.tap_offsets[chunks.first_tap + tap];
      for (std::int32_t slot = chunks.first[tap]; slot < chunks.first[tap + 1]; ++slot) {
        ASSERT_EQ(by_slot.count(slot), 1u);
        EXPECT_EQ(by_slot[slot].begin, next);
        EXPECT_GT(by_slot[slot].pairs, 0);
        next += by_slot[slot].pairs;
      }
      EXPECT_EQ(next, map.map.tap_offsets[chunks.first_tap + tap + 1]);
    }
  });
}

TEST_P(ChunksOf, GoThroughAllTapsSideBySide) {
  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t) {
    std::vector<ConvChunk> list(static_cast<std::size_t>(chunks.count()));
    list_chunks(chunks, list.data(), {});

    double last = 0;
    for (const ConvChunk& chunk : list) {
      const auto* const tap = std::upper_bound(chunks.first, chunks.first + chunks.taps + 1, chunk.slot) - 1;
      const double middle = (chunk.slot - *tap + 0.5) / (tap[1] - *tap);
      EXPECT_GE(middle, last - 1e-12);
      last = middle;
    }
  });
}

TEST_P(ChunksOf, AddUpToTheGradientOfTheirTap) {
  const std::int64_t elements = args.in * args.out;
  std::vector<BFloat16> gradient(static_cast<std::size_t>(args.map.taps * elements), BFloat16{0x7fc0});
  args.weight_grad = gradient.data();

  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t group) {
    std::vector<float> sums(static_cast<std::size_t>(chunks.count() * elements));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<float>(i / static_cast<std::size_t>(elements) % 4) + 1;
    }
    add_chunks(chunks, args, group, sums.data(), {});
  });

  for_chunks(args, [&](const ConvChunks& chunks, std::int64_t) {
    for (std::int32_t tap = 0; tap < chunks.taps; ++tap) {
      float expected = 0;
      for (std::int32_t slot = chunks.first[tap]; slot < chunks.first[tap + 1]; ++slot) {
        expected += static_cast<float>(slot % 4) + 1;
      }
      for (std::int64_t e = 0; e < elements; ++e) {
        ASSERT_EQ(gradient[static_cast<std::size_t>((chunks.first_tap + tap) * elements + e)].to_float(), expected);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ChunksOf,
                         testing::Values(Case{1, 1, 1}, Case{3000, 27, 1}, Case{20000, 3, 1}, Case{300, 300, 1}));

}  // namespace
}  // namespace lacewing::kernels::cuda
