// Where a sparse tensor has entries: the index structure that tensors share, and what is derived from it once.
//
// Rules see a pattern through indices() and keys(), whatever its format: a new format is another way to hold them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/info.h>

#include "structure/entry_groups.h"
#include "structure/entry_scan.h"

namespace lacewing::tensor {

class Pattern;
using PatternPtr = std::shared_ptr<const Pattern>;
using Dims = std::vector<std::int64_t>;

/// Entries grouped by their indices in some dims. Group g has the entries order[segments[g]], ...,
/// order[segments[g + 1] - 1], in the order in which they are stored.
struct Grouping {
  PatternPtr pattern;   ///< the groups' indices in the dims that were kept, coalesced; null: the pattern itself
  at::Tensor order;     ///< (nse,), int32 where it fits; undefined: the identity
  at::Tensor segments;  ///< (groups + 1,), likewise; undefined: every entry is a group of its own
  std::optional<SparseScaleInfo> sum;  ///< adds up the rows of each group, undefined as segments

  bool distinct() const { return !segments.defined(); }
  /// (nse,): the group of each entry. Kept once it was asked for.
  const at::Tensor& group() const;
  /// (groups,): the entries of each group, int64. Undefined as segments.
  const at::Tensor& counts() const;

  std::int64_t nse = 0;
  mutable std::mutex mutex;
  mutable at::Tensor made_group, made_counts;
};

/// A compressed format. The sparse dims are split into two ordered groups, which make up the rows and the columns of a
/// matrix; entries lie in the order of its rows (GCRS) or of its columns (GCCS), the major ones.
struct Layout {
  Dims rows, columns;
  bool by_column = false;

  const Dims& major() const { return by_column ? columns : rows; }
  const Dims& minor() const { return by_column ? rows : columns; }
  /// The major dims, then the minor ones.
  Dims order() const;
  bool operator==(const Layout&) const = default;
};

/// A tensor of indices that users can reach. What torch writes to it is noticed: what was derived from it, and that it
/// lies within the sizes, would no longer be true.
class WatchedIndices {
 public:
  WatchedIndices() = default;
  WatchedIndices(at::Tensor tensor);  // NOLINT(google-explicit-constructor): it stands for the tensor

  bool defined() const { return tensor_.defined(); }
  /// Throws where it was written to.
  const at::Tensor& get() const;
  const at::Tensor& unchecked() const { return tensor_; }

 private:
  at::Tensor tensor_;
  std::int64_t version_ = 0;
};

/// Immutable, shared by tensors; what is derived is kept, under a lock.
class Pattern : public std::enable_shared_from_this<Pattern> {
 public:
  /// indices (sparse dims, nse), int64, within the sizes; `coalesced` promises that keys increase strictly.
  static PatternPtr make(at::Tensor indices, Dims sizes, bool coalesced = false);
  /// Of such indices, and of what a scan found there.
  static PatternPtr make_scanned(at::Tensor indices, Dims sizes, structure::EntryScan scan);
  /// The coalesced pattern of strictly increasing keys.
  static PatternPtr of_keys(const at::Tensor& keys, Dims sizes);
  /// A compressed pattern: starts (major size + 1,) say where the entries of each row begin, minor (nse,) the reduced
  /// index of each along the other dims, in any order within a row. Both int32 or int64, within their ranges.
  static PatternPtr compressed(Layout layout, at::Tensor starts, at::Tensor minor, Dims sizes);
  /// The same entries as a compressed pattern (null: as COO). They must lie in the layout's order; `distinct` promises
  /// that no two have the same index.
  PatternPtr with_layout(std::optional<Layout> layout, bool distinct = false) const;
  /// The dims in another order; a compressed pattern stays one, of the same arrays.
  PatternPtr permuted(const Dims& order) const;

  /// The compressed format; null: COO.
  const Layout* layout() const { return layout_ ? &*layout_ : nullptr; }
  /// (sparse dims, nse)
  const at::Tensor& indices() const;
  const at::Tensor& starts() const;
  const at::Tensor& minor() const;
  const Dims& sizes() const { return sizes_; }
  std::int64_t dim() const { return static_cast<std::int64_t>(sizes_.size()); }
  std::int64_t nse() const { return nse_; }
  std::int64_t numel() const;
  at::Device device() const { return device_; }
  /// Whether a tensor is one that the pattern holds, or shares its memory.
  bool shares(const at::Tensor& tensor) const;

  /// Whether it is known without a sort that it is coalesced.
  bool known_coalesced() const;
  /// Whether it is known that no two entries have the same index; of a compressed pattern, whether its arrays show it.
  bool known_distinct() const;
  /// The same entries compressed, where they are distinct and lie in an order that a sort by the major index alone
  /// turns into the layout's; otherwise null. `order` gets where they come from, undefined where they stay.
  PatternPtr recompressed(const Layout& layout, at::Tensor& order) const;
  /// (nse,) linear keys.
  const at::Tensor& keys() const;
  /// (nse,): the reduced index of each entry along some dims.
  at::Tensor reduced(const Dims& dims) const;
  /// Grouped by the dims that are kept, in the order given; all dims in order: coalescing.
  const Grouping& grouping(const Dims& kept) const;
  const Grouping& coalescing() const;
  /// The coalesced pattern: itself where it is.
  PatternPtr coalesced() const;

  /// The infos of the product that this pattern is as a matrix (rows x columns over the given dims):
  /// z[row] += values[t] * x[column]. The plans of its gradients are made when they are needed, and kept.
  const SparseProductInfo& matrix_info(const Dims& row_dims, const Dims& column_dims) const;

  PatternPtr to(at::Device device) const;

 private:
  Pattern(std::int64_t nse, at::Device device, Dims sizes, bool coalesced)
      : sizes_(std::move(sizes)), nse_(nse), device_(device), coalesced_(coalesced) {}
  std::unique_ptr<Grouping> make_grouping(const Dims& kept) const;
  structure::KnownEntries known_entries(const Dims& kept) const;
  /// Notes that it is coalesced where the scan of its indices says so.
  bool find_coalesced() const;
  /// Throws where indices that it was made of were written to.
  void check_unwritten() const;

  Dims sizes_;
  std::int64_t nse_;
  at::Device device_;
  std::optional<Layout> layout_;
  mutable bool distinct_ = false;  // a compressed pattern with it is sorted
  mutable bool looked_ = false;    // at given arrays, for distinct_
  // Given: indices_; turned_, whose rows turned_rows_ they are; keys_; or minor_ and one of starts_ and major_, the
  // reduced major index of each entry.
  mutable WatchedIndices indices_, turned_, minor_;
  mutable at::Tensor starts_, major_;
  Dims turned_rows_;
  bool turned_in_order_ = false;              // turned_ is coalesced
  std::vector<std::int64_t> scanned_groups_;  // of indices_, where a scan found them in order
  mutable bool coalesced_;
  mutable std::recursive_mutex mutex_;
  mutable at::Tensor keys_;
  mutable std::map<Dims, std::unique_ptr<Grouping>> groupings_;
  mutable std::map<std::pair<Dims, Dims>, std::unique_ptr<SparseProductInfo>> matrices_;
};

/// A dim as a place in a vector of sizes.
inline std::size_t at(std::int64_t dim) { return static_cast<std::size_t>(dim); }

std::int64_t product_of(at::IntArrayRef sizes);
/// The sizes of some dims.
Dims sizes_at(at::IntArrayRef sizes, const Dims& dims);
Dims all_dims(std::int64_t count);

/// Rows as one matrix (rows, nse), of the form of `like` where there are none.
at::Tensor index_rows(const std::vector<at::Tensor>& rows, std::int64_t nse, const at::Tensor& like);

}  // namespace lacewing::tensor
