// Runs an op case, one row of a table, on one rank of any backend: inputs and parameters are arrays
// of doubles, `build` computes the outputs from them. op_checks.h has the checks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/offload.h"
#include "autograd/tape.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "ops/sequence_layout.h"
#include "tensor/step_state.h"

namespace bev::test {

// `count` values with 0.05 <= |x| < 0.05 + scale: none near a kink at zero.
std::vector<double> case_numbers(std::int64_t count, std::uint64_t key, double scale = 1);

// A device of one backend, for benches that use it one after the other. On the CPU its copy lanes
// copy as late as permitted (lazy_lane.h).
struct OpDevice {
  // kernels null: the CPU's.
  explicit OpDevice(const Kernels* of = nullptr, int threads = 1);
  ~OpDevice();
  OpDevice(const OpDevice&) = delete;
  OpDevice& operator=(const OpDevice&) = delete;

  void set_step(const StepState& state) const;
  void upload(const View& to, const std::vector<double>& values) const;
  // Synchronises with the device.
  std::vector<double> values(const View& view) const;

  const Kernels& kernels;
  std::unique_ptr<Device> device;
  Arena arena;
  std::unique_ptr<MemorySource> memory;  // memory of the step state
  void* step;                            // StepState, on the device
  Offloader offloader;
};

// A store with separate parameters. Gradient memory starts as NaN.
class MemoryStore final : public Weights, public Gradients {
 public:
  explicit MemoryStore(OpDevice& device) : device_(device) {}
  // The gradient has the wide dtype or, if `narrow`, the dtype of the value.
  void add(Param& param, const Mesh& mesh, Dtype dtype, const std::vector<double>& local,
           bool narrow);

  WeightLease use(const Param& param) override;
  PackedOperand* packed(const Param&, const GemmArgs&, std::int64_t) override { return nullptr; }
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
  OpDevice& device_;
  std::vector<Entry> entries_;
};

// Context of one rank with its own store.
struct Bench {
  // A rank of the world, on the CPU.
  Bench(World& world, const MeshShape& shape, Dtype dtype, int threads = 1);
  // A world of one rank, with its own device; kernels null: the CPU's.
  explicit Bench(Dtype dtype, int threads = 1, const Kernels* kernels = nullptr);
  // A world of one rank, on the given device.
  Bench(Dtype dtype, OpDevice& on);

  Tensor tensor(const Shape& shape, const std::vector<double>& values, Dtype dtype);
  Tensor tensor(const Shape& shape, const std::vector<double>& values) {
    return tensor(shape, values, ctx.dtype);
  }
  Tensor integers(const std::vector<std::int32_t>& values);
  // Owned by the bench; `local` is this rank's shard.
  Param& param(const std::string& name, const Shape& shape, const Split& split,
               const std::vector<double>& local, ParamFormat format = ParamFormat::kModel);
  // Values of a tensor on the bench's device.
  std::vector<double> values(const View& view) const { return device.values(view); }
  void set_loss_factor(double factor);

  std::unique_ptr<World> own_world;
  std::unique_ptr<OpDevice> own_device;
  OpDevice& device;
  Arena& arena;
  StepState step;                 // copy of the state on the device
  bool narrow_gradients = false;  // for parameters created from now on
  Mesh mesh;
  MemoryStore store;
  Context ctx;
  SequenceLayout layout;
  std::vector<std::unique_ptr<Param>> params;

 private:
  // of null: a world of one rank; on null: `own`.
  Bench(World* of, std::unique_ptr<OpDevice> own, OpDevice* on, const MeshShape& shape,
        Dtype dtype);
};

// Values of a tensor in host memory.
std::vector<double> values_of(const View& view);

struct OpInput {
  Shape shape;
  PlaceState tp = PlaceState::kReplicated;
  double scale = 1;
  PlaceState cp = PlaceState::kReplicated;
  bool wide = false;  // in the wide dtype of the run
};
struct OpParam {
  Shape shape;
  Split split = {};
  double scale = 1;
  bool wide = false;  // in the wide dtype of the run
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
  const Kernels* kernels = nullptr;  // CPU kernels; null: the default ones
  bool cpu_only = false;             // not supported by other backends
};

struct OpValues {
  std::vector<std::vector<double>> inputs, params;
};
OpValues values_for(const OpCase& test);

struct OpRunOptions {
  Dtype dtype = Dtype::kF64;
  int threads = 1;
  bool backward = true;
  bool share_seeds = false;        // output gradients are shared with another tensor
  int repeats = 1;                 // micro-batches; weight gradients accumulate
  std::vector<bool> tracked = {};  // per input; empty: all
  std::vector<bool> trains = {};   // per parameter; empty: all
  bool delay_weights = false;      // deferred wgrad: runs after the backward
  bool offload = false;            // all saved tensors are offloaded to the host
  bool narrow_gradients = false;   // weight gradients in the dtype of the run
  OpDevice* device = nullptr;      // null: a new device with the case's kernels
};
struct OpResult {
  double objective = 0;
  std::vector<std::vector<double>> outputs, input_grads, param_grads;  // empty: none
  std::vector<int> sinks;
  std::size_t recorded = 0;
};
OpResult run_op(const OpCase& test, const OpValues& values, const OpRunOptions& options);
// Adds the parameters and layout of a case to an empty bench.
void fill_bench(const OpCase& test, const OpValues& values, const OpRunOptions& options,
                Bench& bench);
// Runs a forward on a filled bench and returns the objective to differentiate.
double objective_of(const OpCase& test, const OpValues& values, Bench& bench);

// || a - b || / || b ||
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace bev::test
