// Compressed patterns: the arrays of GCRS and GCCS, made from the indices or the indices from them.
#include "structure/compressed.h"

#include <algorithm>

#include <ATen/core/Tensor.h>

#include <lacewing/dispatch/torch.h>

#include "common/results.h"
#include "index/keys.h"
#include "tensor/construct.h"
#include "tensor/densify.h"
#include "tensor/pattern.h"

namespace lacewing::tensor {
void check_starts(const char* op, const at::Tensor& starts, std::int64_t nse) {
  if (starts.is_meta()) {
    return;
  }
  const std::int64_t rows = starts.numel() - 1;
  const at::Tensor host = starts.to(at::kCPU, at::kLong).contiguous();
  const std::int64_t* const data = host.const_data_ptr<std::int64_t>();
  const std::int64_t bad = structure::first_bad_start(data, rows, nse);
  TORCH_CHECK(bad < 0, "[lacewing.", op, "] compressed_indices[", bad, "] = ", data[bad],
              bad == 0      ? " must be 0"
              : bad == rows ? " must be the number of entries, " + std::to_string(nse)
                            : " must lie between the one before it and the number of entries, " + std::to_string(nse));
}

Dims Layout::order() const {
  Dims dims = major();
  dims.insert(dims.end(), minor().begin(), minor().end());
  return dims;
}

PatternPtr Pattern::compressed(Layout layout, at::Tensor starts, at::Tensor minor, Dims sizes) {
  auto* const made = new Pattern(minor.numel(), minor.device(), std::move(sizes), /*coalesced=*/false);
  const PatternPtr pattern(made);
  made->layout_ = std::move(layout);
  made->starts_ = std::move(starts);
  made->minor_ = std::move(minor);
  return pattern;
}

PatternPtr Pattern::with_layout(std::optional<Layout> layout, bool distinct) const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  auto* const made = new Pattern(nse_, device_, sizes_, coalesced_);
  const PatternPtr pattern(made);
  made->indices_ = indices();
  made->keys_ = keys_;
  made->layout_ = std::move(layout);
  made->distinct_ = distinct || distinct_;
  return pattern;
}

PatternPtr Pattern::permuted(const Dims& order) const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  auto* const made = new Pattern(nse_, device_, sizes_at(sizes_, order), /*coalesced=*/false);
  const PatternPtr pattern(made);
  made->distinct_ = find_coalesced() || distinct_;
  if (indices_.defined() || !minor_.defined()) {
    made->turned_ = indices();
    made->turned_rows_ = order;
    made->turned_in_order_ = coalesced_;
  }
  if (layout_) {
    const auto place = [&](const Dims& dims) {
      Dims places;
      for (const std::int64_t d : dims) {
        places.push_back(std::find(order.begin(), order.end(), d) - order.begin());
      }
      return places;
    };
    // The arrays are those of a matrix and of its transpose: the one whose rows hold the first dim names the format.
    Dims major = place(layout_->major());
    Dims minor = place(layout_->minor());
    const bool by_column = std::find(minor.begin(), minor.end(), 0) != minor.end();
    made->layout_ = by_column ? Layout{std::move(minor), std::move(major), true}
                              : Layout{std::move(major), std::move(minor), false};
    made->starts_ = starts_;
    made->minor_ = minor_;
    made->major_ = major_;
  }
  return pattern;
}

const at::Tensor& Pattern::indices() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  if (!indices_.defined() && turned_.defined()) {
    const at::Tensor& turned = turned_.get();
    const auto indices = empty_result({dim(), nse_}, turned.options());
    for (std::int64_t d = 0; d < dim(); ++d) {
      indices.select(0, d).copy_(turned.select(0, turned_rows_[at(d)]));
    }
    indices_ = indices;
    turned_ = {};
  }
  if (!indices_.defined() && !minor_.defined()) {
    indices_ = index::unravel_keys(keys_, sizes_);
  }
  if (!indices_.defined()) {
    const auto indices = empty_result({dim(), nse_}, minor_.get().options().dtype(at::kLong));
    const auto write = [&](const at::Tensor& reduced, const Dims& dims) {
      const auto rows = index::unravel_keys(reduced, sizes_at(sizes_, dims));
      for (std::size_t k = 0; k < dims.size(); ++k) {
        indices.select(0, dims[k]).copy_(rows.select(0, static_cast<std::int64_t>(k)));
      }
    };
    if (!major_.defined()) {
      check_starts("SparseTensor", starts_, nse_);
    }
    write(major_.defined() ? major_ : index::rows_of_entries(starts_.to(at::kLong), nse_), layout_->major());
    write(minor_.get().to(at::kLong), layout_->minor());
    indices_ = indices;
  }
  return indices_.get();
}

const at::Tensor& Pattern::starts() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  if (!starts_.defined()) {
    const std::int64_t rows = product_of(sizes_at(sizes_, layout_->major()));
    check_dense_result("compressed_indices", {rows + 1}, at::kLong);
    starts_ = index::row_starts(reduced(layout_->major()), rows);
  }
  return starts_;
}

const at::Tensor& Pattern::minor() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  if (!minor_.defined()) {
    minor_ = reduced(layout_->minor());
  }
  return minor_.get();
}

bool Pattern::shares(const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const at::Tensor held[] = {indices_.unchecked(), turned_.unchecked(), starts_, minor_.unchecked()};
  return std::any_of(std::begin(held), std::end(held),
                     [&](const at::Tensor& t) { return t.defined() && tensor.is_alias_of(t); });
}

bool Pattern::known_distinct() const {
  const std::lock_guard lock(mutex_);
  check_unwritten();
  if (!distinct_ && !coalesced_ && !looked_ && layout_ && starts_.defined() && minor_.defined() && starts_.is_cpu()) {
    const at::Tensor starts = starts_.to(at::kLong).contiguous();
    check_starts("SparseTensor", starts, nse_);
    looked_ = true;
    const at::Tensor minor = minor_.get().to(at::kLong).contiguous();
    distinct_ = structure::rows_increase(starts.const_data_ptr<std::int64_t>(), minor.const_data_ptr<std::int64_t>(),
                                         starts.numel() - 1, torch_executor());
  }
  return distinct_ || coalesced_;
}

}  // namespace lacewing::tensor
