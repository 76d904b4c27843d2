// The seven products as data, random terms, and an oracle of them made of torch's own index_select, einsum and
// index_add in double: differentiable to any order by torch, and by nothing of this library.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <gtest/gtest.h>

#include <lacewing/backend.h>
#include <lacewing/product.h>

namespace lacewing::test {

/// So many of torch's threads, in its scope.
struct ThreadCount {
  explicit ThreadCount(int wanted) : before(at::get_num_threads()) { at::set_num_threads(wanted); }
  ~ThreadCount() { at::set_num_threads(before); }
  int before;
};

inline constexpr at::ScalarType kDtypes[] = {at::kHalf,   at::kBFloat16,     at::kFloat,
                                             at::kDouble, at::kComplexFloat, at::kComplexDouble};

inline at::Tensor numbers(std::initializer_list<double> values, at::IntArrayRef shape) {
  return at::tensor(values, at::kDouble).reshape(shape);
}

using Fields = SparseProductInfo::Fields;
using Tensors = std::vector<at::Tensor>;

struct Op {
  const char* name;
  decltype(ProductFunctions::apply) apply;
  const char* raw_name;
  decltype(ProductFunctions::raw) raw;
  std::string x, y, z;  ///< channel letters of the operands

  std::string einsum() const { return "nk" + x + ",nk" + y + "->nk" + z; }
};

inline constexpr int kOps = static_cast<int>(std::size(kProductFunctions));

inline const std::vector<Op>& ops() {
  static const std::vector<Op> all = [] {
    std::vector<Op> made;
    for (const ProductFunctions& p : kProductFunctions) {
      made.push_back({p.name, p.apply, p.raw_name, p.raw, p.x, p.y, p.z});
    }
    return made;
  }();
  return all;
}

inline at::Tensor index_of(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

inline std::vector<std::int64_t> list_of(const std::optional<at::Tensor>& index) {
  if (!index) {
    return {};
  }
  const at::Tensor host = index->to(at::kLong).contiguous();
  return {host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel()};
}

struct Extents {
  std::int64_t a = 4;
  std::int64_t b = 3;
};

/// ([N], rows, channels) for these channel letters; n < 0: shared.
inline std::vector<std::int64_t> shape_of(const std::string& letters, std::int64_t n, std::int64_t rows,
                                          Extents extents) {
  std::vector<std::int64_t> shape;
  if (n >= 0) {
    shape.push_back(n);
  }
  shape.push_back(rows);
  for (const char letter : letters) {
    shape.push_back(letter == 'a' ? extents.a : extents.b);
  }
  return shape;
}

inline at::Tensor random(const std::vector<std::int64_t>& shape, at::ScalarType type) {
  const at::ScalarType made = c10::isComplexType(type) ? at::kComplexDouble : at::kDouble;
  return at::randn(shape, made).to(type);
}

inline at::ScalarType oracle_type(const at::Tensor& x, const at::Tensor& y) {
  return x.is_complex() || y.is_complex() ? at::kComplexDouble : at::kDouble;
}

/// The terms of fields, one list for each role.
struct TermLists {
  std::vector<std::int64_t> entry, first, second, row;
  std::int64_t rows = 0;
};

inline TermLists terms_of(const Fields& f, std::int64_t rows_of_inputs) {
  const auto at = [](const std::vector<std::int64_t>& list, bool present, std::int64_t i) {
    return present ? list[static_cast<std::size_t>(i)] : i;
  };
  const auto index1 = list_of(f.index1);
  const auto index2 = list_of(f.index2);
  const auto segments = list_of(f.seg_out);
  const auto gather = list_of(f.gather_index);
  const auto out = list_of(f.index_out);
  std::int64_t length = 0;
  if (f.gather_index) {
    length = f.gather_index->numel();
  } else if (f.scale || f.index1 || f.index2) {
    length = (f.scale ? *f.scale : f.index1 ? *f.index1 : *f.index2).numel();
  } else if (f.seg_out) {
    length = segments.back();
  } else if (f.index_out) {
    length = f.index_out->numel();
  } else {
    length = rows_of_inputs;
  }
  const std::int64_t count = f.seg_out ? f.seg_out->numel() - 1 : length;
  TermLists terms;
  terms.rows = f.out_size.value_or(count);
  for (std::int64_t segment = 0; segment < count; ++segment) {
    const std::int64_t end = f.seg_out ? segments[static_cast<std::size_t>(segment) + 1] : segment + 1;
    for (std::int64_t k = at(segments, f.seg_out.has_value(), segment); k < end; ++k) {
      const std::int64_t t = at(gather, f.gather_index.has_value(), k);
      terms.entry.push_back(t);
      terms.first.push_back(at(index1, f.index1.has_value(), t));
      terms.second.push_back(at(index2, f.index2.has_value(), t));
      terms.row.push_back(at(out, f.index_out.has_value(), segment));
    }
  }
  return terms;
}

inline at::Tensor oracle(const Op& op, const at::Tensor& x, const at::Tensor& y, const Fields& f, bool accumulated) {
  const at::ScalarType type = oracle_type(x, y);
  const bool shared_x = x.dim() == 1 + static_cast<std::int64_t>(op.x.size());
  const bool shared_y = y.dim() == 1 + static_cast<std::int64_t>(op.y.size());
  const std::int64_t n = !shared_x ? x.size(0) : !shared_y ? y.size(0) : 1;
  const TermLists terms = terms_of(f, x.size(shared_x ? 0 : 1));
  const auto batch = [&](const at::Tensor& tensor, bool shared) {
    std::vector<std::int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
    if (shared) {
      sizes.insert(sizes.begin(), n);
    }
    return tensor.to(type).expand(sizes);
  };
  const at::Tensor xt = batch(x, shared_x).index_select(1, index_of(terms.first));
  const at::Tensor yt = batch(y, shared_y).index_select(1, index_of(terms.second));
  at::Tensor product = at::einsum(op.einsum(), {xt, yt});
  if (f.scale) {
    std::vector<std::int64_t> along(static_cast<std::size_t>(product.dim()), 1);
    along[1] = -1;
    product = product * f.scale->to(type).index_select(0, index_of(terms.entry)).view(along);
  }
  std::vector<std::int64_t> sizes(product.sizes().begin(), product.sizes().end());
  sizes[1] = terms.rows;
  at::Tensor z = at::zeros(sizes, type).index_add(1, index_of(terms.row), product);
  if (accumulated) {
    return z.sum(0);
  }
  return shared_x && shared_y ? z.squeeze(0) : z;
}

/// The largest difference, as a fraction of the largest value expected.
inline testing::AssertionResult close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  const bool no_found = !found.defined();
  const bool no_expected = !expected.defined();
  if (no_found || no_expected) {
    // An absent gradient is a zero one.
    const at::Tensor& other = no_found ? expected : found;
    return !other.defined() || other.numel() == 0 || other.abs().max().item<double>() == 0
               ? testing::AssertionSuccess()
               : testing::AssertionFailure() << (no_found ? "no tensor was found" : "none was expected");
  }
  if (found.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "shape " << found.sizes() << " instead of " << expected.sizes();
  }
  if (found.numel() == 0) {
    return testing::AssertionSuccess();
  }
  const at::Tensor wide = found.detach().to(expected.scalar_type());
  const double difference = (wide - expected.detach()).abs().max().item<double>();
  const double largest = expected.detach().abs().max().item<double>();
  // Written so that a NaN fails.
  if (difference <= tolerance * (largest > 0 ? largest : 1)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "differs by " << difference << ", the largest value is " << largest;
}

inline double tolerance_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return 1e-3;
    case at::kBFloat16: return 8e-3;
    case at::kFloat:
    case at::kComplexFloat: return 1e-5;
    default: return 1e-13;
  }
}

/// For gradients, which are sums of several roundings.
inline double gradient_tolerance(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return 8e-3;
    case at::kBFloat16: return 6e-2;
    case at::kFloat:
    case at::kComplexFloat: return 1e-4;
    default: return 1e-12;
  }
}

inline at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }

inline Tensors gradients(const at::Tensor& value, const Tensors& inputs, const at::Tensor& upstream = {},
                         bool create_graph = false) {
  const Tensors upstreams = upstream.defined() ? Tensors{upstream} : Tensors{};
  return torch::autograd::grad({value}, inputs, upstreams, /*retain_graph=*/true, create_graph, /*allow_unused=*/true);
}

/// A real number that depends on every defined tensor, with fixed weights.
inline at::Tensor weighted_sum(const Tensors& tensors, const Tensors& weights) {
  at::Tensor total;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && tensors[i].requires_grad()) {
      at::Tensor term = (tensors[i] * weights[i].to(tensors[i].scalar_type())).sum();
      term = term.is_complex() ? at::real(term) : term;
      total = total.defined() ? total + term.to(at::kDouble) : term.to(at::kDouble);
    }
  }
  return total;
}

/// The value, the gradients of x, y and scale, and the second derivatives (Hessian-vector products and cross terms, by
/// x, y, scale and the upstream gradient), all compared with the oracle.
inline testing::AssertionResult all_orders_agree(const Op& op, const at::Tensor& x0, const at::Tensor& y0,
                                                 const Fields& fields, bool accumulated, const OptionalInfo& bwd1 = {},
                                                 const OptionalInfo& bwd2 = {}) {
  struct Run {
    at::Tensor z;
    Tensors first, second;
  };
  Tensors weights;
  at::Tensor upstream;
  const auto run = [&](bool ours) {
    const auto wide = [&](const at::Tensor& t) {
      return ours ? t : t.to(t.is_complex() ? at::kComplexDouble : at::kDouble);
    };
    Tensors inputs{leaf(wide(x0)), leaf(wide(y0))};
    Fields f = fields;
    if (f.scale) {
      inputs.push_back(leaf(wide(*f.scale)));
      f.scale = inputs.back();
    }
    Run r;
    r.z = ours ? op.apply(inputs[0], inputs[1], SparseProductInfo(f), bwd1, bwd2, accumulated)
               : oracle(op, inputs[0], inputs[1], f, accumulated);
    if (!upstream.defined()) {
      upstream = random({r.z.sizes().begin(), r.z.sizes().end()}, r.z.scalar_type());
    }
    Tensors all = inputs;
    all.push_back(leaf(wide(upstream)));
    r.first = gradients(r.z, inputs, all.back(), /*create_graph=*/true);
    if (weights.empty()) {
      for (const at::Tensor& input : inputs) {
        weights.push_back(random({input.sizes().begin(), input.sizes().end()}, input.scalar_type()));
      }
    }
    Tensors wide_weights;
    for (const at::Tensor& weight : weights) {
      wide_weights.push_back(wide(weight));
    }
    const at::Tensor total = weighted_sum(r.first, wide_weights);
    r.second = total.defined() ? gradients(total, all) : Tensors(all.size());
    return r;
  };
  const Run ours = run(true);
  const Run expected = run(false);
  if (auto result = close(ours.z, expected.z, tolerance_of(ours.z.scalar_type())); !result) {
    return result << " (value)";
  }
  static constexpr std::array names{"input1", "input2", "scale", "upstream"};
  for (std::size_t i = 0; i < ours.first.size(); ++i) {
    const at::Tensor& input = i == 0 ? x0 : i == 1 ? y0 : *fields.scale;
    if (ours.first[i].defined() && ours.first[i].scalar_type() != input.scalar_type()) {
      return testing::AssertionFailure() << "the gradient of " << names[i] << " has dtype "
                                         << ours.first[i].scalar_type();
    }
    if (auto result = close(ours.first[i], expected.first[i], gradient_tolerance(input.scalar_type())); !result) {
      return result << " (gradient of " << names[i] << ")";
    }
  }
  for (std::size_t i = 0; i < ours.second.size(); ++i) {
    const std::size_t name = i + 1 == ours.second.size() ? 3 : i;
    const double tolerance = std::max(gradient_tolerance(x0.scalar_type()), gradient_tolerance(y0.scalar_type()));
    if (auto result = close(ours.second[i], expected.second[i], tolerance); !result) {
      return result << " (second derivative by " << names[name] << ")";
    }
  }
  return testing::AssertionSuccess();
}

/// Random triples with duplicates, an empty output at the start and gaps.
struct RandomTriples {
  std::int64_t in1 = 9, in2 = 8, out = 10;
  at::Tensor index1, index2, index, scale;

  RandomTriples(std::int64_t count, at::ScalarType type) {
    index1 = at::randint(0, in1, {count}, at::kLong);
    index2 = at::randint(0, in2, {count}, at::kLong);
    index = at::randint(1, out - 1, {count}, at::kLong);
    scale = random({count}, type);
  }
  SparseProductInfos infos() const { return sparse_product_infos(index1, index2, index, scale, out, in1, in2); }
  /// The same terms, sorted, for the oracle.
  Fields fields() const { return infos().fwd.fields(); }
};

/// The same numbers in other memory.
inline Tensors in_other_layouts(const at::Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  const at::Tensor doubled = at::stack({tensor, tensor + 1}, last + 1).select(last + 1, 0);
  const at::Tensor turned = tensor.transpose(0, last).contiguous().transpose(0, last);
  const at::Tensor padded = at::cat({tensor, tensor}, 0).narrow(0, 0, tensor.size(0));
  Tensors layouts{doubled, turned, padded};
  if (last >= 1) {
    layouts.push_back(tensor.transpose(-1, -2).contiguous().transpose(-1, -2));
  }
  if (tensor.is_complex()) {
    layouts.push_back(tensor.conj().resolve_conj().conj());
  } else if (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble) {
    // The imaginary part of a conjugate: read with its sign turned.
    layouts.push_back(at::imag(at::complex(at::zeros_like(tensor), -tensor).conj()));
  }
  return layouts;
}

/// One value along a dim, as expand makes it.
inline Tensors expanded(const at::Tensor& tensor) {
  Tensors views;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    views.push_back(tensor.narrow(dim, 0, 1).expand(tensor.sizes()));
  }
  views.push_back(at::ones({}, tensor.scalar_type()).expand(tensor.sizes()));
  return views;
}

inline std::string message_of(auto&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace lacewing::test
