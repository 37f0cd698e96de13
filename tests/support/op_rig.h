// Test rig for an op on one rank: inputs and parameters are arrays of doubles, `build` computes the
// outputs. One row checks finite differences in f64, parity of the other dtypes, and the exact
// contracts (threads, shared gradients, frozen parameters, accumulation).
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

// `count` values with 0.05 <= |x| < 0.05 + scale: none near a kink at zero.
std::vector<double> case_numbers(std::int64_t count, std::uint64_t key, double scale = 1);

// Parameter store with separate tensors and gradients in the wide dtype. Gradients start as NaN.
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

// Context of one rank with its own store.
struct Bench {
  Bench(World& world, const MeshShape& shape, Dtype dtype, int threads = 1);
  // On a world of one rank; kernels null: CPU.
  explicit Bench(Dtype dtype, int threads = 1, const Kernels* kernels = nullptr);

  Tensor tensor(const Shape& shape, const std::vector<double>& values, Dtype dtype);
  Tensor tensor(const Shape& shape, const std::vector<double>& values) {
    return tensor(shape, values, ctx.dtype);
  }
  Tensor integers(const std::vector<std::int32_t>& values);
  // Owned by the bench; `local` is this rank's shard.
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
  // Set if the output gradients are seeds of 1 for this value (the loss); otherwise the objective
  // is the sum of outputs times random cotangents.
  std::optional<double> objective = {};
  std::vector<Tensor> values = {};  // results without a gradient, compared like outputs
};
using OpBuild = std::function<OpOutputs(Bench& bench, const std::vector<Var>& inputs)>;

struct OpCase {
  std::string name;
  std::vector<OpInput> inputs;
  std::vector<OpParam> params;
  OpBuild build = {};
  std::vector<std::int32_t> documents = {};  // of one sample; sets bench.layout
  bool training = false;
  bool records_always = false;       // recompute: recorded even if nothing trains
  const Kernels* kernels = nullptr;  // null: CPU
};

struct OpValues {
  std::vector<std::vector<double>> inputs, params;
};
OpValues values_for(const OpCase& test);

struct OpRunOptions {
  Dtype dtype = Dtype::kF64;
  int threads = 1;
  bool backward = true;
  bool share_seeds = false;        // the outputs' gradients are shared with another tensor
  int repeats = 1;                 // micro-batches; weight gradients accumulate
  std::vector<bool> tracked = {};  // per input; empty: all
  std::vector<bool> trains = {};   // per parameter; empty: all
  bool delay_weights = false;      // deferred wgrad, after the backward
  bool offload = false;            // all saved tensors are offloaded to the host
};
struct OpResult {
  double objective = 0;
  std::vector<std::vector<double>> outputs, input_grads, param_grads;  // empty: none
  std::vector<int> sinks;
  std::size_t recorded = 0;
};
OpResult run_op(const OpCase& test, const OpValues& values, const OpRunOptions& options);

// All checks of a row. Tolerances by dtype come from one table in the source.
void check_op(const OpCase& test);
// Outputs and gradients of both are bit-equal in every dtype.
void expect_same_bits(const OpCase& a, const OpCase& b);
// || a - b || / || b ||
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace bev::test
