// Runs an op case on one rank: inputs and parameters are arrays of doubles, `build` makes the
// outputs from them. One row gives finite differences in f64, parity of the other dtypes, and the
// exact contracts (threads, shared gradients, frozen parameters, accumulation).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "base/thread_pool.h"
#include "comm/world.h"
#include "ops/sequence_layout.h"

namespace bev::test {

// `count` numbers with 0.05 <= |x| < 0.05 + scale: none near a kink at zero.
std::vector<double> case_numbers(std::int64_t count, std::uint64_t key, double scale = 1);

// Parameters one by one, gradients in the wide dtype. Gradient memory starts as NaN.
class MemoryStore final : public Weights, public Gradients {
 public:
  explicit MemoryStore(Arena& arena) : arena_(arena) {}
  void add(Param& param, const Mesh& mesh, Dtype dtype, const std::vector<double>& local);

  WeightLease use(const Param& param) override;
  PackedFactor* packed(const Param&, const GemmArgs&, std::int64_t) override { return nullptr; }
  Quantized quantized(const Param& param) override;
  AmaxSlot amax(const Param& param, Fp8Role role) override;
  GradSink sink(const Param& param, const Placement& placement) override;
  void done(const Param& param, GradSink sink) override;

  int sinks(const Param& param) const { return entry(param).sinks; }
  Placement placement(const Param& param) const { return entry(param).placement; }
  std::vector<double> gradient(const Param& param) const;

 private:
  struct Entry {
    Tensor value, gradient;
    Placement placement;
    int sinks = 0, done = 0;
  };
  const Entry& entry(const Param& param) const {
    return entries_[static_cast<std::size_t>(param.index)];
  }
  Arena& arena_;
  std::vector<Entry> entries_;
};

// One rank's context over a store of its own.
struct Bench {
  Bench(World& world, const MeshShape& shape, Dtype dtype, int threads = 1);
  // On a world of one rank; kernels null: the CPU's.
  explicit Bench(Dtype dtype, int threads = 1, const Kernels* kernels = nullptr);

  Tensor tensor(const Shape& shape, const std::vector<double>& values, Dtype dtype);
  Tensor tensor(const Shape& shape, const std::vector<double>& values) {
    return tensor(shape, values, ctx.dtype);
  }
  Tensor integers(const std::vector<std::int32_t>& values);
  // Owned by the bench; values are this rank's part.
  Param& param(const std::string& name, const Shape& shape, const Split& split,
               const std::vector<double>& local);

  std::unique_ptr<World> own_world;
  ThreadPool pool;
  Arena arena;
  StepState step;
  Mesh mesh;
  MemoryStore store;
  Context ctx;
  SequenceLayout layout;
  std::vector<std::unique_ptr<Param>> params;
};

std::vector<double> values_of(const View& view);

struct OpInput {
  Shape shape;
  PlaceState tp = PlaceState::kReplicated;
  double scale = 1;
  PlaceState cp = PlaceState::kReplicated;
};
struct OpParam {
  Shape shape;
  Split split = {};
  double scale = 1;
};
struct OpOutputs {
  std::vector<Var> vars;
  // Set where the gradient of this number is what seeds of one give (the loss); otherwise the sum
  // of outputs times random numbers is differentiated.
  std::optional<double> objective = {};
  std::vector<Tensor> values = {};  // results without a gradient, compared as outputs are
};
using OpBuild = std::function<OpOutputs(Bench& bench, const std::vector<Var>& inputs)>;

struct OpCase {
  std::string name;
  std::vector<OpInput> inputs;
  std::vector<OpParam> params;
  OpBuild build = {};
  std::vector<std::int32_t> documents = {};  // of one sample; fills bench.layout
  bool training = false;
  bool records_always = false;       // recompute: recorded although nothing trains
  const Kernels* kernels = nullptr;  // null: the CPU's
};

struct OpValues {
  std::vector<std::vector<double>> inputs, params;
};
OpValues values_for(const OpCase& test);

struct OpRunOptions {
  Dtype dtype = Dtype::kF64;
  int threads = 1;
  bool backward = true;
  bool share_seeds = false;        // somebody else holds the outputs' gradients
  int repeats = 1;                 // micro-batches: weight gradients add up
  std::vector<bool> tracked = {};  // per input; empty: all
  std::vector<bool> trains = {};   // per parameter; empty: all
  bool delay_weights = false;      // weight gradients after the backward
  bool offload = false;            // all that the tape keeps waits on the host
};
struct OpResult {
  double objective = 0;
  std::vector<std::vector<double>> outputs, input_grads, param_grads;  // empty: none came
  std::vector<int> sinks;
  std::size_t recorded = 0;
};
OpResult run_op(const OpCase& test, const OpValues& values, const OpRunOptions& options);

// All checks of a row. Tolerances by dtype come from one table in the source.
void check_op(const OpCase& test);
// Outputs and gradients of both are the same to the bit in every dtype.
void expect_same_bits(const OpCase& a, const OpCase& b);
// || a - b || / || b ||
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace bev::test
