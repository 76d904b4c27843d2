// Problems for the torch-free kernels, and an oracle for them: plain loops in complex<double>, in scatter form.
#pragma once

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fenced.h"
#include "kernels/cpu/isa.h"
#include "kernels/product.h"

namespace lacewing::kernels::test {

using Number = std::complex<double>;

inline std::int64_t size_of(ScalarType type) {
  switch (type) {
    case ScalarType::f16:
    case ScalarType::bf16: return 2;
    case ScalarType::f32: return 4;
    case ScalarType::c128: return 16;
    default: return 8;
  }
}

inline bool is_complex(ScalarType type) { return type == ScalarType::c64 || type == ScalarType::c128; }

/// Elements of one type, read and written as complex doubles. All bytes are 0xff at first, which is a NaN in every
/// type: what a kernel reads but must not, or fails to write, shows in the result.
class Array {
 public:
  Array() = default;
  Array(ScalarType type, std::int64_t count, std::int64_t guard = 0)
      : type_(type), count_(count), bytes_(static_cast<std::size_t>((count + guard) * size_of(type)), 0xff) {}

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  std::int64_t count() const { return count_; }

  Number get(std::int64_t i) const {
    switch (type_) {
      case ScalarType::f16: return at<Half>(i).to_float();
      case ScalarType::bf16: return at<BFloat16>(i).to_float();
      case ScalarType::f32: return at<float>(i);
      case ScalarType::f64: return at<double>(i);
      case ScalarType::c64: return Number(at<Complex<float>>(i).re, at<Complex<float>>(i).im);
      default: return Number(at<Complex<double>>(i).re, at<Complex<double>>(i).im);
    }
  }
  void put(std::int64_t i, Number value) {
    const auto real = static_cast<float>(value.real());
    switch (type_) {
      case ScalarType::f16: return set(i, Half::from_float(real));
      case ScalarType::bf16: return set(i, BFloat16::from_float(real));
      case ScalarType::f32: return set(i, real);
      case ScalarType::f64: return set(i, value.real());
      case ScalarType::c64: return set(i, Complex<float>{real, static_cast<float>(value.imag())});
      default: return set(i, Complex<double>{value.real(), value.imag()});
    }
  }
  bool untouched(std::int64_t i) const {
    const auto* const begin = bytes_.data() + i * size_of(type_);
    return std::all_of(begin, begin + size_of(type_), [](unsigned char byte) { return byte == 0xff; });
  }
  bool guard_untouched() const {
    return std::all_of(bytes_.begin() + count_ * size_of(type_), bytes_.end(),
                       [](unsigned char byte) { return byte == 0xff; });
  }
  bool operator==(const Array& other) const { return bytes_ == other.bytes_; }

 private:
  template <typename T>
  T at(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <typename T>
  void set(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }

  ScalarType type_ = ScalarType::f32;
  std::int64_t count_ = 0;
  FencedVector<unsigned char> bytes_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::int64_t below(std::int64_t limit) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::int64_t>((state_ >> 33) % static_cast<std::uint64_t>(limit));
  }
  /// -3 to 3 without 0: sums of products of these are exact in every accumulate type.
  double integer() {
    const auto value = below(6);
    return static_cast<double>(value < 3 ? value - 3 : value - 2);
  }
  double real() { return static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0; }

 private:
  std::uint64_t state_;
};

/// The five patterns and sparse scale, which is vecsca without y.
enum class Form : int { mul, outer, inner, vecmat, vecsca, scale };
inline constexpr Form kForms[] = {Form::mul, Form::outer, Form::inner, Form::vecmat, Form::vecsca, Form::scale};
inline constexpr ScalarType kComplexTypes[] = {ScalarType::c64, ScalarType::c128};
inline constexpr ScalarType kTypes[] = {ScalarType::f16, ScalarType::bf16, ScalarType::f32,
                                        ScalarType::f64, ScalarType::c64,  ScalarType::c128};

inline Pattern pattern_of(Form form) {
  return form == Form::scale ? Pattern::vecsca : static_cast<Pattern>(static_cast<int>(form));
}
inline const char* name_of(Form form) {
  return std::array{"mul", "outer", "inner", "vecmat", "vecsca", "scale"}[static_cast<std::size_t>(form)];
}

/// Which channel indices an operand has.
struct Channels {
  bool a, b;
};
inline Channels channels_x(Form) { return {true, false}; }
inline Channels channels_y(Form form) {
  return {form == Form::mul || form == Form::inner || form == Form::vecmat,
          form == Form::outer || form == Form::vecmat};
}
inline Channels channels_z(Form form) {
  return {form != Form::inner && form != Form::vecmat, form == Form::outer || form == Form::vecmat};
}

/// How an operand lies in memory.
enum class Layout : int {
  plain,
  shared,      ///< the same for every n
  padded,      ///< unit stride in the channels, gaps between rows
  strided,     ///< no unit stride
  transposed,  ///< a matrix with unit stride in a, gaps between columns
  spread,      ///< stride 0 in the channels, as the gradient of a sum comes
  one_row,     ///< stride 0 in m
};
inline constexpr Layout kLayouts[] = {Layout::plain,      Layout::shared, Layout::padded, Layout::strided,
                                      Layout::transposed, Layout::spread, Layout::one_row};

struct Case {
  Form form = Form::mul;
  ScalarType type = ScalarType::f32;
  std::int64_t batch = 2;
  std::int64_t extent_a = 5;
  std::int64_t extent_b = 3;  ///< used where the form has b
  std::int64_t rows = 6;
  std::int64_t terms_per_row = 2;  ///< on average; rows differ, the first and others are empty
  std::int64_t source_rows = 4;    ///< of x, where it is indexed
  Layout x = Layout::plain;
  Layout y = Layout::plain;
  Layout z = Layout::plain;  ///< of the upstream gradient, for the gradient of scale; plain or padded as an output
  bool conjugate_x = false;
  bool conjugate_y = false;
  bool conjugate_z = false;
  bool conjugate_scale = false;
  bool segments = true;
  bool index1 = true;
  bool index2 = true;
  bool order = true;
  bool scale = true;
  bool repeated = false;  ///< entries of scale are used by several terms
  bool groups = false;  ///< the terms by each index are given, so that they can be added up before they are multiplied
  bool mirrored = false;
  bool wide = false;
  bool accumulate = false;
  bool integers = true;  ///< exact in every type; otherwise compared with a tolerance
  std::uint64_t seed = 1;
};

/// An integer array of Terms, in the width asked for.
class Packed {
 public:
  Packed() = default;
  Packed(const std::vector<std::int64_t>& values, bool wide) : present_(true) {
    for (const std::int64_t value : values) {
      const auto narrow = static_cast<std::int32_t>(value);
      const auto* const bytes =
          wide ? reinterpret_cast<const unsigned char*>(&value) : reinterpret_cast<const unsigned char*>(&narrow);
      bytes_.insert(bytes_.end(), bytes, bytes + (wide ? 8 : 4));
    }
    bytes_.reserve(1);
  }
  const void* data() const { return present_ ? bytes_.data() : nullptr; }

 private:
  bool present_ = false;
  FencedVector<unsigned char> bytes_;
};

/// The arrays of a case, its arguments for the kernels, and what they must give.
class Problem {
 public:
  explicit Problem(const Case& c) : c_(c), random_(c.seed) {
    make_terms();
    const std::int64_t extent_b = channels_y(c.form).b ? c.extent_b : 1;
    args_.type = c.type;
    args_.pattern = pattern_of(c.form);
    args_.batch = c.batch;
    args_.extent_a = c.extent_a;
    args_.extent_b = extent_b;
    args_.accumulate = c.accumulate;
    args_.x = operand(c.x, channels_x(c.form), c.index1 ? c.source_rows : terms(), x_);
    args_.x.conjugate = c.conjugate_x;
    if (c.form != Form::scale) {
      args_.y = operand(c.y, channels_y(c.form), c.index2 ? 5 : terms(), y_);
      args_.y.conjugate = c.conjugate_y;
    }
    if (c.scale) {
      scale_ = Array(c.type, entries_);
      for (std::int64_t i = 0; i < entries_; ++i) {
        scale_.put(i, value());
      }
      args_.scale = scale_.data();
      args_.conjugate_scale = c.conjugate_scale;
    }
  }

  const Case& spec() const { return c_; }
  ProductArgs arguments() const { return args_; }
  std::int64_t terms() const { return static_cast<std::int64_t>(row_of_.size()); }
  std::int64_t entries() const { return entries_; }

  /// z as an output: contiguous rows, apart from each other where it is padded.
  ProductArgs arguments(Array& z) const {
    ProductArgs args = args_;
    z = Array(c_.type, (c_.accumulate ? 1 : c_.batch) * c_.rows * row_stride(), 16);
    args.z.data = z.data();
    args.z.stride_m = row_stride();
    args.z.stride_n = c_.accumulate ? 0 : c_.rows * row_stride();
    args.z.stride_a = channels_z(c_.form).a ? (channels_z(c_.form).b ? args.extent_b : 1) : 0;
    args.z.stride_b = channels_z(c_.form).b ? 1 : 0;
    args.z.rows = c_.rows;
    return args;
  }

  /// The value and, for tolerances, the sum of the magnitudes of what is added.
  struct Sum {
    Number value = 0;
    double weight = 0;
  };

  /// Element (n, row, channels) of the output stands at n * rows * elements + row * elements + channels.
  std::vector<Sum> product() const {
    std::vector<Sum> out(static_cast<std::size_t>((c_.accumulate ? 1 : c_.batch) * c_.rows * elements()));
    const Channels has = channels_z(c_.form);
    visit([&](std::int64_t n, std::int64_t t, std::int64_t a, std::int64_t b, Number x, Number y) {
      const std::int64_t channel = (has.a ? a : 0) * (has.b ? args_.extent_b : 1) + (has.b ? b : 0);
      const std::int64_t row = row_of_[static_cast<std::size_t>(t)];
      add(out[static_cast<std::size_t>(((c_.accumulate ? 0 : n) * c_.rows + row) * elements() + channel)],
          scale_of(t) * x * y);
    });
    return out;
  }

  /// The upstream gradient as an operand that is read.
  ScaleGradArgs scale_grad_arguments(Array& out) {
    if (args_.z.data == nullptr) {
      args_.z = operand(c_.accumulate ? Layout::shared : c_.z, channels_z(c_.form), c_.rows, z_);
      args_.z.conjugate = c_.conjugate_z;
    }
    out = Array(c_.type, entries_, 16);
    ScaleGradArgs grad{args_, out.data()};
    grad.product.scale = nullptr;
    grad.product.accumulate = false;
    return grad;
  }

  std::vector<Sum> scale_grad() const {
    std::vector<Sum> out(static_cast<std::size_t>(entries_));
    visit([&](std::int64_t n, std::int64_t t, std::int64_t a, std::int64_t b, Number x, Number y) {
      const Number z = read(args_.z, z_, n, row_of_[static_cast<std::size_t>(t)], a, b);
      add(out[static_cast<std::size_t>(entry_of_[static_cast<std::size_t>(t)])], std::conj(x * y) * z);
    });
    return out;
  }

  std::int64_t elements() const {
    const Channels has = channels_z(c_.form);
    return (has.a ? args_.extent_a : 1) * (has.b ? args_.extent_b : 1);
  }
  std::int64_t row_stride() const { return elements() + (c_.z == Layout::padded ? 3 : 0); }

 private:
  static void add(Sum& sum, Number term) {
    sum.value += term;
    sum.weight += std::abs(term);
  }

  Number value() {
    const auto part = [&] { return c_.integers ? random_.integer() : random_.real(); };
    const double real = part();
    return {real, is_complex(c_.type) ? part() : 0.0};
  }

  Number scale_of(std::int64_t t) const {
    if (!c_.scale) {
      return 1;
    }
    const Number s = scale_.get(entry_of_[static_cast<std::size_t>(t)]);
    return c_.conjugate_scale ? std::conj(s) : s;
  }

  static Number read(const Operand& o, const Array& array, std::int64_t n, std::int64_t m, std::int64_t a,
                     std::int64_t b) {
    if (o.data == nullptr) {
      return 1;
    }
    const Number v = array.get(n * o.stride_n + m * o.stride_m + a * o.stride_a + b * o.stride_b);
    return o.conjugate ? std::conj(v) : v;
  }

  template <typename F>
  void visit(F&& f) const {
    for (std::int64_t n = 0; n < c_.batch; ++n) {
      for (std::int64_t t = 0; t < terms(); ++t) {
        for (std::int64_t a = 0; a < args_.extent_a; ++a) {
          for (std::int64_t b = 0; b < args_.extent_b; ++b) {
            f(n, t, a, b, read(args_.x, x_, n, first_[static_cast<std::size_t>(t)], a, b),
              read(args_.y, y_, n, second_[static_cast<std::size_t>(t)], a, b));
          }
        }
      }
    }
  }

  Operand operand(Layout layout, Channels has, std::int64_t rows, Array& array) {
    const std::int64_t a = has.a ? args_.extent_a : 1;
    const std::int64_t b = has.b ? args_.extent_b : 1;
    Operand o;
    o.rows = rows;
    o.stride_a = has.a ? b : 0;
    o.stride_b = has.b ? 1 : 0;
    std::int64_t block = a * b;
    switch (layout) {
      case Layout::padded: block += 2; break;
      case Layout::strided:
        o.stride_a *= 2;
        o.stride_b *= 2;
        block *= 2;
        break;
      case Layout::transposed:
        if (has.a && has.b) {
          o.stride_a = 1;
          o.stride_b = a + 3;
          block = o.stride_b * b;
        }
        break;
      case Layout::spread:
        o.stride_a = o.stride_b = 0;
        block = 1;
        break;
      default: break;
    }
    o.stride_m = layout == Layout::one_row ? 0 : block;
    const std::int64_t page = layout == Layout::one_row ? block : rows * block;
    o.stride_n = layout == Layout::shared ? 0 : page;
    // Exactly as long as the last element asks, so that a sanitizer sees the first byte beyond.
    array = Array(c_.type, (c_.batch - 1) * o.stride_n + std::max<std::int64_t>(rows - 1, 0) * o.stride_m +
                               (a - 1) * o.stride_a + (b - 1) * o.stride_b + 1);
    for (std::int64_t n = 0; n < c_.batch; ++n) {
      for (std::int64_t m = 0; m < rows; ++m) {
        for (std::int64_t i = 0; i < a; ++i) {
          for (std::int64_t j = 0; j < b; ++j) {
            array.put(n * o.stride_n + m * o.stride_m + i * o.stride_a + j * o.stride_b, value());
          }
        }
      }
    }
    o.data = array.data();
    return o;
  }

  static std::vector<std::int64_t> sorted_by(const std::vector<std::int64_t>& key) {
    std::vector<std::int64_t> order(key.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return key[static_cast<std::size_t>(a)] < key[static_cast<std::size_t>(b)];
    });
    return order;
  }

  void make_terms() {
    std::vector<std::int64_t> segments{0};
    for (std::int64_t row = 0; row < c_.rows; ++row) {
      const std::int64_t count = !c_.segments ? 1 : row % 3 == 0 ? 0 : c_.terms_per_row + row % 2;
      row_of_.insert(row_of_.end(), static_cast<std::size_t>(count), row);
      segments.push_back(segments.back() + count);
    }
    entries_ = !c_.order ? terms() : c_.repeated ? terms() / 2 + 2 : terms() + 3;
    std::vector<std::int64_t> entries(static_cast<std::size_t>(entries_));
    std::iota(entries.begin(), entries.end(), 0);
    if (c_.order) {
      for (std::int64_t i = entries_ - 1; i > 0; --i) {
        std::swap(entries[static_cast<std::size_t>(i)], entries[static_cast<std::size_t>(random_.below(i + 1))]);
      }
    }
    for (std::int64_t t = 0; t < terms(); ++t) {
      first_.push_back(c_.index1 ? random_.below(c_.source_rows) : t);
      second_.push_back(c_.index2 ? random_.below(5) : t);
      // With repeats the last entry stays unused.
      entry_of_.push_back(c_.repeated ? random_.below(entries_ - 1) : entries[static_cast<std::size_t>(t)]);
    }
    const auto pack = [&](bool wanted, const std::vector<std::int64_t>& values) {
      return wanted ? Packed(values, c_.wide) : Packed();
    };
    segments_ = pack(c_.segments, segments);
    index1_ = pack(c_.index1, first_);
    index2_ = pack(c_.index2, second_);
    order_ = pack(c_.order || c_.repeated, entry_of_);
    if (c_.repeated) {
      std::vector<std::int64_t> inverse_segments{0};
      std::vector<std::int64_t> inverse_terms;
      for (std::int64_t entry = 0; entry < entries_; ++entry) {
        for (std::int64_t t = 0; t < terms(); ++t) {
          if (entry_of_[static_cast<std::size_t>(t)] == entry) {
            inverse_terms.push_back(t);
          }
        }
        inverse_segments.push_back(static_cast<std::int64_t>(inverse_terms.size()));
      }
      inverse_segments_ = Packed(inverse_segments, c_.wide);
      inverse_terms_ = Packed(inverse_terms, c_.wide);
    }
    if (c_.groups) {
      by_index1_ = Packed(sorted_by(first_), c_.wide);
      by_index2_ = Packed(sorted_by(second_), c_.wide);
    }
    args_.terms.segments = segments_.data();
    args_.terms.index1 = index1_.data();
    args_.terms.index2 = index2_.data();
    args_.terms.order = order_.data();
    args_.terms.inverse_segments = inverse_segments_.data();
    args_.terms.inverse_terms = inverse_terms_.data();
    args_.terms.by_index1 = by_index1_.data();
    args_.terms.by_index2 = by_index2_.data();
    args_.terms.mirrored = c_.mirrored;
    args_.terms.wide = c_.wide;
    args_.terms.rows = c_.rows;
    args_.terms.terms = terms();
    args_.terms.entries = entries_;
  }

  Case c_;
  Random random_;
  std::vector<std::int64_t> row_of_, first_, second_, entry_of_;
  std::int64_t entries_ = 0;
  Packed segments_, index1_, index2_, order_, inverse_segments_, inverse_terms_, by_index1_, by_index2_;
  Array x_, y_, z_, scale_;
  ProductArgs args_;
};

enum class Level : int { baseline, avx2, avx512, reference };

/// The levels that both the build and this processor have, and the reference.
inline std::vector<Level> levels() {
  std::vector<Level> found{Level::reference, Level::baseline};
#if LACEWING_HAVE_X86_ISA
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    found.push_back(Level::avx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    found.push_back(Level::avx512);
  }
#endif
  return found;
}

inline const char* name_of(Level level) {
  return std::array{"baseline", "avx2", "avx512", "reference"}[static_cast<std::size_t>(level)];
}

/// What isa() answers: the tests define it themselves, to run each level through the same entry points.
inline cpu::Isa chosen_isa = cpu::Isa::baseline;

/// What the executors below were asked for.
struct ExecutorState {
  int threads = 1;
  std::vector<std::int64_t> ranges;  ///< the length of each range that was run
};
inline ExecutorState executor_state;

/// Cuts as torch does, into at most `threads` chunks of at least `grain`, and runs the last chunk first: an order that
/// no result may depend on.
inline CpuExecutor backwards_executor(int threads) {
  executor_state = {threads, {}};
  return {[](std::int64_t begin, std::int64_t end, std::int64_t grain, CpuExecutor::Chunk chunk, void* context) {
            executor_state.ranges.push_back(end - begin);
            const std::int64_t most =
                (end - begin + std::max<std::int64_t>(grain, 1) - 1) / std::max<std::int64_t>(grain, 1);
            const std::int64_t chunks = std::clamp<std::int64_t>(most, 1, executor_state.threads);
            for (std::int64_t i = chunks - 1; i >= 0; --i) {
              chunk(context, begin + (end - begin) * i / chunks, begin + (end - begin) * (i + 1) / chunks);
            }
          },
          [] { return executor_state.threads; }};
}

/// Workspace of exactly so many bytes, between them and a guard.
struct Workspace {
  explicit Workspace(std::int64_t bytes) : size(static_cast<std::size_t>(bytes)), memory(size + 64, 0xff) {}
  void* data() { return size == 0 ? nullptr : memory.data(); }
  bool guard_untouched() const {
    return std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(size), memory.end(),
                       [](unsigned char byte) { return byte == 0xff; });
  }
  std::size_t size;
  std::vector<unsigned char> memory;
};

/// Returns false where the guard behind the workspace was written.
inline bool run_product(Level level, const ProductArgs& args, const CpuExecutor& executor) {
  if (level == Level::reference) {
    reference::product(args);
    return true;
  }
  chosen_isa = static_cast<cpu::Isa>(level);
  Workspace workspace(cpu::product_workspace(args, executor.max_threads()));
  cpu::product(args, executor, workspace.data());
  return workspace.guard_untouched();
}

inline bool run_scale_grad(Level level, const ScaleGradArgs& args, const CpuExecutor& executor) {
  if (level == Level::reference) {
    reference::scale_grad(args);
    return true;
  }
  chosen_isa = static_cast<cpu::Isa>(level);
  Workspace workspace(cpu::scale_grad_workspace(args, executor.max_threads()));
  cpu::scale_grad(args, executor, workspace.data());
  return workspace.guard_untouched();
}

inline double epsilon(ScalarType type) {
  switch (type) {
    case ScalarType::f16: return 0x1p-11;
    case ScalarType::bf16: return 0x1p-8;
    case ScalarType::f32:
    case ScalarType::c64: return std::numeric_limits<float>::epsilon();
    default: return std::numeric_limits<double>::epsilon();
  }
}

/// Whether a stored value is the one expected: rounded once where sums are exact, within a few roundings otherwise.
inline bool agrees(const Case& c, Number found, const Problem::Sum& expected) {
  if (c.integers) {
    Array rounded(c.type, 1);
    rounded.put(0, expected.value);
    return found == rounded.get(0);
  }
  const bool narrow = c.type == ScalarType::f16 || c.type == ScalarType::bf16;
  const double sums = narrow ? epsilon(ScalarType::f32) : epsilon(c.type);
  // Half numbers below 2^-14 are 2^-24 apart.
  const double subnormal = c.type == ScalarType::f16 ? 0x1p-25 : 0;
  const double allowed = 8 * sums * expected.weight + epsilon(c.type) * std::abs(expected.value) + subnormal;
  return std::abs(found - expected.value) <= allowed;
}

/// Runs a product on every level with one and with three threads, and compares with the oracle.
inline testing::AssertionResult product_is_right(const Case& c) {
  const Problem problem(c);
  const std::vector<Problem::Sum> expected = problem.product();
  for (const Level level : levels()) {
    std::optional<Array> first;
    for (const int threads : {1, 3}) {
      Array z;
      const ProductArgs args = problem.arguments(z);
      const auto failure = [&] {
        return testing::AssertionFailure() << name_of(level) << ", " << threads << " threads: ";
      };
      if (!run_product(level, args, backwards_executor(threads))) {
        return failure() << "wrote beyond its workspace";
      }
      const std::int64_t elements = problem.elements();
      for (std::int64_t i = 0; i < z.count(); ++i) {
        const std::int64_t row = i / problem.row_stride();
        const std::int64_t channel = i % problem.row_stride();
        if (channel >= elements) {
          if (!z.untouched(i)) {
            return failure() << "wrote between the rows, at element " << i;
          }
        } else if (!agrees(c, z.get(i), expected[static_cast<std::size_t>(row * elements + channel)])) {
          return failure() << "row " << row << " channel " << channel << " is " << z.get(i) << " instead of "
                           << expected[static_cast<std::size_t>(row * elements + channel)].value;
        }
      }
      if (!z.guard_untouched()) {
        return failure() << "wrote beyond the output";
      }
      if (first && !(*first == z)) {
        return failure() << "other bits than with one thread";
      }
      first = z;
    }
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult scale_grad_is_right(const Case& c) {
  Problem problem(c);
  Array none;
  problem.scale_grad_arguments(none);
  const std::vector<Problem::Sum> expected = problem.scale_grad();
  for (const Level level : levels()) {
    std::optional<Array> first;
    for (const int threads : {1, 3}) {
      Array out;
      const ScaleGradArgs args = problem.scale_grad_arguments(out);
      const auto failure = [&] {
        return testing::AssertionFailure() << name_of(level) << ", " << threads << " threads: ";
      };
      if (!run_scale_grad(level, args, backwards_executor(threads))) {
        return failure() << "wrote beyond its workspace";
      }
      for (std::int64_t i = 0; i < out.count(); ++i) {
        if (!agrees(c, out.get(i), expected[static_cast<std::size_t>(i)])) {
          return failure() << "entry " << i << " is " << out.get(i) << " instead of "
                           << expected[static_cast<std::size_t>(i)].value;
        }
      }
      if (!out.guard_untouched()) {
        return failure() << "wrote beyond the output";
      }
      if (first && !(*first == out)) {
        return failure() << "other bits than with one thread";
      }
      first = out;
    }
  }
  return testing::AssertionSuccess();
}

/// Every form with every type, or with the complex ones.
class Kernels : public testing::TestWithParam<std::tuple<Form, ScalarType>> {
 protected:
  Case plain() const {
    Case c;
    c.form = std::get<0>(GetParam());
    c.type = std::get<1>(GetParam());
    return c;
  }
};

class ComplexKernels : public Kernels {};

inline std::string name_of_case(const testing::TestParamInfo<std::tuple<Form, ScalarType>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

}  // namespace lacewing::kernels::test
