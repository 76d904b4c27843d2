// What D-RTRL and pp-prop keep, and how they roll and contract it. Batches come last in all tensors here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
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

/// A state (O, S, B) that is read again later, though the caller may have it as h.
class KeptState {
 public:
  KeptState() = default;
  explicit KeptState(at::Tensor h) : h_(std::move(h)), version_(h_._version()) {}

  bool defined() const { return h_.defined(); }
  const at::Tensor& h() const { return h_; }
  /// Whether nobody has changed it in place since.
  bool intact() const { return !h_.defined() || h_._version() == version_; }

 private:
  at::Tensor h_;
  std::uint32_t version_ = 0;
};

/// What the derivatives of a ready cell's step are made from while a trace absorbs it, column by column: they take
/// S + 1 times the memory of a state.
struct CellStep {
  const CellOptions* cell = nullptr;
  at::Tensor betas;  ///< (O); undefined where the cell has one for all
  KeptState before;
  at::Tensor y;  ///< (O, B); undefined where the derivatives do not depend on it
  KeptState after;
  at::Tensor gz;  ///< dL/dz of the spikes of `after`, (O, B) with any strides; undefined where there is none
};

/// A step of the network that the traces have yet to absorb.
struct Taken {
  std::vector<at::Tensor> x;  ///< (I, B) of each part
  Jacobian jacobian;          ///< undefined where `fused` stands for it
  at::Tensor g;               ///< dL/dh, (O, S, B), contiguous; undefined where there is no loss or `fused` has it
  at::Tensor y;               ///< of a step inside a window, which is linearized when it is absorbed
  at::Tensor before;          ///< and the state that it began with
  CellStep fused;

  bool learns() const { return g.defined() || fused.gz.defined(); }
  bool intact() const { return fused.before.intact() && fused.after.intact(); }
};

/// What a probe finds; with `needs_leave`, nobody can vouch for the gradients, and allow_approximate is asked for.
struct Finding {
  Analysis analysis;
  bool needs_leave = false;
};

/// Where the recurrent connection leads: nowhere, from every neuron to itself alone, or to others.
enum class Recurrence : std::uint8_t { none, by_position, between_neurons };

/// As analyze(), which knows no recurrence by position.
Finding analyze_network(const Cell& cell, std::int64_t neurons, Recurrence recurrence, Algorithm algorithm,
                        at::TensorOptions options);

/// (B, O, S): the vector-Jacobian product with factors (B, O) of what a recurrence adds to y, for the state h.
at::Tensor own_path(const Cell& cell, const Primitive& recurrent, const Values& values, const at::Tensor& h,
                    const at::Tensor& factors);

/// Whether what a recurrence adds to y of a neuron depends on the state of that neuron alone, for all values. Probed
/// where the primitive and the cell do not say.
bool leads_to_itself_alone(const Cell& cell, const Connection& recurrent, std::int64_t neurons,
                           at::TensorOptions options);

/// ef (O, S, B) <- alpha * D ef + (1 - alpha) * df.
void roll_factor(const at::Tensor& ef, const Linearization& step, double alpha);

class Learning {
 public:
  virtual ~Learning() = default;

  /// Traces of zeros for a batch, first of all or after reset(); x of each part is (I, B).
  virtual void start(const std::vector<at::Tensor>& x, std::int64_t neurons, std::int64_t states) = 0;
  virtual void reset() = 0;
  /// Where the algorithm keeps the factor of the outputs itself, the cell updates it while it steps.
  virtual const at::Tensor* factor() const { return nullptr; }
  virtual double alpha() const { return 0; }
  /// Successive steps of the traces, each followed by its contraction with g where that is defined.
  virtual void roll(std::span<const Taken> steps) = 0;
  /// The contraction alone, with the traces as they stand.
  virtual void contract(const Gradient& g) = 0;

  virtual Values traces() const = 0;
  virtual void load(const Values& saved) = 0;
  virtual std::int64_t elements() const = 0;
};

/// `shared_decay` is the cell's.
std::unique_ptr<Learning> make_drtrl(const std::vector<Part>& parts, std::optional<double> shared_decay);
std::unique_ptr<Learning> make_pp(const std::vector<Part>& parts, double alpha);

/// The values of a connection as constants.
Values detached(const Connection& connection);

/// Adds a multiple to the gradient of a leaf that requires one.
void add_gradient(const at::Tensor& leaf, const at::Tensor& gradient, double factor = 1);

/// Where a kernel adds up the gradient of a leaf: its own .grad(), or zeros (float32 for a half leaf) which arrive
/// there at the end, unless the leaf requires no gradient.
class GradientSink {
 public:
  explicit GradientSink(const at::Tensor& leaf);
  const at::Tensor& sum() const { return sum_; }
  /// Once the kernel is done.
  void arrive() const;

 private:
  at::Tensor leaf_;
  at::Tensor sum_;
};

/// The saved tensor of this name, checked against the one that it replaces.
at::Tensor restored(const Values& saved, const std::string& name, const at::Tensor& current);

}  // namespace lacewing::etp
