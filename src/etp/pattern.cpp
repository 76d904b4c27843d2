// Sparse patterns: checks, the sort by column, and the forward, sampled and traced products as instances of the
// engine's.
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/etp/pattern.h>
#include <lacewing/product.h>

#include "etp/checks.h"

namespace lacewing::etp {
namespace {

constexpr const char* kBuilder = "etp.SparsePattern";

/// (nse,) int64, contiguous, every entry within [0, limit).
at::Tensor checked_index(const char* argument, const at::Tensor& index, std::int64_t limit) {
  TORCH_CHECK(index.dim() == 1, "[lacewing.", kBuilder, "] ", argument, " must have 1 dimension, not shape ",
              shape_text(index.sizes()));
  index_type(kBuilder, argument, index.scalar_type());
  at::Tensor wide = index.to(at::kLong, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const at::Tensor bad = wide.lt(0).logical_or(wide.ge(limit)).nonzero();
  if (bad.size(0) > 0) {
    const auto k = bad[0][0].item<std::int64_t>();
    TORCH_CHECK(false, "[lacewing.", kBuilder, "] ", argument, "[", k, "] = ", wide[k].item<std::int64_t>(),
                " is out of range: there are ", limit);
  }
  return wide;
}

/// The indices that a compressed pointer stands for.
at::Tensor expanded(const char* argument, const at::Tensor& pointer, std::int64_t segments, std::int64_t nse) {
  TORCH_CHECK(pointer.dim() == 1 && pointer.size(0) == segments + 1, "[lacewing.", kBuilder, "] ", argument,
              " must have shape (", segments + 1, ",), not ", shape_text(pointer.sizes()));
  index_type(kBuilder, argument, pointer.scalar_type());
  const at::Tensor wide = pointer.to(at::kLong);
  const at::Tensor counts = wide.diff();
  TORCH_CHECK(wide[0].item<std::int64_t>() == 0 && wide[segments].item<std::int64_t>() == nse, "[lacewing.", kBuilder,
              "] ", argument, " must begin with 0 and end with nse = ", nse, ", not ", wide[0].item<std::int64_t>(),
              " and ", wide[segments].item<std::int64_t>());
  const at::Tensor bad = counts.lt(0).nonzero();
  if (bad.size(0) > 0) {
    const auto k = bad[0][0].item<std::int64_t>();
    TORCH_CHECK(false, "[lacewing.", kBuilder, "] ", argument, "[", k + 1, "] = ", wide[k + 1].item<std::int64_t>(),
                " is less than the entry before it: pointers must not decrease");
  }
  return at::arange(segments, wide.options()).repeat_interleave(counts);
}

SparsePattern::ByColumn sorted_by_column(const at::Tensor& row, const at::Tensor& col, std::int64_t cols) {
  const std::int64_t nse = row.size(0);
  const bool sorted = nse < 2 || col.slice(0, 1).ge(col.slice(0, 0, nse - 1)).all().item<bool>();
  SparsePattern::ByColumn out;
  at::Tensor sorted_row = row;
  at::Tensor sorted_col = col;
  if (!sorted) {
    std::tie(sorted_col, out.order) = at::sort(col, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    sorted_row = row.index_select(0, out.order);
    out.inverse = at::empty_like(out.order).index_put_({out.order}, at::arange(nse, row.options()));
  }
  out.segments = at::searchsorted(sorted_col, at::arange(cols + 1, col.options()));
  out.row = sorted_row.to(at::kInt);
  out.column = sorted_col.to(at::kInt);
  return out;
}

}  // namespace

struct SparsePattern::State {
  PatternFormat format;
  std::int64_t rows;
  std::int64_t cols;
  at::Tensor row;
  at::Tensor col;
  ByColumn by_column;
  SparseProductInfos forward;   ///< scavec: values, rows of x^T -> rows of y^T
  SparseProductInfo sampled;    ///< inner: rows of x^T, rows of g^T -> values
  SparseProductInfo times_row;  ///< mul: rows of y, entries -> entries
  SparseProductInfo times_col;
};

SparsePattern::SparsePattern(PatternFormat format, at::Tensor row, at::Tensor col, std::int64_t rows,
                             std::int64_t cols) {
  const std::int64_t nse = row.size(0);
  auto by_column = sorted_by_column(row, col, cols);
  const auto sampled = SparseProductInfo(SparseProductInfo::Fields{
      .scale = {}, .index1 = row, .index2 = col, .seg_out = {}, .gather_index = {}, .index_out = {}, .out_size = nse});
  const auto times = [&](const at::Tensor& index) {
    return SparseProductInfo(SparseProductInfo::Fields{.scale = {},
                                                       .index1 = index,
                                                       .index2 = at::arange(nse, row.options()),
                                                       .seg_out = {},
                                                       .gather_index = {},
                                                       .index_out = {},
                                                       .out_size = nse});
  };
  state_ = std::make_shared<State>(
      State{format, rows, cols, row, col, std::move(by_column),
            sparse_product_infos(at::arange(nse, row.options()), row, col, std::nullopt, cols, nse, rows), sampled,
            times(row), times(col)});
}

SparsePattern SparsePattern::coo(const at::Tensor& row, const at::Tensor& col, std::int64_t rows, std::int64_t cols) {
  check_sizes(kBuilder, rows, cols);
  const at::Tensor r = checked_index("row", row, rows);
  const at::Tensor c = checked_index("col", col, cols);
  TORCH_CHECK(r.size(0) == c.size(0), "[lacewing.", kBuilder, "] row has ", r.size(0), " entries, but col has ",
              c.size(0));
  TORCH_CHECK(r.device() == c.device(), "[lacewing.", kBuilder, "] row is on ", r.device(), ", but col is on ",
              c.device());
  return {PatternFormat::coo, r, c, rows, cols};
}

SparsePattern SparsePattern::csr(const at::Tensor& crow, const at::Tensor& col, std::int64_t rows, std::int64_t cols) {
  check_sizes(kBuilder, rows, cols);
  const at::Tensor c = checked_index("col", col, cols);
  return {PatternFormat::csr, expanded("crow", crow.to(c.device()), rows, c.size(0)), c, rows, cols};
}

SparsePattern SparsePattern::csc(const at::Tensor& ccol, const at::Tensor& row, std::int64_t rows, std::int64_t cols) {
  check_sizes(kBuilder, rows, cols);
  const at::Tensor r = checked_index("row", row, rows);
  return {PatternFormat::csc, r, expanded("ccol", ccol.to(r.device()), cols, r.size(0)), rows, cols};
}

PatternFormat SparsePattern::format() const { return state_->format; }
std::int64_t SparsePattern::rows() const { return state_->rows; }
std::int64_t SparsePattern::cols() const { return state_->cols; }
std::int64_t SparsePattern::nse() const { return state_->row.size(0); }
at::Device SparsePattern::device() const { return state_->row.device(); }
const at::Tensor& SparsePattern::row() const { return state_->row; }
const at::Tensor& SparsePattern::col() const { return state_->col; }
const SparsePattern::ByColumn& SparsePattern::by_column() const { return state_->by_column; }

std::vector<InfoPlan> SparsePattern::forward_plans() const {
  const SparseProductInfos& infos = state_->forward;
  return {infos.fwd.plan(), infos.bwd1.plan(), infos.bwd2.plan()};
}

SparsePattern SparsePattern::to(at::Device device) const {
  return device == this->device() ? *this
                                  : SparsePattern(state_->format, row().to(device), col().to(device), rows(), cols());
}

namespace {

void check_values(const char* op, const SparsePattern& pattern, const at::Tensor& values) {
  TORCH_CHECK(values.dim() == 1 && values.size(0) == pattern.nse(), "[lacewing.", op, "] values must have shape (",
              pattern.nse(), ",), one for each entry of the pattern, not ", shape_text(values.sizes()));
  TORCH_CHECK(at::isFloatingType(values.scalar_type()), "[lacewing.", op, "] values must be floating, not ",
              dtype_text(values.scalar_type()));
  check_device(op, "values", values, pattern.device());
}

}  // namespace

SparseMatrix SparsePattern::with_data(const at::Tensor& data) const {
  check_values("etp.with_data", *this, data);
  return {*this, data};
}

void SparsePattern::check_matmul(const at::Tensor& x, const at::Tensor& values) const {
  constexpr const char* op = "etp.sparse_matmul";
  check_values(op, *this, values);
  check_device(op, "x", x, device());
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == rows(), "[lacewing.", op, "] x of shape ", shape_text(x.sizes()),
              " must end with the ", rows(), " inputs of the pattern");
  check_same_dtype(op, "x", x, "values", values);
}

at::Tensor SparsePattern::matmul(const at::Tensor& x, const at::Tensor& values) const {
  check_matmul(x, values);
  const SparseProductInfos& infos = state_->forward;
  // Not -1: with no inputs that says nothing about the batch.
  const at::Tensor flat = x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), rows()});
  const at::Tensor out = sparse_scavec(values, flat.t().contiguous(), infos.fwd, infos.bwd1, infos.bwd2);
  if (out.requires_grad()) {
    // The gradient arrives with the batch first, and the products below would gather it entry by entry.
    out.register_hook([](const at::Tensor& g) { return g.contiguous(); });
  }
  at::DimVector sizes(x.sizes());
  sizes.back() = cols();
  return out.t().reshape(sizes);
}

at::Tensor SparsePattern::sampled_outer(const at::Tensor& x, const at::Tensor& g) const {
  constexpr const char* op = "etp.xy_to_dw";
  TORCH_CHECK((x.dim() == 1 || x.dim() == 2) && x.size(-1) == rows(), "[lacewing.", op, "] x must have shape (", rows(),
              ",) or (B, ", rows(), "), not ", shape_text(x.sizes()));
  at::DimVector wanted(x.sizes());
  wanted.back() = cols();
  TORCH_CHECK(g.sizes() == wanted, "[lacewing.", op, "] g must have shape ", shape_text(at::IntArrayRef(wanted)),
              " beside x of shape ", shape_text(x.sizes()), ", not ", shape_text(g.sizes()));
  check_same_dtype(op, "x", x, "g", g);
  const auto last = [](const at::Tensor& t) { return (t.dim() == 1 ? t.unsqueeze(0) : t).t().contiguous(); };
  return sparse_inner(last(x), last(g), state_->sampled);
}

namespace {

/// t[k] * y[index k] by the engine's mul; a y without states is expanded over them, without a copy.
at::Tensor times(const char* op, const at::Tensor& y, const at::Tensor& t, const SparseProductInfo& info,
                 std::int64_t nse, std::int64_t positions) {
  // The entries lie in the last dim of t, or in the one before where y or t has states.
  const auto fits = [&](std::int64_t lead, std::int64_t trail) {
    return t.dim() == lead + 1 + trail && t.size(lead) == nse && y.dim() > lead && y.dim() <= t.dim() &&
           y.size(lead) == positions && (lead == 0 || y.size(0) == t.size(0)) &&
           (y.dim() == lead + 1 || y.size(lead + 1) == t.size(lead + 1));
  };
  for (const std::int64_t trail : {0, 1}) {
    for (const std::int64_t lead : {0, 1}) {
      if (!fits(lead, trail)) {
        continue;
      }
      check_same_dtype(op, "y", y, "the trace", t);
      const at::Tensor states = trail == 1 ? t : t.unsqueeze(-1);
      const at::Tensor factor = y.dim() == lead + 2 ? y : y.unsqueeze(-1).expand_symint([&] {
        c10::SymDimVector sizes(y.sym_sizes());
        sizes.push_back(states.sym_size(-1));
        return sizes;
      }());
      const at::Tensor out = sparse_mul(factor, states, info);
      return trail == 1 ? out : out.squeeze(-1);
    }
  }
  TORCH_CHECK(false, "[lacewing.", op, "] y of shape ", shape_text(y.sizes()), " and a trace of shape ",
              shape_text(t.sizes()), " do not fit: expected ([B, ]", positions, "[, S]) and ([B, ]", nse, "[, S])");
}

}  // namespace

at::Tensor SparsePattern::yw_to_w(const at::Tensor& y, const at::Tensor& t) const {
  return times("etp.yw_to_w", y, t, state_->times_row, nse(), rows());
}

at::Tensor SparsePattern::yw_to_w_transposed(const at::Tensor& y, const at::Tensor& t) const {
  return times("etp.yw_to_w_transposed", y, t, state_->times_col, nse(), cols());
}

at::Tensor SparseMatrix::to_dense() const {
  return at::zeros({pattern.rows(), pattern.cols()}, data.options())
      .index_put({pattern.row(), pattern.col()}, data, /*accumulate=*/true);
}

at::Tensor sparse_matmul(const at::Tensor& x, const at::Tensor& values, const SparsePattern& pattern,
                         const std::optional<at::Tensor>& bias) {
  const at::Tensor y = pattern.matmul(x, values);
  if (!bias) {
    return y;
  }
  check_bias("etp.sparse_matmul", *bias, pattern.cols(), values);
  return y + *bias;
}

}  // namespace lacewing::etp
