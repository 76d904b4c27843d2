// Random and stored connectivity. Draws are made here, not by std distributions: those differ between libraries.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <random>
#include <sstream>
#include <unordered_set>
#include <vector>

#include <ATen/Functions.h>

#include <lacewing/etp/connectivity.h>

namespace lacewing::etp {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  /// Uniform in [0, n), without the bias of a plain remainder.
  std::int64_t below(std::int64_t n) {
    const auto limit = static_cast<std::uint64_t>(n);
    const std::uint64_t most = std::mt19937_64::max() - std::mt19937_64::max() % limit;
    std::uint64_t draw = engine_();
    while (draw >= most) {
      draw = engine_();
    }
    return static_cast<std::int64_t>(draw % limit);
  }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

at::Tensor index_tensor(const std::vector<std::int64_t>& values) {
  return at::from_blob(const_cast<std::int64_t*>(values.data()), {static_cast<std::int64_t>(values.size())}, at::kLong)
      .clone();
}

/// `count` distinct numbers of [0, n) other than `without`, in the order of Floyd's sampling, then sorted.
std::vector<std::int64_t> sample(Dice& dice, std::int64_t n, std::int64_t count, std::int64_t without) {
  const bool leaves_out = without >= 0 && without < n;
  const std::int64_t available = leaves_out ? n - 1 : n;
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t j = available - count; j < available; ++j) {
    const std::int64_t draw = dice.below(j + 1);
    chosen.insert(chosen.count(draw) != 0 ? j : draw);
  }
  std::vector<std::int64_t> out(chosen.begin(), chosen.end());
  std::sort(out.begin(), out.end());
  for (std::int64_t& each : out) {
    each += leaves_out && each >= without ? 1 : 0;
  }
  return out;
}

constexpr const char* kBlank = " \t\r\v\f";

/// Whether nothing is left of a line.
bool at_end(std::istringstream& fields) { return (fields >> std::ws).eof(); }

}  // namespace

SparsePattern fixed_degree(std::int64_t inputs, std::int64_t outputs, std::int64_t degree, std::uint64_t seed,
                           bool fan_out, bool self) {
  const std::int64_t from = fan_out ? outputs : inputs;
  const std::int64_t groups = fan_out ? inputs : outputs;
  const std::int64_t available = from - (!self && from > 0 ? 1 : 0);
  TORCH_CHECK(inputs >= 0 && outputs >= 0, "[lacewing.etp.fixed_degree] sizes must not be negative, not (", inputs,
              ", ", outputs, ")");
  TORCH_CHECK(degree >= 0 && degree <= available, "[lacewing.etp.fixed_degree] degree must be between 0 and ",
              available, ", not ", degree);
  Dice dice(seed);
  std::vector<std::int64_t> members;
  std::vector<std::int64_t> pointer{0};
  for (std::int64_t group = 0; group < groups; ++group) {
    const auto chosen = sample(dice, from, degree, self ? -1 : group);
    members.insert(members.end(), chosen.begin(), chosen.end());
    pointer.push_back(static_cast<std::int64_t>(members.size()));
  }
  return fan_out ? SparsePattern::csr(index_tensor(pointer), index_tensor(members), inputs, outputs)
                 : SparsePattern::csc(index_tensor(pointer), index_tensor(members), inputs, outputs);
}

SparsePattern small_world(std::int64_t neurons, std::int64_t degree, double rewire, std::uint64_t seed) {
  TORCH_CHECK(degree >= 0 && degree % 2 == 0 && degree < neurons,
              "[lacewing.etp.small_world] degree must be even and less than the ", neurons, " neurons, not ", degree);
  TORCH_CHECK(rewire >= 0 && rewire <= 1, "[lacewing.etp.small_world] rewire must be between 0 and 1, not ", rewire);
  Dice dice(seed);
  std::vector<std::int64_t> members;
  std::vector<std::int64_t> pointer{0};
  for (std::int64_t target = 0; target < neurons; ++target) {
    std::vector<std::int64_t> sources;
    for (std::int64_t step = 1; step <= degree / 2; ++step) {
      sources.push_back((target + step) % neurons);
      sources.push_back((target - step + neurons) % neurons);
    }
    std::unordered_set<std::int64_t> taken(sources.begin(), sources.end());
    taken.insert(target);
    for (std::int64_t& source : sources) {
      if (dice.unit() >= rewire || static_cast<std::int64_t>(taken.size()) == neurons) {
        continue;
      }
      std::int64_t moved = dice.below(neurons);
      while (taken.count(moved) != 0) {
        moved = dice.below(neurons);
      }
      taken.erase(source);
      taken.insert(moved);
      source = moved;
    }
    std::sort(sources.begin(), sources.end());
    members.insert(members.end(), sources.begin(), sources.end());
    pointer.push_back(static_cast<std::int64_t>(members.size()));
  }
  return SparsePattern::csc(index_tensor(pointer), index_tensor(members), neurons, neurons);
}

LoadedMatrix read_matrix_market(const std::string& path) {
  constexpr const char* op = "etp.read_matrix_market";
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "[lacewing.", op, "] ", path, " cannot be read");
  std::string line;
  std::int64_t number = 1;
  std::getline(file, line);
  std::istringstream banner(line);
  std::string mark;
  std::string object;
  std::string format;
  std::string field;
  std::string symmetry;
  banner >> mark >> object >> format >> field >> symmetry;
  for (std::string* const word : {&object, &format, &field, &symmetry}) {
    std::transform(word->begin(), word->end(), word->begin(), [](unsigned char c) { return std::tolower(c); });
  }
  TORCH_CHECK(mark == "%%MatrixMarket" && object == "matrix" && format == "coordinate" && symmetry == "general" &&
                  (field == "real" || field == "integer" || field == "pattern"),
              "[lacewing.", op, "] ", path,
              ", line 1: expected %%MatrixMarket matrix coordinate real|integer|pattern general, not ", line);
  // The next line with something on it; false at the end.
  const auto next_line = [&] {
    while (std::getline(file, line)) {
      ++number;
      if (const auto first = line.find_first_not_of(kBlank); first != std::string::npos && line[first] != '%') {
        return true;
      }
    }
    return false;
  };
  const auto check_next_line = [&] {
    TORCH_CHECK(next_line(), "[lacewing.", op, "] ", path, " ends after line ", number);
  };
  check_next_line();
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t nnz = 0;
  std::istringstream sizes(line);
  TORCH_CHECK(sizes >> rows >> cols >> nnz && at_end(sizes) && rows >= 0 && cols >= 0 && nnz >= 0, "[lacewing.", op,
              "] ", path, ", line ", number, ": expected rows, columns and entries, not ", line);
  std::vector<std::int64_t> row;
  std::vector<std::int64_t> col;
  std::vector<double> value;
  for (std::int64_t k = 0; k < nnz; ++k) {
    check_next_line();
    std::istringstream fields(line);
    std::int64_t i = 0;
    std::int64_t j = 0;
    std::int64_t whole = 1;
    double v = 1;
    bool good = static_cast<bool>(fields >> i >> j);
    if (field == "integer") {
      good = good && fields >> whole;
      v = static_cast<double>(whole);
    } else if (field == "real") {
      good = good && fields >> v;
    }
    good = good && at_end(fields);
    TORCH_CHECK(good && i >= 1 && i <= rows && j >= 1 && j <= cols, "[lacewing.", op, "] ", path, ", line ", number,
                ": expected an entry of a (", rows, ", ", cols, ") matrix, not ", line);
    row.push_back(i - 1);
    col.push_back(j - 1);
    value.push_back(v);
  }
  TORCH_CHECK(!next_line(), "[lacewing.", op, "] ", path, ", line ", number, ": there are more than the ", nnz,
              " entries that the file announces");
  return {SparsePattern::coo(index_tensor(row), index_tensor(col), rows, cols),
          at::tensor(at::ArrayRef<double>(value), at::kDouble)};
}

}  // namespace lacewing::etp
