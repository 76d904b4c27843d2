// The pairs of taps in chunks, for the weight gradient: each chunk's sum is one block of memory, and those of a tap are
// added in order. How a tap is cut follows from its own pairs.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/device/workspace.h"

namespace lacewing::kernels::cuda {

/// Neighbouring pairs of one tap.
struct alignas(16) ConvChunk {
  std::int64_t begin;  ///< the first pair
  std::int32_t pairs;
  std::int32_t slot;  ///< where its sum goes
};

/// The chunks of some taps, tap after tap; as an argument of kernels.
struct ConvChunks {
  static constexpr int kMostTaps = 256;

  std::int64_t offsets[kMostTaps + 1];  ///< the pairs of each tap
  std::int32_t first[kMostTaps + 1];    ///< the slots of each tap
  std::int32_t in, out;
  std::int32_t first_tap;
  std::int32_t taps;

  ConvChunks(const ConvWeightGradArgs& args, std::int64_t from, std::int64_t count);
  std::int32_t count() const { return first[taps]; }
};

/// The memory of a weight gradient: chunks in the order in which they are computed, and their sums.
struct ConvChunkSpace {
  Slot<ConvChunk> chunks;
  Slot<float> sums;  ///< (slots, in, out)
  WorkspaceLayout layout;

  explicit ConvChunkSpace(const ConvWeightGradArgs& args);
};

/// Chunks of different taps that lie at the same part of their taps follow each other: they read the same rows.
void list_chunks(const ConvChunks& chunks, ConvChunk* list, const CudaExecutor& executor);

/// The sums of each tap's chunks become the gradient's group.
void add_chunks(const ConvChunks& chunks, const ConvWeightGradArgs& args, std::int64_t group, const float* sums,
                const CudaExecutor& executor);

/// Calls f(chunks, group) for what is computed in the same memory, one after the other.
template <typename F>
void for_chunks(const ConvWeightGradArgs& args, F&& f) {
  for (std::int64_t tap = 0; tap < args.map.taps; tap += ConvChunks::kMostTaps) {
    const std::int64_t taps = args.map.taps - tap < ConvChunks::kMostTaps ? args.map.taps - tap : ConvChunks::kMostTaps;
    const ConvChunks chunks(args, tap, taps);
    for (std::int64_t group = 0; group < args.groups; ++group) {
      f(chunks, group);
    }
  }
}

}  // namespace lacewing::kernels::cuda
