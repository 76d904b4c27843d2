// The seven sparse products and sparse scale, differentiable to any order.
//
// All take ([N], M1, ...) and ([N], M2, ...) operands: one without N is shared by all n. out_accumulated also sums over
// n and drops N from the output. The three infos may be given as one SparseProductInfos. dtype: at::result_type(input1,
// input2); half types accumulate in float. Gradients flow to both inputs and to the scale of info_fwd; backward infos
// that are not given are derived once and kept on info_fwd. Each allocates the output and at most the workspace that
// workspace_bytes tells, reads nothing back to the host, and gives the same bits for every run and number of threads.
// Threads may call every function here at once and share infos. Errors are c10::Error with one sentence.
#pragma once

#include <string>

#include <lacewing/info.h>

namespace lacewing {

using OptionalInfo = std::optional<SparseProductInfo>;

/// The product of that name ("sparse_mul", ...). The functions below are this one.
LACEWING_API at::Tensor sparse_product(const char* op, const at::Tensor& input1, const at::Tensor& input2,
                                       const SparseProductInfo& info_fwd, const OptionalInfo& info_bwd1 = {},
                                       const OptionalInfo& info_bwd2 = {}, bool out_accumulated = false);

/// Its raw form ("indexed_mul_scale_gather" for "sparse_mul"): fields instead of infos, checked in every call; no
/// gradient, and inputs that require one are refused.
LACEWING_API at::Tensor indexed_product(const char* op, const at::Tensor& input1, const at::Tensor& input2,
                                        const SparseProductInfo::Fields& fields, bool out_accumulated = false);

/// z[n,M,c] = s[t] x[n,i1[t],c] y[n,i2[t],c]: (N,M1,C), (N,M2,C) -> (N,M,C)
inline at::Tensor sparse_mul(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                             const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                             bool out_accumulated = false) {
  return sparse_product("sparse_mul", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_mul(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                             bool out_accumulated = false) {
  return sparse_product("sparse_mul", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_mul_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                           const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_mul", input1, input2, fields, out_accumulated);
}

/// z[n,M,a,b] = s[t] x[n,i1[t],a] y[n,i2[t],b]: (N,M1,C1), (N,M2,C2) -> (N,M,C1,C2)
inline at::Tensor sparse_outer(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                               const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                               bool out_accumulated = false) {
  return sparse_product("sparse_outer", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_outer(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                               bool out_accumulated = false) {
  return sparse_product("sparse_outer", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_outer_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                             const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_outer", input1, input2, fields, out_accumulated);
}

/// z[n,M] = s[t] sum_c x[n,i1[t],c] y[n,i2[t],c]: (N,M1,C), (N,M2,C) -> (N,M)
inline at::Tensor sparse_inner(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                               const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                               bool out_accumulated = false) {
  return sparse_product("sparse_inner", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_inner(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                               bool out_accumulated = false) {
  return sparse_product("sparse_inner", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_inner_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                             const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_inner", input1, input2, fields, out_accumulated);
}

/// z[n,M,b] = s[t] sum_a x[n,i1[t],a] y[n,i2[t],a,b]: (N,M1,Ci), (N,M2,Ci,Co) -> (N,M,Co)
inline at::Tensor sparse_vecmat(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                                const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                                bool out_accumulated = false) {
  return sparse_product("sparse_vecmat", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_vecmat(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                                bool out_accumulated = false) {
  return sparse_product("sparse_vecmat", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_vecmat_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                              const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_vecmat", input1, input2, fields, out_accumulated);
}

/// z[n,M,c] = s[t] x[n,i1[t],c] y[n,i2[t]]: (N,M1,C), (N,M2) -> (N,M,C)
inline at::Tensor sparse_vecsca(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                                const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                                bool out_accumulated = false) {
  return sparse_product("sparse_vecsca", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_vecsca(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                                bool out_accumulated = false) {
  return sparse_product("sparse_vecsca", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_vecsca_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                              const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_vecsca", input1, input2, fields, out_accumulated);
}

/// z[n,M,c] = s[t] x[n,i1[t]] y[n,i2[t],c]: (N,M1), (N,M2,C) -> (N,M,C)
inline at::Tensor sparse_scavec(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfo& info_fwd,
                                const OptionalInfo& info_bwd1 = {}, const OptionalInfo& info_bwd2 = {},
                                bool out_accumulated = false) {
  return sparse_product("sparse_scavec", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_scavec(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                                bool out_accumulated = false) {
  return sparse_product("sparse_scavec", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_scavec_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                              const SparseProductInfo::Fields& fields, bool out_accumulated = false) {
  return indexed_product("sparse_scavec", input1, input2, fields, out_accumulated);
}

/// z[n,M,b] = s[t] sum_a x[n,i1[t],a,b] y[n,i2[t],a]: (N,M1,Ci,Co), (N,M2,Ci) -> (N,M,Co)
inline at::Tensor sparse_mat_t_vec(const at::Tensor& input1, const at::Tensor& input2,
                                   const SparseProductInfo& info_fwd, const OptionalInfo& info_bwd1 = {},
                                   const OptionalInfo& info_bwd2 = {}, bool out_accumulated = false) {
  return sparse_product("sparse_mat_t_vec", input1, input2, info_fwd, info_bwd1, info_bwd2, out_accumulated);
}
inline at::Tensor sparse_mat_t_vec(const at::Tensor& input1, const at::Tensor& input2, const SparseProductInfos& infos,
                                   bool out_accumulated = false) {
  return sparse_product("sparse_mat_t_vec", input1, input2, infos.fwd, infos.bwd1, infos.bwd2, out_accumulated);
}
inline at::Tensor indexed_mat_t_vec_scale_gather(const at::Tensor& input1, const at::Tensor& input2,
                                                 const SparseProductInfo::Fields& fields,
                                                 bool out_accumulated = false) {
  return indexed_product("sparse_mat_t_vec", input1, input2, fields, out_accumulated);
}

/// A product, its raw form, and the channels of its operands as letters: x[a] y[ab] z[b] for vecmat.
struct ProductFunctions {
  const char* name;
  at::Tensor (*apply)(const at::Tensor&, const at::Tensor&, const SparseProductInfo&, const OptionalInfo&,
                      const OptionalInfo&, bool);
  const char* raw_name;
  at::Tensor (*raw)(const at::Tensor&, const at::Tensor&, const SparseProductInfo::Fields&, bool);
  const char* x;
  const char* y;
  const char* z;
};

/// Every product, for code that goes through all of them.
inline constexpr ProductFunctions kProductFunctions[] = {
    {"sparse_mul", sparse_mul, "indexed_mul_scale_gather", indexed_mul_scale_gather, "a", "a", "a"},
    {"sparse_outer", sparse_outer, "indexed_outer_scale_gather", indexed_outer_scale_gather, "a", "b", "ab"},
    {"sparse_inner", sparse_inner, "indexed_inner_scale_gather", indexed_inner_scale_gather, "a", "a", ""},
    {"sparse_vecmat", sparse_vecmat, "indexed_vecmat_scale_gather", indexed_vecmat_scale_gather, "a", "ab", "b"},
    {"sparse_vecsca", sparse_vecsca, "indexed_vecsca_scale_gather", indexed_vecsca_scale_gather, "a", "", "a"},
    {"sparse_scavec", sparse_scavec, "indexed_scavec_scale_gather", indexed_scavec_scale_gather, "", "a", "a"},
    {"sparse_mat_t_vec", sparse_mat_t_vec, "indexed_mat_t_vec_scale_gather", indexed_mat_t_vec_scale_gather, "ab", "a",
     "b"},
};

/// out[...,m,c] = sum for t in segment m of scale[t] * input[...,index[t],c]: (..., M_in, C) -> (..., out_size, C)
LACEWING_API at::Tensor sparse_scale(const at::Tensor& input, const SparseScaleInfo& info_fwd,
                                     const std::optional<SparseScaleInfo>& info_bwd = {});
inline at::Tensor sparse_scale(const at::Tensor& input, const SparseScaleInfos& infos) {
  return sparse_scale(input, infos.fwd, infos.bwd);
}

/// Its raw form; seg_out must have out_size + 1 entries.
LACEWING_API at::Tensor indexed_scale_segment(const at::Tensor& input, const SparseScaleInfo::Fields& fields);
/// The same into `out`, which is overwritten, never added to, and must share no memory with the input.
LACEWING_API at::Tensor& indexed_scale_segment_out(at::Tensor& out, const at::Tensor& input,
                                                   const SparseScaleInfo::Fields& fields);

/// The bytes that a product ("sparse_mul", ..., "sparse_scale" with input2 undefined) allocates beside its output, for
/// operands of these shapes, strides and one dtype, with the current number of threads.
LACEWING_API std::int64_t workspace_bytes(const std::string& op, const at::Tensor& input1, const at::Tensor& input2,
                                          const InfoPlan& plan, bool out_accumulated = false);

}  // namespace lacewing
