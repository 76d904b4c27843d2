// Evidence accumulation in C++: the network of examples/evidence_accumulation, trained online with D-RTRL or pp-prop.
//   evidence_accumulation <task.conf> [updates=150] [seed=0] [d-rtrl|pp-prop]
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/adam.h>

#include <lacewing/etp.h>

namespace {

namespace etp = lacewing::etp;

/// `name = value` lines; # begins a comment.
std::map<std::string, std::string> read_config(const std::string& path) {
  std::map<std::string, std::string> config;
  std::ifstream file(path);
  const auto trimmed = [](const std::string& text) {
    const auto first = text.find_first_not_of(' ');
    return first == std::string::npos ? std::string() : text.substr(first, text.find_last_not_of(' ') - first + 1);
  };
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    if (const auto sign = line.find('='); sign != std::string::npos) {
      config[trimmed(line.substr(0, sign))] = trimmed(line.substr(sign + 1));
    }
  }
  return config;
}

struct Task {
  std::map<std::string, std::string> config;

  double number(const std::string& name) const { return std::stod(config.at(name)); }
  std::int64_t count(const std::string& name) const { return std::stoll(config.at(name)); }
  double decay(const std::string& tau) const { return std::exp(-1.0 / number(tau)); }
  std::int64_t inputs() const { return count("groups") * count("channels_per_group"); }
  std::int64_t steps() const {
    return count("cues") * (count("cue_on") + count("cue_gap")) + count("delay") + count("response");
  }

  /// Spikes (T, B, inputs) and labels (B,).
  std::pair<at::Tensor, at::Tensor> trials() const {
    const std::int64_t batch = count("batch");
    const std::int64_t cue = count("cue_on") + count("cue_gap");
    const at::Tensor bias = at::where(at::rand({batch}).lt(0.5), number("cue_bias"), 1 - number("cue_bias"));
    const at::Tensor right = at::rand({count("cues"), batch}).lt(bias);
    const at::Tensor rate = at::zeros({steps(), batch, count("groups"), count("channels_per_group")});
    for (std::int64_t k = 0; k < count("cues"); ++k) {
      const at::Tensor on = rate.slice(0, k * cue, k * cue + count("cue_on"));
      const at::Tensor is_right = right[k].to(at::kFloat).unsqueeze(1);
      on.select(2, 0).copy_(((1 - is_right) * number("active_rate")).expand_as(on.select(2, 0)));
      on.select(2, 1).copy_((is_right * number("active_rate")).expand_as(on.select(2, 1)));
    }
    rate.slice(0, steps() - count("response")).select(2, 2).fill_(number("active_rate"));
    rate.select(2, 3).fill_(number("noise_rate"));
    return {at::rand_like(rate).lt(rate).to(at::kFloat).flatten(2), (2 * right.sum(0)).gt(count("cues")).to(at::kLong)};
  }

  etp::CellOptions cell() const {
    const std::int64_t neurons = count("neurons");
    etp::CellOptions options;
    options.kind = "alif";
    options.filtered = true;
    options.surrogate = config.at("surrogate");
    options.reset = config.at("reset");
    options.reset_gradient = count("reset_gradient") != 0;
    options.membrane = decay("tau_membrane");
    options.adaptation = decay("tau_adaptation");
    options.filter = decay("tau_filter");
    options.threshold = number("threshold");
    options.gain = number("surrogate_gain");
    options.width = number("surrogate_width");
    options.betas = at::arange(neurons).ge(neurons * (1 - number("adaptive_fraction"))).to(at::kFloat) * number("beta");
    return options;
  }

  etp::Connection connection(const etp::SparsePattern& pattern, double scale, std::int64_t degree) const {
    return {etp::sparse_primitive(pattern, /*has_bias=*/false),
            {{"weight", at::randn({pattern.nse()}) * (scale / std::sqrt(static_cast<double>(degree)))}}};
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: evidence_accumulation <task.conf> [updates] [seed] [d-rtrl|pp-prop]\n";
    return 2;
  }
  const Task task{read_config(argv[1])};
  const int updates = argc > 2 ? std::atoi(argv[2]) : 150;
  const auto seed = static_cast<std::uint64_t>(argc > 3 ? std::atoi(argv[3]) : 0);
  const bool pp = argc > 4 && std::string(argv[4]) == "pp-prop";
  at::manual_seed(seed);

  const std::int64_t neurons = task.count("neurons");
  const etp::Connection input =
      task.connection(etp::fixed_degree(task.inputs(), neurons, task.count("input_degree"), 2 * seed),
                      task.number("input_scale"), task.count("input_degree"));
  const etp::Connection recurrent = task.connection(
      etp::fixed_degree(neurons, neurons, task.count("recurrent_degree"), 2 * seed + 1, /*fan_out=*/false,
                        /*self=*/false),
      task.number("recurrent_scale"), task.count("recurrent_degree"));
  etp::ExecutorOptions executor_options;
  executor_options.alpha = task.number("pp_alpha");

  const at::Tensor readout =
      (at::randn({neurons, 2}) * (task.number("readout_scale") / std::sqrt(static_cast<double>(neurons))))
          .requires_grad_();
  const at::Tensor offset = at::zeros({2}).requires_grad_();
  const auto adam = [&](std::vector<at::Tensor> parameters) {
    parameters.insert(parameters.end(), {readout, offset});
    return etp::optimizer_of(
        std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(task.number("learning_rate"))));
  };
  const std::int64_t response = task.count("response");
  etp::LearnerOptions options;
  options.readout = [&](const at::Tensor& h) { return at::matmul(h.select(-1, 2), readout) + offset; };
  options.loss = [&](const at::Tensor& logits, const at::Tensor& labels) {
    return at::cross_entropy_loss(logits, labels) / static_cast<double>(response);
  };
  etp::Learner learner(etp::make_cell(task.cell()), pp ? etp::Algorithm::pp_prop : etp::Algorithm::d_rtrl, input, adam,
                       options, recurrent, executor_options);
  std::cout << (pp ? "pp-prop" : "D-RTRL") << ": " << learner.executor().analysis().reason << '\n';

  const at::Tensor before = input.trainable.at("weight").detach().clone();
  double average = 0.5;
  double best = average;
  for (int update = 1; update <= updates; ++update) {
    const auto [xs, labels] = task.trials();
    learner.reset_state();
    at::Tensor votes = at::zeros({xs.size(1), 2});
    for (std::int64_t t = 0; t < xs.size(0); ++t) {
      if (t < xs.size(0) - response) {
        learner.step(xs[t]);
      } else {
        votes += learner.step(xs[t], labels).output;
      }
    }
    learner.update();
    const double accuracy = votes.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
    average = task.number("ema") * average + (1 - task.number("ema")) * accuracy;
    best = std::max(best, average);
    const int filled = 40 * update / updates;
    std::cout << '\r' << '[' << std::string(static_cast<std::size_t>(filled), '#')
              << std::string(static_cast<std::size_t>(40 - filled), ' ') << "] " << update << '/' << updates
              << "  accuracy " << std::fixed << std::setprecision(3) << average << std::flush;
  }
  std::cout << "\nbest " << best << '\n';
  const bool moved = !input.trainable.at("weight").detach().equal(before);
  return moved && (updates < 150 || best >= (pp ? 0.93 : 0.95)) ? 0 : 1;
}
