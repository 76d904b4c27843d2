// The executors through the C++ API: exactness against autograd through time, the user's own cells and primitives.
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include <lacewing/etp.h>

namespace lacewing::etp {
namespace {

std::shared_ptr<Cell> coupled_cell() {
  return make_cell(2, [](const at::Tensor& y, const at::Tensor& h) {
    const at::Tensor a = at::tanh(0.8 * h.select(-1, 0) + y - 0.3 * h.select(-1, 1));
    return at::stack({a, 0.9 * h.select(-1, 1) + 0.5 * a * h.select(-1, 0)}, -1);
  });
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).abs().max() / expected.abs().max()).item<double>();
}

struct Problem {
  SparsePattern pattern = fixed_degree(4, 6, 2, 9);
  at::Tensor weight = at::randn({pattern.nse()}, at::kDouble);
  at::Tensor x = at::randn({8, 3, 4}, at::kDouble);

  Connection connection() const { return {sparse_primitive(pattern, false), {{"weight", weight.clone()}}}; }

  at::Tensor through_time(const Cell& cell) const {
    const at::Tensor leaf = weight.clone().requires_grad_();
    at::Tensor h = at::zeros({3, 6, cell.states()}, at::kDouble);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      h = cell.forward(sparse_matmul(x[t], leaf, pattern), h);
      loss = loss + h.square().sum();
    }
    return torch::autograd::grad({loss}, {leaf})[0];
  }
};

TEST(Executor, DRtrlIsExactForAPositionWiseCell) {
  const Problem problem;
  const auto cell = coupled_cell();
  const Connection connection = problem.connection();
  Executor executor(cell, connection);

  for (std::int64_t t = 0; t < 8; ++t) {
    executor.backward(executor.step(problem.x[t]).square().sum());
  }

  EXPECT_EQ(executor.analysis().exactness, Exactness::exact);
  EXPECT_LT(relative_error(connection.trainable.at("weight").grad(), problem.through_time(*cell)), 1e-10);
}

TEST(Executor, WindowsAreExactToo) {
  const Problem problem;
  const auto cell = coupled_cell();
  const Connection connection = problem.connection();
  Executor executor(cell, connection);

  for (std::int64_t t = 0; t < 8; t += 3) {
    executor.backward(executor.window(problem.x.slice(0, t, t + 3)).square().sum());
  }

  EXPECT_LT(relative_error(connection.trainable.at("weight").grad(), problem.through_time(*cell)), 1e-10);
}

TEST(Executor, SavedAndRestoredGoesOnWithTheSameBits) {
  const Problem problem;
  for (const Algorithm algorithm : {Algorithm::d_rtrl, Algorithm::pp_prop}) {
    const auto run = [&](bool interrupted) {
      const Connection connection = problem.connection();
      auto executor =
          std::make_unique<Executor>(coupled_cell(), connection, std::nullopt, ExecutorOptions{.algorithm = algorithm});
      for (std::int64_t t = 0; t < 8; ++t) {
        if (interrupted && t == 4) {
          const Values saved = executor->save();
          executor = std::make_unique<Executor>(coupled_cell(), connection, std::nullopt,
                                                ExecutorOptions{.algorithm = algorithm});
          executor->load(saved);
        }
        executor->backward(executor->step(problem.x[t]).square().sum());
      }
      return connection.trainable.at("weight").grad();
    };

    EXPECT_TRUE(run(true).equal(run(false)));
  }
}

TEST(Executor, AbsorbsSeveralStepsWithTheSameBits) {
  const Problem problem;
  const auto run = [&](std::int64_t every, bool whole) {
    const Connection connection = problem.connection();
    CellOptions cell;
    cell.kind = "alif";
    cell.threshold = 0.3;
    cell.reset_gradient = whole;
    Executor executor(make_cell(cell), connection, std::nullopt, ExecutorOptions{.absorb_every = every});
    for (std::int64_t t = 0; t < 8; ++t) {
      const at::Tensor h = executor.step(problem.x[t]);
      executor.backward(executor.output(h).sum() + h.square().sum());
    }
    executor.flush();
    return connection.trainable.at("weight").grad();
  };

  for (const bool whole : {true, false}) {
    const at::Tensor expected = run(1, whole);

    EXPECT_TRUE(run(3, whole).equal(expected));
    EXPECT_TRUE(run(8, whole).equal(expected));
    EXPECT_THROW(run(9, whole), c10::Error);
  }
}

TEST(Executor, IsExactForARecurrenceByPosition) {
  const Problem problem;
  const at::Tensor start = at::randn({6}, at::kDouble);
  const auto cell = coupled_cell();
  const at::Tensor weight = problem.weight.clone().requires_grad_();
  const at::Tensor own = start.clone().requires_grad_();
  at::Tensor h = at::zeros({3, 6, 2}, at::kDouble);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::int64_t t = 0; t < 8; ++t) {
    h = cell->forward(sparse_matmul(problem.x[t], weight, problem.pattern) + cell->output(h) * own, h);
    loss = loss + h.square().sum();
  }
  const auto expected = torch::autograd::grad({loss}, {weight, own});
  const Connection connection = problem.connection();
  const Connection recurrent{elementwise_primitive(false), {{"weight", start.clone()}}};
  Executor executor(cell, connection, recurrent);

  for (std::int64_t t = 0; t < 8; ++t) {
    executor.backward(executor.step(problem.x[t]).square().sum());
  }

  EXPECT_EQ(executor.analysis().exactness, Exactness::exact);
  EXPECT_LT(relative_error(connection.trainable.at("weight").grad(), expected[0]), 1e-10);
  EXPECT_LT(relative_error(recurrent.trainable.at("weight").grad(), expected[1]), 1e-10);
}

TEST(Executor, CallsOfSeveralThreadsTakeTurns) {
  const Problem problem;
  Executor executor(make_cell(CellOptions{}), problem.connection());
  const auto work = [&] {
    for (int i = 0; i < 50; ++i) {
      const auto turn = executor.hold();
      executor.backward(executor.step(problem.x[0]).square().sum());
    }
  };

  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }

  EXPECT_EQ(executor.steps(), 150);
}

TEST(Executor, LeavesFrozenValuesAsTheyAre) {
  const Problem problem;
  Connection connection = problem.connection();
  connection.frozen = {"weight"};
  Executor executor(make_cell(CellOptions{}), connection);

  executor.backward(executor.step(problem.x[0]).square().sum());

  EXPECT_FALSE(connection.trainable.at("weight").requires_grad());
  EXPECT_FALSE(connection.trainable.at("weight").grad().defined());
  connection.frozen = {"wait"};
  EXPECT_THROW(Executor(make_cell(CellOptions{}), connection), c10::Error);
}

TEST(Executor, RollsNoTraceWithoutGradients) {
  const Problem problem;
  Executor executor(make_cell(CellOptions{}), problem.connection());
  executor.step(problem.x[0]);

  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(executor.step(problem.x[1]).requires_grad());
  }

  EXPECT_EQ(executor.traces().at("input.weight").abs().max().item<double>(), 0);
  EXPECT_EQ(executor.steps(), 2);
}

TEST(Executor, SavesTheValuesToo) {
  const Problem problem;
  const Connection one = problem.connection();
  const Connection other = problem.connection();
  Executor from(make_cell(CellOptions{}), one);
  Executor to(make_cell(CellOptions{}), other);
  {
    const c10::NoGradGuard no_grad;
    at::Tensor(one.trainable.at("weight")).mul_(2);
  }

  to.load(from.save());

  EXPECT_TRUE(other.trainable.at("weight").equal(one.trainable.at("weight")));
}

TEST(Cell, TakesConstantsForEachNeuron) {
  const at::Tensor y = at::randn({5, 3}, at::kDouble);
  const at::Tensor h = at::randn({5, 3, 1}, at::kDouble);
  CellOptions options;
  options.kind = "lif";
  options.by_neuron = {{"membrane", at::tensor({0.9, 0.8, 0.7}, at::kDouble)},
                       {"threshold", at::tensor({0.3, 0.4, 0.5}, at::kDouble)}};

  const at::Tensor found = make_cell(options)->forward(y, h);

  CellOptions last;
  last.kind = "lif";
  last.membrane = 0.7;
  last.threshold = 0.5;
  EXPECT_TRUE(found.select(1, 2).allclose(make_cell(last)->forward(y, h).select(1, 2), 1e-14));
  options.by_neuron = {{"gain", at::ones({3})}};
  EXPECT_THROW(make_cell(options), c10::Error);
}

TEST(Cell, NeedsAFunction) { EXPECT_THROW(make_cell(1, {}), c10::Error); }

TEST(Learner, TakesTheStepsOfTheExecutorAndTheOptimizer) {
  const Problem problem;
  const at::Tensor target = at::ones({3, 6}, at::kDouble);
  const Connection connection = problem.connection();
  const at::Tensor& weight = connection.trainable.at("weight");
  int updates = 0;
  const auto descent = [&](std::vector<at::Tensor> parameters) {
    return Optimizer{[parameters, &updates] {
                       const c10::NoGradGuard no_grad;
                       parameters[0].sub_(parameters[0].grad());
                       ++updates;
                     },
                     [parameters] { parameters[0].mutable_grad() = at::Tensor(); }};
  };
  LearnerOptions options;
  options.update_every = 4;
  Learner learner(make_cell(CellOptions{}), Algorithm::d_rtrl, connection, descent, options);
  const Connection alone = problem.connection();
  Executor executor(make_cell(CellOptions{}), alone);

  for (std::int64_t t = 0; t < 4; ++t) {
    const Learner::Step step = learner.step(problem.x[t], target);
    const at::Tensor loss = at::mse_loss(executor.output(executor.step(problem.x[t])), target);
    executor.backward(loss);
    EXPECT_TRUE(step.loss.equal(loss.detach()));
  }

  EXPECT_EQ(updates, 1);
  EXPECT_TRUE(weight.detach().equal(problem.weight - alone.trainable.at("weight").grad()));
  EXPECT_FALSE(learner.step(problem.x[4]).loss.defined());
  EXPECT_THROW(Learner(std::make_shared<Executor>(make_cell(CellOptions{}), problem.connection()), Optimizer{}),
               c10::Error);
}

TEST(Learner, SavesHowManyLossesThereWere) {
  const Problem problem;
  const at::Tensor target = at::ones({3, 6}, at::kDouble);
  int updates = 0;
  const auto make = [&] {
    LearnerOptions options;
    options.update_every = 2;
    const auto executor = std::make_shared<Executor>(make_cell(CellOptions{}), problem.connection());
    return Learner(executor, Optimizer{[&] { ++updates; }, [] {}}, options);
  };
  Learner first = make();
  first.step(problem.x[0], target);
  Learner second = make();

  second.load(first.save());
  second.step(problem.x[1], target);

  EXPECT_EQ(updates, 1);
  EXPECT_EQ(second.executor().steps(), 2);
}

/// y = x * w with a trace of its own, written by a user: only what Primitive demands.
class Scaling : public Primitive {
 public:
  std::string name() const override { return "scaling"; }
  at::Tensor forward(const at::Tensor& x, const Values& values) const override { return x * values.at("weight"); }
  Values yw_to_w(const at::Tensor& g, const Values& trace) const override {
    return {{"weight", (trace.at("weight").dim() == g.dim() ? g : g.unsqueeze(-1)) * trace.at("weight")}};
  }
  std::int64_t outputs(const Values& values) const override { return values.at("weight").size(0); }
  void check(const Values&) const override {}
};

TEST(Executor, TakesAPrimitiveOfTheUser) {
  const at::Tensor x = at::randn({5, 3, 4}, at::kDouble);
  const at::Tensor start = at::randn({4}, at::kDouble);
  const auto gradient = [&](const std::shared_ptr<Primitive>& primitive) {
    const Connection connection{primitive, {{"weight", start.clone()}}};
    Executor executor(coupled_cell(), connection);
    for (std::int64_t t = 0; t < 5; ++t) {
      executor.backward(executor.step(x[t]).square().sum());
    }
    return connection.trainable.at("weight").grad();
  };

  EXPECT_LT(relative_error(gradient(std::make_shared<Scaling>()), gradient(elementwise_primitive(false))), 1e-12);
}

/// A vector-Jacobian product that is twice what it should be.
class Doubled : public Scaling {
 public:
  Values xy_to_dw(const at::Tensor& x, const at::Tensor& g, const Values&) const override {
    return {{"weight", 2 * (x * g).sum(0)}};
  }
};

/// Traces that begin with ones.
class Begun : public Scaling {
 public:
  Values init_drtrl(const at::Tensor& x, const at::Tensor& y, const Values& values,
                    std::int64_t states) const override {
    return {{"weight", at::ones_like(Scaling::init_drtrl(x, y, values, states).at("weight"))}};
  }
  at::Tensor init_pp(const at::Tensor& x, const at::Tensor& y, const Values& values,
                     std::int64_t states) const override {
    return at::ones_like(Scaling::init_pp(x, y, values, states));
  }
};

TEST(Executor, RefusesWrongRulesBeforeTheFirstStep) {
  const at::Tensor x = at::randn({3, 4}, at::kDouble);
  const auto executor = [&](const std::shared_ptr<Primitive>& primitive, Algorithm algorithm) {
    const Connection connection{primitive, {{"weight", at::ones({4}, at::kDouble)}}};
    return Executor(make_cell(CellOptions{}), connection, std::nullopt, ExecutorOptions{.algorithm = algorithm});
  };

  for (const Algorithm algorithm : {Algorithm::d_rtrl, Algorithm::pp_prop}) {
    EXPECT_THROW(executor(std::make_shared<Doubled>(), algorithm).step(x), c10::Error);
    EXPECT_THROW(executor(std::make_shared<Begun>(), algorithm).step(x), c10::Error);
    EXPECT_EQ(executor(std::make_shared<Scaling>(), algorithm).step(x).size(0), 3);
  }
}

/// One number for all outputs, which no trace by output can follow.
class Gain : public Scaling {
 public:
  std::int64_t outputs(const Values&) const override { return 4; }
  Values yw_to_w(const at::Tensor& g, const Values& trace) const override {
    return {{"weight", g.sum(1, /*keepdim=*/true) * trace.at("weight")}};
  }
};

TEST(Executor, RefusesAPrimitiveWhoseValuesActOnSeveralOutputs) {
  const at::Tensor x = at::randn({3, 4}, at::kDouble);
  const Connection connection{std::make_shared<Gain>(), {{"weight", at::ones({1}, at::kDouble)}}};
  Executor executor(make_cell(CellOptions{}), connection);
  ExecutorOptions approximate;
  approximate.allow_approximate = true;
  Executor allowed(make_cell(CellOptions{}), connection, std::nullopt, approximate);

  EXPECT_THROW(executor.step(x), c10::Error);
  allowed.step(x);

  EXPECT_EQ(allowed.analysis().exactness, Exactness::approximate);
}

TEST(Executor, SaysSoWhereALossWouldBeLost) {
  const Problem problem;
  const Connection connection = problem.connection();
  Executor executor(make_cell(CellOptions{}), connection);

  const at::Tensor first = executor.step(problem.x[0]);
  torch::autograd::backward({first.sum()});
  EXPECT_THROW(executor.step(problem.x[1]), c10::Error);
  EXPECT_THROW(executor.reset_state(), c10::Error);
  const at::Tensor second = executor.step(problem.x[0]);
  const at::Tensor third = executor.step(problem.x[1]);
  EXPECT_THROW(executor.backward((second + third).sum()), c10::Error);

  EXPECT_FALSE(connection.trainable.at("weight").grad().defined());
}

TEST(Executor, GivesWhatXComesFromItsGradient) {
  const Problem problem;
  const at::Tensor x = problem.x[0].clone().requires_grad_();
  const Connection connection = problem.connection();
  Executor executor(make_cell(CellOptions{}), connection);

  executor.backward(executor.step(x).square().sum());

  const at::Tensor again = problem.x[0].clone().requires_grad_();
  const at::Tensor leaf = problem.weight.clone().requires_grad_();
  torch::autograd::backward({sparse_matmul(again, leaf, problem.pattern).square().sum()});
  EXPECT_LT(relative_error(x.grad(), again.grad()), 1e-12);
  EXPECT_LT(relative_error(connection.trainable.at("weight").grad(), leaf.grad()), 1e-12);
}

TEST(Executor, RefusesACellThatMixesPositions) {
  const Problem problem;
  const auto cell = make_cell(1, [](const at::Tensor& y, const at::Tensor& h) {
    const at::Tensor sum = h.select(-1, 0) + y;
    return (sum - sum.mean(1, /*keepdim=*/true)).unsqueeze(-1);
  });

  EXPECT_THROW(Executor(cell, problem.connection()), c10::Error);
  EXPECT_EQ(analyze(*cell, 6, false, Algorithm::d_rtrl, at::kDouble).exactness, Exactness::approximate);
}

}  // namespace
}  // namespace lacewing::etp
