// The formula, as every backend takes it. Torch-free.
//
//   z[n, r, a, b] = sum over terms k of row r:  scale[k] * x[n, index1[k], a, b] * y[n, index2[k], a, b]
//
// An operand that lacks a channel index (a or b) has stride 0 there, and an operand that is shared over n has
// stride_n = 0; channel indices that z lacks are summed. So the seven products are seven stride patterns.
#pragma once

#include <cstdint>

#include <lacewing/dispatch/scalar.h>
#include <lacewing/executor.h>

namespace lacewing::kernels {

/// Element (n, m, a, b) lies at data + n*stride_n + m*stride_m + a*stride_a + b*stride_b, in elements.
struct Operand {
  const void* data = nullptr;  ///< null: absent, the constant 1
  std::int64_t stride_n = 0;
  std::int64_t stride_m = 0;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t rows = 0;  ///< how many m there are
  bool conjugate = false;
};

/// Which channel indices x, y and z have. The two products not named here are two of these with the operands
/// exchanged: scavec is vecsca, mat_t_vec is vecmat. With y absent, vecsca is sparse scale.
enum class Pattern : std::uint8_t {
  mul,     ///< x[a] y[a] z[a]
  outer,   ///< x[a] y[b] z[a,b]
  inner,   ///< x[a] y[a] z[]
  vecmat,  ///< x[a] y[a,b] z[b]
  vecsca,  ///< x[a] y[] z[a]
};

/// The terms of a product, grouped by output row. Each array may be null, which means the identity.
struct Terms {
  const void* segments = nullptr;          ///< (rows + 1): terms [segments[r], segments[r+1]) belong to row r
  const void* index1 = nullptr;            ///< (terms): row of x
  const void* index2 = nullptr;            ///< (terms): row of y
  const void* order = nullptr;             ///< (terms): entry of scale
  const void* inverse_segments = nullptr;  ///< (entries + 1): where entries repeat, the terms of each entry
  const void* inverse_terms = nullptr;     ///< (terms)
  bool wide = false;                       ///< the arrays hold int64 instead of int32
  std::int64_t rows = 0;                   ///< rows of the output
  std::int64_t terms = 0;
  std::int64_t entries = 0;         ///< length of scale
  const void* by_index1 = nullptr;  ///< (terms): terms sorted by (index1, row); null where the plan has no groups
  const void* by_index2 = nullptr;  ///< (terms): terms sorted by (index2, row)
  bool mirrored = false;            ///< inside a row the terms run over index2 first, not index1
};

/// A product. `accumulate` also sums over n; then z has no n.
struct ProductArgs {
  ScalarType type = ScalarType::f32;  ///< of x, y, z and scale
  Pattern pattern = Pattern::mul;
  Operand x;
  Operand y;
  Operand z;                    ///< written, never read before; contiguous in its own channel indices, not conjugated
  const void* scale = nullptr;  ///< (entries), contiguous; null means 1
  bool conjugate_scale = false;
  Terms terms;
  std::int64_t batch = 1;
  std::int64_t extent_a = 1;
  std::int64_t extent_b = 1;
  bool accumulate = false;

  void* output() const { return const_cast<void*>(z.data); }
};

/// The derivative for scale: out[e] = sum over n, a, b and the terms k of entry e of conj(x * y) * z, where z (the
/// upstream gradient) is read. scale and accumulate are unused.
struct ScaleGradArgs {
  ProductArgs product;
  void* out = nullptr;  ///< (entries), contiguous, of the product's type
};

namespace reference {
void product(const ProductArgs& args);
void scale_grad(const ScaleGradArgs& args);
}  // namespace reference

namespace cpu {
/// Bytes of workspace that the call below needs with so many threads; 0 in the common case.
std::int64_t product_workspace(const ProductArgs& args, int threads);
std::int64_t scale_grad_workspace(const ScaleGradArgs& args, int threads);
void product(const ProductArgs& args, const CpuExecutor& executor, void* workspace);
void scale_grad(const ScaleGradArgs& args, const CpuExecutor& executor, void* workspace);
}  // namespace cpu

namespace cuda {
std::int64_t product_workspace(const ProductArgs& args);
std::int64_t scale_grad_workspace(const ScaleGradArgs& args);
void product(const ProductArgs& args, const CudaExecutor& executor, void* workspace);
void scale_grad(const ScaleGradArgs& args, const CudaExecutor& executor, void* workspace);
}  // namespace cuda

}  // namespace lacewing::kernels
