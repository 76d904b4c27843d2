// Random and stored connectivity. Draws are made here, not by std distributions: those differ between libraries.
#include <algorithm>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/Functions.h>

#include <lacewing/dispatch/torch.h>
#include <lacewing/etp/connectivity.h>

#include "common/file_sentence.h"
#include "common/matrix_market.h"
#include "etp/checks.h"

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

}  // namespace

SparsePattern fixed_degree(std::int64_t inputs, std::int64_t outputs, std::int64_t degree, std::uint64_t seed,
                           bool fan_out, bool self) {
  const std::int64_t from = fan_out ? outputs : inputs;
  const std::int64_t groups = fan_out ? inputs : outputs;
  const std::int64_t available = from - (!self && from > 0 ? 1 : 0);
  check_sizes("etp.fixed_degree", inputs, outputs);
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
  check_sizes("etp.small_world", neurons, neurons);
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

LoadedMatrix read_mtx(const std::string& path) {
  using matrix_market::Field;
  at::Tensor places;
  at::Tensor values;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  with_sentence("etp.read_mtx", path, [&] {
    const std::string bytes = text::read_file(path);
    const matrix_market::Reader file(bytes);
    const matrix_market::Header& header = file.header();
    if (!header.coordinate || header.symmetry != matrix_market::Symmetry::general || header.field == Field::complex) {
      throw text::FileError(1, "connectivity is a coordinate matrix, real, integer or pattern, and general");
    }
    rows = file.rows();
    columns = file.columns();
    places = at::empty({2, file.count()}, at::kLong);
    values = at::empty({file.count()}, header.field == Field::integer ? at::kLong : at::kDouble);
    std::int64_t* const row = places.mutable_data_ptr<std::int64_t>();
    file.read(row, row + file.count(), values.mutable_data_ptr(), true, torch_executor());
  });
  return {SparsePattern::coo(places[0], places[1], rows, columns), values.to(at::kDouble)};
}

}  // namespace lacewing::etp
