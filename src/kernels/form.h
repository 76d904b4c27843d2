// The whole formula, as every backend takes it. Torch-free.
//
//   out[b, row, letters] = sum over edges e of b, terms t of row, letters that out lacks, of the product over factors
//   f:
//                          f[map_f(e), index_f(t), letters]
//
// A factor is whatever is read: an operand, the coefficients, an upstream gradient. Letters are numbered, those of out
// first and in its order; a factor that lacks a letter has stride 0 there. Rows lie at a stride, or have offsets,
// extents and strides of their own (RowLayout).
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

inline constexpr int kMaxFactors = 12;
inline constexpr int kMaxLetters = 12;

/// Integers of 32 or 64 bits; without data the identity.
struct IndexArray {
  const void* data = nullptr;
  bool wide = false;

  LACEWING_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  LACEWING_HOST_DEVICE std::int64_t operator[](std::int64_t i) const {
    return data == nullptr ? i
           : wide          ? static_cast<const std::int64_t*>(data)[i]
                           : static_cast<std::int64_t>(static_cast<const std::int32_t*>(data)[i]);
  }
};

/// Rows of unequal extents. Of the `count` letters that it describes, the k-th of row r has extent[r * count + k] and
/// stride[r * count + k].
struct RowLayout {
  IndexArray offset;  ///< (rows); without data: there is no layout
  IndexArray extent;
  IndexArray stride;
  int count = 0;
  std::int8_t column[kMaxLetters] = {};  ///< for each letter of the call its k, or -1

  LACEWING_HOST_DEVICE explicit operator bool() const { return offset.data != nullptr; }
};

/// A tensor in its place of the formula.
struct Place {
  const void* data = nullptr;
  std::int64_t batch_stride = 0;  ///< 0 where all edges share it
  std::int64_t row_stride = 0;    ///< of a row; with a layout of an element; 0 where there is one row for all terms
  std::int64_t letter_stride[kMaxLetters] = {};
  IndexArray list;   ///< (edges): the batch row of an edge
  IndexArray index;  ///< (terms): the row of a term
  RowLayout layout;
  bool conjugate = false;

  LACEWING_HOST_DEVICE std::int64_t offset(std::int64_t batch, std::int64_t row) const {
    return batch * batch_stride + (layout ? layout.offset[row] : row) * row_stride;
  }
  LACEWING_HOST_DEVICE std::int64_t stride(int letter, std::int64_t row) const {
    const int k = layout ? layout.column[letter] : -1;
    return k < 0 ? letter_stride[letter] : layout.stride[row * layout.count + k] * row_stride;
  }
};

/// Where the edges of an output come from.
enum class BatchMap : std::uint8_t {
  own,     ///< edge b alone
  shared,  ///< all edges; there is one output
  list,    ///< those of a segment
};

struct FormArgs {
  ScalarType type = ScalarType::f32;  ///< of all factors and out
  int factors = 0;
  Place factor[kMaxFactors];
  Place out;  ///< written, never read before; uniform rows are contiguous in row and letters

  int letters = 0;
  int out_letters = 0;  ///< so many letters come first: those of out
  std::int64_t extent[kMaxLetters] = {};
  /// Whose rows tell the extent instead: kOwnExtent none, kOutExtent those of out, else a factor's.
  std::int8_t extent_from[kMaxLetters] = {};

  IndexArray segments;      ///< (rows + 1); without data term r is row r's, or all are the one row's
  bool single_row = false;  ///< all terms belong to one row
  std::int64_t rows = 0;
  std::int64_t terms = 0;
  IndexArray first;               ///< (rows + 1) where out has a layout: elements of the rows before, ...
  std::int64_t first_unit = 1;    ///< ... each of so many, where out has letters beside
  std::int64_t row_elements = 1;  ///< elements of the widest row
  std::int64_t out_elements = 0;  ///< elements of all rows

  BatchMap out_map = BatchMap::own;
  IndexArray edge_segments;  ///< (batch + 1), for a list
  IndexArray edge_order;     ///< (edges), for a list
  std::int64_t edges = 1;
  std::int64_t batch = 1;  ///< of out: edges, 1, or the segments

  static constexpr std::int8_t kOwnExtent = -1;
  static constexpr std::int8_t kOutExtent = -2;

  void* output() const { return const_cast<void*>(out.data); }

  /// How many elements the rows before one have.
  LACEWING_HOST_DEVICE std::int64_t elements_before(std::int64_t row) const {
    return first ? first[row] * first_unit : row * row_elements;
  }

  LACEWING_HOST_DEVICE std::int64_t term_begin(std::int64_t row) const { return single_row ? 0 : segments[row]; }
  LACEWING_HOST_DEVICE std::int64_t term_end(std::int64_t row) const {
    return single_row ? terms : segments ? segments[row + 1] : row + 1;
  }
  LACEWING_HOST_DEVICE std::int64_t edge_begin(std::int64_t b) const {
    return out_map == BatchMap::own ? b : out_map == BatchMap::shared ? 0 : edge_segments[b];
  }
  LACEWING_HOST_DEVICE std::int64_t edge_end(std::int64_t b) const {
    return out_map == BatchMap::own ? b + 1 : out_map == BatchMap::shared ? edges : edge_segments[b + 1];
  }
  /// The edge at a place of edge_begin .. edge_end.
  LACEWING_HOST_DEVICE std::int64_t edge(std::int64_t place) const { return edge_order[place]; }

  LACEWING_HOST_DEVICE std::int64_t row_of(int f, std::int64_t term) const {
    return factor[f].row_stride == 0 && !factor[f].layout ? 0 : factor[f].index[term];
  }
  /// The extent of a letter of out in a row of out.
  LACEWING_HOST_DEVICE std::int64_t out_extent(int letter, std::int64_t row) const {
    return extent_from[letter] == kOutExtent ? out.layout.extent[row * out.layout.count + out.layout.column[letter]]
                                             : extent[letter];
  }
  /// The extent in a term of a letter that out lacks.
  LACEWING_HOST_DEVICE std::int64_t summed_extent(int letter, std::int64_t term) const {
    const int from = extent_from[letter];
    if (from < 0) {
      return extent[letter];
    }
    const RowLayout& layout = factor[from].layout;
    return layout.extent[row_of(from, term) * layout.count + layout.column[letter]];
  }
};

namespace reference {
void form(const FormArgs& args);
}  // namespace reference

namespace cpu {
std::int64_t form_workspace(const FormArgs& args, int threads);
void form(const FormArgs& args, const CpuExecutor& executor, void* workspace);
}  // namespace cpu

namespace cuda {
void form(const FormArgs& args, const CudaExecutor& executor);
}  // namespace cuda

}  // namespace lacewing::kernels
