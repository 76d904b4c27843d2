// The whole formula: any number of operands, letters as in einsum, rows over terms, and edges.
//
//   z[v, M] = sum over edges e with out(e) = v, sum over terms t of row M:  s[t] * product over k of a_k[map_k(e),
//   i_k(t)]
//
// Letters say what of the channels is summed and what is kept: "u,v,uvw->w". Linear in every operand and in s, with
// gradients of any order. Each call allocates its output and at most the workspace that product_explain tells, reads
// nothing back to the host, and gives the same bits for every run and number of threads. Threads may call every
// function here at once and share infos. Errors are c10::Error with one sentence.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lacewing/export.h>

namespace lacewing {

/// Rows of unequal extents in a tensor of shape ([batch], elements). Integer tensors: offset (rows,), extent and stride
/// (rows, letters). Without offset rows lie one after the other, without stride a row is contiguous.
struct RowLayout {
  std::optional<at::Tensor> offset{};
  at::Tensor extent{};
  std::optional<at::Tensor> stride{};
};

/// Which rows meet in which term, and what is known of them. Everything may be absent.
struct ProductFields {
  std::vector<std::optional<at::Tensor>> index{};   ///< (T,) for each operand: its row in each term
  std::optional<at::Tensor> out{};                  ///< (T,): the row of the output
  std::vector<std::optional<std::int64_t>> rows{};  ///< of each operand; absent: one more than the largest index
  std::optional<std::int64_t> out_rows{};
  std::optional<at::Tensor> scale{};  ///< (T,): the coefficients, where a call gives none
  std::vector<std::int64_t> slots{};  ///< for each place of the formula, which tensor of a call stands there
  std::vector<std::optional<RowLayout>> layout{};  ///< of each operand and, last, of the output
  std::map<char, std::int64_t> extents{};          ///< of letters that stand in the output alone
};

/// The terms of a product, grouped for its value and all its gradients. An operand with neither index nor rows has one
/// row for all terms and no dim for it; with rows alone, term t takes row t.
struct LACEWING_API ProductPlan {
  at::Tensor array;                 ///< the index structure
  std::vector<std::int64_t> sizes;  ///< what describes it
  std::string form;                 ///< letters, and which roles have rows
  std::optional<at::Tensor> scale;
  std::vector<std::int64_t> slots;

  ProductPlan to(at::Device device) const;
};

/// The plan of a product written like "u,v,uvw->w". Checked and sorted here, once.
LACEWING_API ProductPlan product_plan(std::string_view form, const ProductFields& fields = {});

/// Which batch row of an operand or of the output an edge takes.
struct EdgeMap {
  enum class Kind { own, shared, list };
  Kind kind = Kind::own;
  at::Tensor list;  ///< (edges,)

  EdgeMap() = default;                                                     ///< its own: edge e takes row e
  EdgeMap(Kind kind_) : kind(kind_) {}                                     // NOLINT(google-explicit-constructor)
  EdgeMap(at::Tensor list_) : kind(Kind::list), list(std::move(list_)) {}  // NOLINT(google-explicit-constructor)
};

/// The outer level of terms: samples, edges of a graph, entries of a matrix. Sorted once for each list, serves many
/// products with as many operands, forward and backward.
struct LACEWING_API Edges {
  at::Tensor array;
  std::vector<std::int64_t> sizes;
  std::string maps;  ///< 'o', '!' or '@' for each operand and the output

  struct Sizes {
    std::optional<std::int64_t> edges{};               ///< where no list and no operand tells
    std::vector<std::optional<std::int64_t>> batch{};  ///< batch rows of each operand with a list
    std::optional<std::int64_t> out_batch{};
    bool sorted = false;  ///< the output's list is promised not to decrease; checked
  };

  /// Maps of the operands and of the output. A list gathers rows of an operand, and sums rows of the output in order;
  /// a shared output sums over all edges.
  Edges(const std::vector<EdgeMap>& maps, const EdgeMap& out, const Sizes& sizes);
  Edges(const std::vector<EdgeMap>& given, const EdgeMap& out) : Edges(given, out, Sizes{}) {}

  Edges to(at::Device device) const;
};

/// The product. Without edges, an operand with one dim more than its rows and letters has a batch, of which every entry
/// is an edge of its own; one without is shared.
LACEWING_API at::Tensor product(const ProductPlan& plan, at::TensorList operands,
                                const std::optional<Edges>& edges = {}, const std::optional<at::Tensor>& scale = {});

/// What a call will do: kernel, operations, bytes, workspace and the order of sums. Operands may be on meta.
LACEWING_API std::string product_explain(const ProductPlan& plan, at::TensorList operands,
                                         const std::optional<Edges>& edges = {},
                                         const std::optional<at::Tensor>& scale = {});

}  // namespace lacewing
