// What D-RTRL and pp-prop keep, and how they roll and contract it. Batches come last in all tensors here.
#pragma once

#include <memory>
#include <vector>

#include <lacewing/etp/cell.h>
#include <lacewing/etp/executor.h>

namespace lacewing::etp {

/// A connection with the name of its part of the network: "input" or "recurrent".
struct Part {
  std::string name;
  Connection connection;
};

/// df (O, S, B) and D (O, S, S, B).
struct Jacobian {
  at::Tensor df;
  at::Tensor decay;
};

/// dL/dh: of the whole state (O, S, B), of single states (O, B) each, or both; what is undefined is zero. Any strides.
struct Gradient {
  at::Tensor whole;
  std::vector<at::Tensor> by_state;

  bool defined() const;
  /// All of it, (O, S, B), contiguous; where it is defined.
  at::Tensor dense() const;
  /// That of one state, (O, B), or undefined.
  at::Tensor state(std::int64_t a) const;
};

class Learning {
 public:
  virtual ~Learning() = default;

  /// Traces of zeros for a batch, first of all or after reset(); x of each part is (I, B).
  virtual void start(const std::vector<at::Tensor>& x, std::int64_t neurons, std::int64_t states) = 0;
  virtual void reset() = 0;
  /// Where the algorithm keeps the factor of the outputs itself, the cell updates it while it steps.
  virtual const at::Tensor* factor() const { return nullptr; }
  virtual double alpha() const { return 0; }
  /// One step of the traces, then their contraction with g where that is defined.
  virtual void roll(const std::vector<at::Tensor>& x, const Jacobian& jacobian, const Gradient& g) = 0;
  /// The contraction alone.
  virtual void contract(const Gradient& g) = 0;

  virtual Values traces() const = 0;
  virtual void load(const Values& saved) = 0;
  virtual std::int64_t elements() const = 0;
};

std::unique_ptr<Learning> make_drtrl(const std::vector<Part>& parts);
std::unique_ptr<Learning> make_pp(const std::vector<Part>& parts, double alpha);

/// Adds a multiple to the gradient of a leaf.
void add_gradient(const at::Tensor& leaf, const at::Tensor& gradient, double factor = 1);

/// The saved tensor of this name, checked against the one that it replaces.
at::Tensor restored(const Values& saved, const std::string& name, const at::Tensor& current);

}  // namespace lacewing::etp
