"""Mutants of sparse convolution: kernel maps, the kernels of every instruction set, pooling."""

from __future__ import annotations

from .record import CONV_LEVELS, Mutant

MAP = "src/conv/kernel_map.cpp"
REFERENCE = "src/kernels/reference/conv.cpp"
TILES = "src/kernels/cpu/conv_isa.cpp"
BLOCKS = "src/kernels/cpu/conv_blocks.h"
POOL = "src/kernels/pool_impl.h"

ENDS = ("conv-baseline", "conv-avx512")
"""The narrowest and the widest vectors."""

CONV_MUTANTS = (
    Mutant(
        "map-forgets-dilation",
        MAP,
        "const std::int64_t width = dense ? depth : 1;",
        "const std::int64_t width = depth;",
        ("conv-map",),
        "taps of a dilated last axis are taken for neighbours",
    ),
    Mutant(
        "map-skips-equal-keys",
        MAP,
        "while (keys[p] < query) {",
        "while (keys[p] <= query) {",
        ("conv-map",),
        "the first tap of a column finds nothing",
    ),
    Mutant(
        "map-mirrors-without-exchange",
        MAP,
        "fine_side.append((swap ? piece.coarse : piece.fine).get() + start, count);",
        "fine_side.append(piece.fine.get() + start, count);",
        ("conv-map",),
        "the mirrored half of a symmetric map keeps its sides",
    ),
    Mutant(
        "map-tiles-start-late",
        MAP,
        "table_[next_++] = static_cast<std::int32_t>(written_ + i);",
        "table_[next_++] = static_cast<std::int32_t>(written_ + i + 1);",
        ("conv-map",),
        "a tile loses its first pair",
    ),
    Mutant(
        "map-positions-for-rows",
        MAP,
        "out_[written_ + i] = order_ == nullptr ? position : order_[position];",
        "out_[written_ + i] = position;",
        ("conv-map",),
        "shuffled voxels keep their sorted positions",
    ),
    Mutant(
        "conv-reference-forgets-bias",
        REFERENCE,
        "const Acc sum = bias + sums[",
        "const Acc sum = sums[",
        ("conv-reference",),
        "the bias is not added",
    ),
    Mutant(
        "conv-reference-ignores-transposition",
        REFERENCE,
        "args.transposed ? matrix[o * args.in + i] : matrix[i * args.out + o]",
        "matrix[i * args.out + o]",
        ("conv-reference",),
        "a transposed weight is read as it lies",
    ),
    Mutant(
        "conv-tile-forgets-the-last-tap",
        TILES,
        "for (std::int64_t step = 0; step < map.taps; ++step) {",
        "for (std::int64_t step = 0; step + 1 < map.taps; ++step) {",
        ENDS,
        "pairs of the last tap are left out",
    ),
    Mutant(
        "conv-pieces-of-channels-overlap",
        TILES,
        "for (std::int64_t channel = 0; channel < args_.in; channel += kConvDepth) {",
        "for (std::int64_t channel = 0; channel < args_.in; channel += kConvDepth / 2) {",
        ENDS,
        "input channels of a second piece are added twice",
    ),
    Mutant(
        "conv-groups-share-a-weight",
        TILES,
        "weight_block(tap * args_.groups + group, channel,",
        "weight_block(tap * args_.groups, channel,",
        ENDS,
        "every group uses the first one's weight",
    ),
    Mutant(
        "conv-targets-by-position",
        TILES,
        "return args_.map.target_order == nullptr ? sorted : args_.map.target_order[sorted];",
        "return sorted;",
        ENDS,
        "the rows of a tile are started and rounded by their sorted position",
    ),
    Mutant(
        "conv-second-piece-starts-anew",
        TILES,
        "starts_itself && channel == 0 && tap",
        "starts_itself && tap",
        ENDS,
        "the sums of the first piece of the input channels are lost",
    ),
    Mutant(
        "conv-finish-by-the-first-scales",
        TILES,
        "static_cast<const Acc*>(how.scale) + column;",
        "static_cast<const Acc*>(how.scale);",
        ENDS,
        "every block of columns is scaled as the first one",
    ),
    Mutant(
        "conv-finish-adds-the-first-columns",
        TILES,
        "row * how.residual_stride + column;",
        "row * how.residual_stride;",
        ENDS,
        "every block of columns gets the residual of the first one",
    ),
    Mutant(
        "conv-finish-before-the-second-piece",
        TILES,
        "            });\n      }\n      finish(begin, end, group * args_.out + column, columns);",
        "            });\n        finish(begin, end, group * args_.out + column, columns);\n      }",
        ENDS,
        "sums are finished after each piece of the input channels",
    ),
    Mutant(
        "conv-blocks-forget-the-rest",
        BLOCKS,
        "if (at < rows) {",
        "if (at + 1 < rows) {",
        CONV_LEVELS,
        "a single row behind the tallest blocks is left out",
    ),
    Mutant(
        "conv-blocks-forget-part-of-a-vector",
        BLOCKS,
        "if (at < columns) {",
        "if (at + 4 < columns) {",
        ENDS,
        "a few columns behind the last whole vector are left out",
    ),
    Mutant(
        "conv-weight-grad-leaves-rows-out",
        TILES,
        "share_boundary(map, tap, rows, worker + 1, workers)};",
        "share_boundary(map, tap, rows, worker + 1, workers + 1)};",
        ENDS,
        "rows of the gradient of the weight belong to no worker",
    ),
    Mutant(
        "conv-weight-grad-starts-dirty",
        TILES,
        "sums + tap * schedule.matrix + share.end * args.out, Acc{});",
        "sums + tap * schedule.matrix + share.begin * args.out, Acc{});",
        ENDS,
        "the gradient of the weight adds to what was in memory",
    ),
    Mutant(
        "pool-takes-the-last-of-equals",
        POOL,
        "(nan ? best == best : value > best)",
        "(nan ? best == best : value >= best)",
        ("conv-pool",),
        "the last of equal values wins",
    ),
    Mutant(
        "pool-ignores-nan",
        POOL,
        "const bool nan = value != value;",
        "const bool nan = false;",
        ("conv-pool",),
        "NaN loses against numbers",
    ),
    Mutant(
        "pool-gradient-to-every-source",
        POOL,
        "if (arg[from] == source[pair]) {",
        "if (arg[from] >= 0) {",
        ("conv-pool",),
        "the gradient goes to every voxel of the window",
    ),
)
