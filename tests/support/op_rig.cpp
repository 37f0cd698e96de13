#include "tests/support/op_rig.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/recompute.h"
#include "base/error.h"
#include "base/philox.h"
#include "tests/support/lazy_lane.h"

namespace bev::test {

namespace {

class SingleWorld : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int>) override {
    return make_single_group(std::move(name), 0);
  }
};

void write(const View& view, const std::vector<double>& values) {
  BEV_CHECK(static_cast<std::size_t>(view.numel()) == values.size(), "case: ", values.size(),
            " numbers for ", view.shape);
  visit_float(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < values.size(); ++i) {
      view.as<T>()[i] = T(static_cast<accumulate_t<T>>(values[i]));
    }
  });
}

Placement placement_of(const OpInput& input) {
  return Placement()
      .with(Axis::kDp, PlaceState::kShard0)
      .with(Axis::kTp, input.tp)
      .with(Axis::kCp, input.cp);
}

bool chosen(const std::vector<bool>& flags, std::size_t index) {
  return flags.empty() || flags[index];
}

}  // namespace

std::vector<double> case_numbers(std::int64_t count, std::uint64_t key, double scale) {
  std::vector<double> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    PhiloxCounter words = philox({static_cast<std::uint32_t>(i), 7, 7, 7}, key);
    double size = 0.05 + scale * static_cast<double>(uniform_of(words[0]));
    out[i] = (words[1] & 1) != 0 ? size : -size;
  }
  return out;
}

std::vector<double> values_of(const View& view) {
  std::vector<double> out(static_cast<std::size_t>(view.numel()));
  visit_float(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(view.as<T>()[i]);
  });
  return out;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (!std::isfinite(difference) || !std::isfinite(size)) {
    return std::numeric_limits<double>::infinity();
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

OpDevice::OpDevice(const Kernels* of, int threads)
    : kernels(of != nullptr ? *of : lazy_kernels()),
      device(kernels.device.open({.threads = threads, .deterministic = true, .cache_folder = {}})),
      arena(device->memory()),
      memory(device->memory()),
      step(memory->allocate(sizeof(StepState))),
      offloader(kernels, device->stream(), arena, {1, {}, 1, 1}) {}

OpDevice::~OpDevice() { memory->release(step, sizeof(StepState)); }

void OpDevice::set_step(const StepState& state) const {
  kernels.device.upload(device->stream(), &state, {step, Dtype::kU8, {sizeof(StepState)}});
}

void OpDevice::upload(const View& to, const std::vector<double>& values) const {
  std::vector<std::byte> bytes(to.bytes());
  write({bytes.data(), to.dtype, to.shape}, values);
  kernels.device.upload(device->stream(), bytes.data(), to);
}

std::vector<double> OpDevice::values(const View& view) const {
  std::vector<std::byte> bytes(view.bytes());
  kernels.device.fetch(device->stream(), view, bytes.data()).wait();
  return values_of({bytes.data(), view.dtype, view.shape});
}

void MemoryStore::add(Param& param, const Mesh& mesh, Dtype dtype, const std::vector<double>& local,
                      bool narrow) {
  param.index = static_cast<int>(entries_.size());
  param.local = param.split.local_shape(param.shape, part_of(param.split, mesh));
  Arena& arena = device_.arena;
  Entry entry{Tensor(arena, param.dtype(dtype), param.local, "weights"),
              Tensor(arena, narrow ? dtype : wide_of(dtype), param.local, "weight gradients"),
              {}};
  device_.upload(entry.value, local);
  // With beta 0 a kernel must not read the old gradient.
  device_.upload(entry.gradient, std::vector<double>(local.size(), std::nan("")));
  entries_.push_back(std::move(entry));
}

WeightLease MemoryStore::use(const Param& param) { return {entry(param).value.view(), {}}; }

Quantized MemoryStore::quantized(const Param& param) {
  ADD_FAILURE() << param.name << ": ops are not tested in 8-bit floats here";
  return {};
}

AmaxSlot MemoryStore::amax(const Param&, Fp8Role) { return {}; }

GradSink MemoryStore::sink(const Param& param, const Placement& placement) {
  Entry& at = entries_[static_cast<std::size_t>(param.index)];
  EXPECT_TRUE(param.trains) << "a gradient of the frozen " << param.name << " is asked for";
  EXPECT_EQ(at.sinks, at.done) << param.name << ": a sink is still open";
  EXPECT_TRUE(at.sinks == 0 || at.placement == placement) << param.name << ": placement changes";
  at.placement = placement;
  return {at.gradient, at.sinks++ == 0 ? 0.0 : 1.0, {}};
}

void MemoryStore::done(const Param& param, GradSink) {
  ++entries_[static_cast<std::size_t>(param.index)].done;
}

std::vector<double> MemoryStore::gradient(const Param& param) const {
  EXPECT_EQ(entry(param).sinks, entry(param).done) << param.name;
  return entry(param).sinks == 0 ? std::vector<double>() : device_.values(entry(param).gradient);
}

Bench::Bench(World* of, std::unique_ptr<OpDevice> own, OpDevice* on, const MeshShape& shape,
             Dtype dtype)
    : own_world(of == nullptr ? std::make_unique<SingleWorld>() : nullptr),
      own_device(std::move(own)),
      device(on != nullptr ? *on : *own_device),
      arena(device.arena),
      mesh(of != nullptr ? *of : *own_world, shape, device.device.get()),
      store(device),
      ctx{device.kernels, device.device->stream(),
          arena,          arena,
          mesh,           store,
          store,          static_cast<const StepState*>(device.step),
          dtype} {
  step.random_key = 0x1234567890abcdef;
  set_loss_factor(0.25);
  ctx.layer = 3;
}

Bench::Bench(World& world, const MeshShape& shape, Dtype dtype, int threads)
    : Bench(&world, std::make_unique<OpDevice>(nullptr, threads), nullptr, shape, dtype) {}

Bench::Bench(Dtype dtype, int threads, const Kernels* kernels)
    : Bench(nullptr, std::make_unique<OpDevice>(kernels, threads), nullptr, {}, dtype) {}

Bench::Bench(Dtype dtype, OpDevice& on) : Bench(nullptr, nullptr, &on, {}, dtype) {}

void Bench::set_loss_factor(double factor) {
  step.loss_factor = factor;
  device.set_step(step);
}

Tensor Bench::tensor(const Shape& shape, const std::vector<double>& values, Dtype dtype) {
  Tensor out = ctx.allocate(dtype, shape, "activations");
  device.upload(out, values);
  return out;
}

Tensor Bench::integers(const std::vector<std::int32_t>& values) {
  return ctx.upload<std::int32_t>(values, "case");
}

Param& Bench::param(const std::string& name, const Shape& shape, const Split& split,
                    const std::vector<double>& local, ParamFormat format) {
  Param& out = *params.emplace_back(std::make_unique<Param>());
  out.name = name;
  out.shape = shape;
  out.split = split;
  out.format = format;
  store.add(out, mesh, ctx.dtype, local, narrow_gradients);
  return out;
}

OpValues values_for(const OpCase& test) {
  OpValues values;
  std::uint64_t key = hash_name(test.name);
  for (const OpInput& input : test.inputs) {
    values.inputs.push_back(case_numbers(input.shape.numel(), ++key, input.scale));
  }
  for (const OpParam& param : test.params) {
    values.params.push_back(case_numbers(param.shape.numel(), ++key, param.scale));
  }
  return values;
}

namespace {

// Random cotangent of an output in the objective.
std::vector<double> cotangent(const OpCase& test, const Var& output, std::size_t index) {
  return case_numbers(output.tensor.numel(), hash_name(test.name) + 1000 + index);
}

struct Recorded {
  std::vector<GradSlot> inputs, outputs;
  std::vector<Tensor> seeds;
};

// Forward of one micro-batch; the Vars are destroyed on return, so that only the tape keeps
// tensors.
Recorded run_forward(const OpCase& test, const OpValues& values, const OpRunOptions& options,
                     Bench& bench, OpResult& result) {
  Recorded recorded;
  std::vector<Var> inputs;
  for (std::size_t i = 0; i < test.inputs.size(); ++i) {
    const OpInput& input = test.inputs[i];
    const Dtype dtype = input.wide ? bench.ctx.wide() : bench.ctx.dtype;
    Var var{bench.tensor(input.shape, values.inputs[i], dtype), placement_of(input), -1, nullptr};
    if (bench.ctx.tape != nullptr && chosen(options.tracked, i)) {
      var = bench.ctx.tape->track(std::move(var.tensor), var.placement);
    }
    recorded.inputs.emplace_back(var);
    inputs.push_back(std::move(var));
  }
  OpOutputs outputs = test.build(bench, inputs);
  result.outputs.clear();
  result.objective = outputs.objective.value_or(0);
  for (std::size_t i = 0; i < outputs.vars.size(); ++i) {
    const Var& var = outputs.vars[i];
    result.outputs.push_back(bench.values(var.tensor));
    std::vector<double> weights = outputs.objective
                                      ? std::vector<double>(result.outputs[i].size(), 1)
                                      : cotangent(test, var, i);
    if (!outputs.objective) {
      for (std::size_t j = 0; j < weights.size(); ++j) {
        result.objective += weights[j] * result.outputs[i][j];
      }
    }
    recorded.outputs.emplace_back(var);
    recorded.seeds.push_back(bench.tensor(var.shape(), weights, var.dtype()));
  }
  for (const Tensor& value : outputs.values) result.outputs.push_back(bench.values(value));
  return recorded;
}

void run_backward(const OpRunOptions& options, Bench& bench, Recorded recorded, OpResult& result) {
  Tape& tape = *bench.ctx.tape;
  result.recorded = tape.size();
  std::vector<Tensor> held;
  std::vector<std::vector<double>> before;
  for (std::size_t i = 0; i < recorded.outputs.size(); ++i) {
    if (options.share_seeds) {
      held.push_back(recorded.seeds[i]);
      before.push_back(bench.values(recorded.seeds[i]));
    }
    const GradSlot& slot = recorded.outputs[i];
    tape.add_gradient(bench.ctx, slot, std::move(recorded.seeds[i]), slot.placement.dual());
  }
  recorded.seeds.clear();
  tape.backward(bench.ctx);
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(bench.values(held[i]), before[i]) << "a shared gradient is overwritten";
  }
  result.input_grads.clear();
  for (const GradSlot& slot : recorded.inputs) {
    Tensor gradient = tape.take_gradient(slot.id);
    result.input_grads.push_back(gradient.empty() ? std::vector<double>() : bench.values(gradient));
  }
}

}  // namespace

void fill_bench(const OpCase& test, const OpValues& values, const OpRunOptions& options,
                Bench& bench) {
  bench.ctx.training = test.training;
  bench.narrow_gradients = options.narrow_gradients;
  for (std::size_t i = 0; i < test.params.size(); ++i) {
    const OpParam& p = test.params[i];
    const ParamFormat format = p.wide ? ParamFormat::kF32 : ParamFormat::kModel;
    bench.param(concat(test.name, ".", i), p.shape, p.split, values.params[i], format).trains =
        chosen(options.trains, i);
  }
  if (test.documents.empty()) return;
  SampleShape sample{test.documents};
  bench.layout = SequenceLayout::make(bench.ctx, {&sample, 1}, 5);
}

double objective_of(const OpCase& test, const OpValues& values, Bench& bench) {
  for (std::size_t i = 0; i < bench.params.size(); ++i) {
    bench.device.upload(bench.store.use(*bench.params[i]).view, values.params[i]);
  }
  OpResult result;
  run_forward(test, values, {}, bench, result);
  return result.objective;
}

OpResult run_op(const OpCase& test, const OpValues& values, const OpRunOptions& options) {
  std::unique_ptr<OpDevice> own;
  if (options.device == nullptr) own = std::make_unique<OpDevice>(test.kernels, options.threads);
  Bench bench(options.dtype, options.device != nullptr ? *options.device : *own);
  fill_bench(test, values, options, bench);
  std::size_t memory = bench.arena.in_use();
  OpResult result;
  DeferredWgrad later;
  if (options.delay_weights) bench.ctx.deferred_wgrad = &later;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    OffloadPass pass(&bench.device.offloader);
    Tape tape;
    TapeScope scope(bench.ctx, options.backward ? &tape : nullptr);
    if (options.offload) pass.begin_layer(bench.ctx, {0, 2, false}, {});
    Recorded recorded = run_forward(test, values, options, bench, result);
    if (options.offload) {
      pass.end_layer(bench.ctx, {});
      // Offloaded memory is freed when the next layer ends.
      pass.begin_layer(bench.ctx, {1, 2, false}, {});
      pass.end_layer(bench.ctx, {});
    }
    if (options.backward) run_backward(options, bench, std::move(recorded), result);
  }
  later.run(bench.ctx);
  EXPECT_EQ(bench.arena.in_use(), memory) << "memory is still held";
  for (const auto& param : bench.params) {
    result.param_grads.push_back(bench.store.gradient(*param));
    result.sinks.push_back(bench.store.sinks(*param));
  }
  return result;
}

}  // namespace bev::test
