// The TensorImpl of a sparse tensor, and its components.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>

#include <lacewing/tensor.h>

#include "tensor/pattern.h"

namespace lacewing::tensor {

/// The dispatch key of sparse tensors. It lies in front of autograd, so that gradients flow to the components, and
/// nothing in torch uses it; claim_key() says where somebody else does.
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

/// What code says that reads a tensor's memory and is no op of torch's, such as torch.cuda.jiterator's kernels.
inline constexpr const char* kNoMemory =
    "[lacewing.SparseTensor] a sparse tensor has no memory of its own elements: give values() or to_dense() to code "
    "that reads memory";

/// What a sparse tensor is made of.
struct Components {
  PatternPtr pattern;
  at::Tensor values;  ///< (nse, *dense shape)
  Fill fill;          ///< its value is defined unless the kind is undefined

  Dims shape() const;
  std::int64_t dim() const { return pattern->dim() + dense_dim(); }
  std::int64_t sparse_dim() const { return pattern->dim(); }
  std::int64_t dense_dim() const { return values.dim() - 1; }
  at::IntArrayRef dense_shape() const { return values.sizes().slice(1); }
  bool has_fill() const { return fill.kind != FillKind::undefined; }

  /// The same pattern and kind of fill with other values.
  Components with(at::Tensor new_values, at::Tensor new_fill) const;
};

/// Coalesced components; the same where they are already.
Components coalesced(const Components& c);
/// The same where no two entries are known to have one index, in any order; else coalesced.
Components without_duplicates(const Components& c);
/// The same entries in a format (null: COO). Entries of a compressed one are sorted and distinct, but where they are in
/// that format already.
Components in_layout(const Components& c, const Layout* layout);
/// Entries sorted in the order of a format, duplicates added.
Components arranged(const Components& c, const Layout& layout);
/// Adds the rows of each group: (nse, *dense) -> (groups, *dense).
at::Tensor sum_groups(const at::Tensor& values, const Grouping& grouping);
/// Whether it has a tangent of forward mode.
bool has_tangent(const at::Tensor& t);
/// Whether a gradient of either mode is recorded for it now.
bool needs_grad(const at::Tensor& t);
/// The same, with a gradient that is 0 whatever comes back: 0 times an infinity is not.
at::Tensor without_gradient(const at::Tensor& t);
bool all_true(const at::Tensor& condition);
/// Whether every element is finite. A finite sum says so in one pass; a sum may overflow, and then they are looked at.
bool all_finite(const at::Tensor& t);
/// By one read.
bool all_finite(const std::vector<at::Tensor>& tensors);
/// A dtype that torch's index ops do not take: unsigned integers beyond uint8, and float8.
bool is_bare(at::ScalarType dtype);
/// Rows by number, of any dtype.
at::Tensor take_rows(const at::Tensor& values, const at::Tensor& rows);
/// Rows in the order of the groups.
at::Tensor in_order(const at::Tensor& values, const Grouping& grouping);

/// The fill as one row that broadcasts against values: (1, *dense) for an array, (1, 1, ...) for a scalar.
at::Tensor fill_row(const Components& c);
/// The fill over the dense shape.
at::Tensor fill_block(const Components& c);
/// A number as the fill beside such values, known to the host.
Fill known_fill(const at::Scalar& number, const at::Tensor& values);
/// Whether the fill is the constant 0: one number that no gradient is wanted for. Reads it where the host does not know
/// it.
bool zero_fill(const Components& c);
/// The fill of blocks that are moved: an array is, other fills stay.
Fill fill_for(const Components& c, const std::function<at::Tensor(const at::Tensor&)>& move);
/// The number that a scalar fill is.
at::Scalar fill_number(const Components& c);

/// The strided tensor of components with a fill.
at::Tensor densified(const Components& c);

/// Whether a kernel may read the memory of a component without torch: no derivative of any kind is wanted, and the
/// numbers are what is stored.
bool is_plain(const at::Tensor& component);
bool is_plain_on_host(const at::Tensor& component);

/// Throws where the storage of a component was freed behind it: torch's ops would read a null pointer.
void check_elements(const char* op, const char* argument, const at::Tensor& component);

/// Throws where calls are traced (make_fx, torch.export, torch.jit.trace) or made on fake tensors: index structures
/// are read and written as memory, and a trace would keep none of that.
void refuse_tracing();
/// The same, and where a tensor belongs to a torch.func transform: gradients to components do not pass through its
/// wrappers.
void refuse_transforms(const char* what, const at::Tensor& tensor);

/// The only constructor of sparse tensors: checks that the components fit together.
at::Tensor make_tensor(Components c);

bool is_sparse(const at::Tensor& tensor);

/// A write that does not reach the sparse tensor that it is meant for. Inside a composite op it means: not to be
/// decomposed.
class InPlaceRefusal : public c10::Error {
 public:
  using c10::Error::Error;
};

/// Throws InPlaceRefusal, once, where a strided copy of the tensor or of a view of it has been written to.
const Components& components(const at::Tensor& tensor);
/// A result of a view op on a sparse tensor is a copy. Sparse: in-place ops on it are refused. Strided: torch lets
/// it be written to, so it is watched, and the next look at `base` refuses what was done.
void mark_view(const std::string& op, const at::Tensor& result, const at::Tensor& base);
bool is_view(const at::Tensor& tensor);
/// The tensor that a view in another shape (view, reshape) is of, to which writes to the view go on: as long as it was
/// not written to itself, and no other view of it is held, which would not see them. Undefined for other tensors.
at::Tensor reshaped_from(const at::Tensor& tensor);
/// Both were written to.
void follow_base(const at::Tensor& view);
/// For a result that has its elements in another order: contiguous() of such a strided view is a copy, not the view.
void mark_permuted(const at::Tensor& result);
bool is_permuted_view(const at::Tensor& tensor);
/// No longer watched: what was written to the copy is written to the tensor too.
void forget_copy(const at::Tensor& base, const at::Tensor& copy);
/// In-place ops: another set of components for the same tensor.
void replace_components(const at::Tensor& tensor, Components c);

/// Throws where the dispatch key belongs to somebody else.
void claim_key();

}  // namespace lacewing::tensor
