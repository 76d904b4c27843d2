// Infos: which terms a sparse product has, checked once and sorted once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>

namespace lacewing {

/// The engine's form of an info: an integer array and the integers that describe it. Both pass through the registered
/// ops.
struct InfoPlan {
  at::Tensor array;
  std::vector<std::int64_t> sizes;
};

/// The terms of a sparse product. For t = gather_index[k] (or k):
///
///   z[n, index_out[M]] = sum for k in [seg_out[M], seg_out[M+1]) of  scale[t] * x[n, index1[t]] o y[n, index2[t]]
///
/// Immutable and cheap to copy; copies share what is derived from them, under a lock. scale keeps its history and gets
/// a gradient; the indices are copied.
class LACEWING_API SparseProductInfo {
 public:
  /// Each may be absent: scale is then 1, an index the identity, without seg_out every k is a segment of its own, and
  /// out_size is the number of segments (it must be given with index_out).
  struct Fields {
    std::optional<at::Tensor> scale;         ///< (T,)
    std::optional<at::Tensor> index1;        ///< (T,): rows of input1
    std::optional<at::Tensor> index2;        ///< (T,): rows of input2
    std::optional<at::Tensor> seg_out;       ///< (segments + 1,), non-decreasing, within [0, K]
    std::optional<at::Tensor> gather_index;  ///< (K,), may repeat or skip t
    std::optional<at::Tensor> index_out;     ///< (segments,), distinct
    std::optional<std::int64_t> out_size;
  };

  /// Every field absent: T is then the number of rows of the inputs.
  SparseProductInfo() : SparseProductInfo(Fields{}) {}

  /// Checks, copies and groups the fields. Throws c10::Error with one sentence, in the name of `op`.
  explicit SparseProductInfo(const Fields& fields, const char* op = "SparseProductInfo");

  /// An info whose terms a plan holds, an entry of scale for each. For builders.
  SparseProductInfo(std::optional<at::Tensor> scale, InfoPlan plan);

  /// Copies share what they hold; moving is copying, so that no info is ever empty.
  SparseProductInfo(const SparseProductInfo&) = default;
  SparseProductInfo& operator=(const SparseProductInfo&) = default;

  /// The fields, read from the plan where a sort has made it; indices are int32 where they fit, else int64.
  Fields fields() const;
  const std::optional<at::Tensor>& scale() const;
  const InfoPlan& plan() const;
  at::Device device() const;

  SparseProductInfo to(at::Device device) const;
  /// The same terms with another scale, (T,) in the order of the indices; nothing is sorted or copied.
  SparseProductInfo with_scale(std::optional<at::Tensor> scale) const;

  /// The info for inputs of so many rows: another one only where out_size alone is given and differs from them.
  SparseProductInfo resolved(std::int64_t rows) const;
  /// The plan of a gradient (1 or 2) for inputs of so many rows: derived once, then kept.
  InfoPlan backward_plan(int input, std::int64_t in1_size, std::int64_t in2_size) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// The three infos of a product: its value and its two gradients.
struct SparseProductInfos {
  SparseProductInfo fwd;
  SparseProductInfo bwd1;
  SparseProductInfo bwd2;
};

/// The info of the triples (index1[t], index2[t]) -> index[t], sorted by output. See sparse_product_infos.
LACEWING_API SparseProductInfo sparse_product_info(const std::optional<at::Tensor>& index1,
                                                   const std::optional<at::Tensor>& index2,
                                                   const std::optional<at::Tensor>& index,
                                                   const std::optional<at::Tensor>& scale = std::nullopt,
                                                   std::optional<std::int64_t> out_size = std::nullopt);

/// The infos of z[index[t]] += scale[t] * x[index1[t]] o y[index2[t]]. Indices are (T,) integer tensors on one device,
/// absent ones mean 0..T-1; sizes that are not given are one more than the largest index. Sorted stably by (output,
/// index1, index2); duplicates stay and add; scale stays in the order given. Throws c10::Error with one sentence.
LACEWING_API SparseProductInfos sparse_product_infos(const std::optional<at::Tensor>& index1,
                                                     const std::optional<at::Tensor>& index2,
                                                     const std::optional<at::Tensor>& index,
                                                     const std::optional<at::Tensor>& scale = std::nullopt,
                                                     std::optional<std::int64_t> out_size = std::nullopt,
                                                     std::optional<std::int64_t> in1_size = std::nullopt,
                                                     std::optional<std::int64_t> in2_size = std::nullopt);

/// The infos of the two gradients of a product whose inputs have so many rows (fwd is the info itself). Where
/// gather_index repeats an entry of scale, they have an entry for each term instead, and their scale is gathered,
/// differentiably.
LACEWING_API SparseProductInfos derive_backward(const SparseProductInfo& info, std::int64_t in1_size,
                                                std::int64_t in2_size);

/// A constant sparse matrix S along one dim: out[m] = sum for t in segment m of scale[t] * in[index[t]].
class LACEWING_API SparseScaleInfo {
 public:
  struct Fields {
    std::optional<at::Tensor> scale;         ///< (T,), absent: 1
    std::optional<at::Tensor> index;         ///< (T,), absent: the identity
    std::optional<at::Tensor> seg_out;       ///< (out_size + 1,), absent: every t is a row
    std::optional<at::Tensor> gather_index;  ///< the t of each term, where scale is not in the order of the rows
    std::optional<std::int64_t> out_size;
  };

  explicit SparseScaleInfo(const Fields& fields, const char* op = "SparseScaleInfo");
  SparseScaleInfo(std::optional<at::Tensor> scale, InfoPlan plan);
  SparseScaleInfo(const SparseScaleInfo&) = default;
  SparseScaleInfo& operator=(const SparseScaleInfo&) = default;

  Fields fields() const;
  const std::optional<at::Tensor>& scale() const;
  const InfoPlan& plan() const;
  at::Device device() const;
  SparseScaleInfo to(at::Device device) const;
  SparseScaleInfo with_scale(std::optional<at::Tensor> scale) const;
  /// As those of SparseProductInfo.
  SparseScaleInfo resolved(std::int64_t rows) const;
  InfoPlan backward_plan(std::int64_t in_size) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

struct SparseScaleInfos {
  SparseScaleInfo fwd;
  SparseScaleInfo bwd;
};

/// The infos of S[index_out[t], index_in[t]] = scale[t] (duplicates add) and of its transpose.
LACEWING_API SparseScaleInfos sparse_scale_infos(const std::optional<at::Tensor>& index_out,
                                                 const std::optional<at::Tensor>& index_in,
                                                 const std::optional<at::Tensor>& scale = std::nullopt,
                                                 std::optional<std::int64_t> out_size = std::nullopt,
                                                 std::optional<std::int64_t> in_size = std::nullopt);

}  // namespace lacewing
