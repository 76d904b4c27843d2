// Index structures on the device: sort, groups, row pointers, merges, keys. Torch-free; each call works on the
// executor's stream, in the workspace that it tells, and reads nothing back: sizes that are found are left on the
// device.
//
// Counts of int64 keys; arrays of places and numbers are int64 where `wide`, else int32.
#pragma once

#include <cstdint>

#include <lacewing/executor.h>

#include "kernels/elements.h"

namespace lacewing::kernels {

/// Keys in [0, limit), sorted stably.
struct KeySort {
  const std::int64_t* keys = nullptr;
  std::int64_t count = 0;
  std::int64_t limit = 0;
  std::int64_t* sorted = nullptr;  ///< (count)
  void* order = nullptr;           ///< (count): where the i-th smallest key stood
  bool wide = false;
};

/// Groups of equal keys that are sorted.
struct KeyGroups {
  const std::int64_t* sorted = nullptr;
  std::int64_t count = 0;
  const void* order = nullptr;  ///< (count): where each key stood; null: nothing was moved
  bool wide = false;
  void* number = nullptr;         ///< (count): how many groups begin up to each key
  std::int64_t* found = nullptr;  ///< (2), on the device: how many groups, and whether any key was moved
  std::int64_t groups = 0;        ///< of write_groups: what was found
  std::int64_t* keys = nullptr;   ///< (groups), or null
  void* segments = nullptr;       ///< (groups + 1), or null
};

/// Two sets of keys, from 0 on, that increase strictly, merged into their union or intersection.
struct SetMerge {
  static constexpr int kTile = 2048;  ///< keys of the merged order that are looked at together

  const std::int64_t* a = nullptr;
  std::int64_t a_count = 0;
  const std::int64_t* b = nullptr;
  std::int64_t b_count = 0;
  bool common = false;
  std::int64_t* cuts = nullptr;   ///< (tiles + 1), on the device: how many keys of a come before each
  std::uint64_t* kept = nullptr;  ///< (tiles), on the device: how many are kept up to the end of each; all: the last
  std::int64_t* keys = nullptr;   ///< of what is written: (all)

  LACEWING_HOST_DEVICE std::int64_t tiles() const { return (a_count + b_count + kTile - 1) / kTile; }
};

/// Integers of a column: int64 where wide, else int32; null is the identity.
struct Column {
  const void* data = nullptr;
  bool wide = true;
};

/// Columns of terms in another order.
struct TermColumns {
  static constexpr int kMost = 4;
  Column from[kMost] = {};
  int columns = 0;
  Column order;  ///< (count): where each term stands
  std::int64_t count = 0;
  void* to[kMost] = {};            ///< of reorder: (count) each, or null
  bool wide = false;               ///< `to` holds int64 instead of int32
  std::uint64_t* moved = nullptr;  ///< of find_moved: (kMost), on the device: whether column c is not the identity
};

/// What is known of triples: all of it in one pass, in TermScan::kWords words.
struct TermScan {
  enum Word : int { limit1, limit2, limit_row, negative, hash, hash_bwd1, hash_bwd2, order_hash, unsorted, kWords };

  const std::int64_t* index1 = nullptr;  ///< null: the identity
  const std::int64_t* index2 = nullptr;
  const std::int64_t* row = nullptr;
  std::int64_t count = 0;
  bool unary = false;  ///< there is no index2
  /// (kWords), on the device: one more than the largest of each; whether any is negative; the sums of term_hash.h; and
  /// whether any term is less than the one before it by (row, index1, index2).
  std::uint64_t* words = nullptr;
};

/// Row-major keys of indices within sizes, and back.
struct KeyCode {
  static constexpr int kMostDims = 64;
  int dims = 0;
  std::int64_t size[kMostDims] = {};
  std::int64_t offset[kMostDims] = {};  ///< of linear_keys: where the indices of a dim begin
  std::int64_t stride = 1;              ///< between the indices of neighbours
  std::int64_t count = 0;
};

/// What one reading of the indices of entries tells, in kWords words on the device.
struct IndexScan {
  enum Word : int {
    outside,   ///< the count less the first entry with an index outside its size; 0: there is none
    unsorted,  ///< whether any entry comes before the one that it follows
    repeated,  ///< whether any equals the one that it follows
    kWords
  };
  KeyCode code;
  const std::int64_t* indices = nullptr;
  std::uint64_t* words = nullptr;
};

namespace cuda {

std::int64_t sort_workspace(const KeySort& sort);
void sort_keys(const KeySort& sort, const CudaExecutor& executor, void* workspace);

std::int64_t groups_workspace(const KeyGroups& groups);
void find_groups(const KeyGroups& groups, const CudaExecutor& executor, void* workspace);
void write_groups(const KeyGroups& groups, const CudaExecutor& executor);

std::int64_t merge_workspace(const SetMerge& merge);
void find_merged(const SetMerge& merge, const CudaExecutor& executor, void* workspace);
/// The keys, and where each lies in either set, or -1.
void write_merged(const SetMerge& merge, std::int64_t* in_a, std::int64_t* in_b, const CudaExecutor& executor);
/// The keys, and the elements of both sets.
void write_merged(const SetMerge& merge, const Elements& a, const Elements& b, std::int64_t element_bytes, void* a_out,
                  void* b_out, const CudaExecutor& executor);
/// The keys, and what is made of each pair of elements: float, or double.
void write_merged(const SetMerge& merge, const Elements& a, const Elements& b, Combine combine, bool is_double,
                  void* out, const CudaExecutor& executor);

/// pointers[r] = the first of `count` sorted rows that is r or more; pointers[rows] = count.
void row_pointers(const std::int64_t* sorted, std::int64_t count, std::int64_t rows, void* pointers, bool wide,
                  const CudaExecutor& executor);
/// The inverse: row_of[t] for each of `count` terms.
void rows_of_terms(const void* pointers, bool wide, std::int64_t rows, std::int64_t count, std::int64_t* row_of,
                   const CudaExecutor& executor);

void scan_terms(const TermScan& scan, const CudaExecutor& executor);
void scan_indices(const IndexScan& scan, const CudaExecutor& executor);

void find_moved(const TermColumns& columns, const CudaExecutor& executor);
void reorder(const TermColumns& columns, const CudaExecutor& executor);

void linear_keys(const KeyCode& code, const std::int64_t* indices, std::int64_t* keys, const CudaExecutor& executor);
/// out[d * count + i]
void unravel_keys(const KeyCode& code, const std::int64_t* keys, std::int64_t* out, const CudaExecutor& executor);

}  // namespace cuda

}  // namespace lacewing::kernels
