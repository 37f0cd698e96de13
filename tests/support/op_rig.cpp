#include "tests/support/op_rig.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "backend/cpu/cpu_kernels.h"
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

// Relative error norms against the f64 result for the same rounded inputs.
struct Tolerance {
  Dtype dtype;
  double output, gradient;
};
constexpr Tolerance kTolerances[] = {
    {Dtype::kF32, 2e-6, 5e-6}, {Dtype::kBf16, 1e-2, 2e-2}, {Dtype::kF16, 1.5e-3, 3e-3}};
constexpr double kFiniteDifferenceTolerance = 1e-7;

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

// Values rounded to the dtype.
std::vector<std::vector<double>> rounded(std::vector<std::vector<double>> lists, Dtype dtype) {
  visit_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::vector<double>& list : lists) {
      for (double& x : list) x = T(static_cast<accumulate_t<T>>(x));
    }
  });
  return lists;
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

void MemoryStore::add(Param& param, const Mesh& mesh, Dtype dtype,
                      const std::vector<double>& local) {
  param.index = static_cast<int>(entries_.size());
  param.local = param.split.local_shape(param.shape, part_of(param.split, mesh));
  Dtype wide = dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  Entry entry{Tensor(arena_, dtype, param.local, "weights"),
              Tensor(arena_, wide, param.local, "weight gradients"),
              {}};
  write(entry.value, local);
  // beta 0 must not read the old value.
  write(entry.gradient, std::vector<double>(local.size(), std::nan("")));
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
  return entry(param).sinks == 0 ? std::vector<double>() : values_of(entry(param).gradient);
}

Bench::Bench(World& world, const MeshShape& shape, Dtype dtype, int threads)
    : pool(threads),
      arena(make_host_memory()),
      mesh(world, shape),
      store(arena),
      ctx{cpu_kernels(), Stream{&pool, nullptr}, arena, arena, mesh, store, store, &step, dtype} {
  step.random_key = 0x1234567890abcdef;
  step.loss_factor = 0.25;
  ctx.layer = 3;
}

Bench::Bench(Dtype dtype, int threads, const Kernels* kernels)
    : own_world(std::make_unique<SingleWorld>()),
      pool(threads),
      arena(make_host_memory()),
      mesh(*own_world, {}),
      store(arena),
      ctx{kernels != nullptr ? *kernels : cpu_kernels(),
          Stream{&pool, nullptr},
          arena,
          arena,
          mesh,
          store,
          store,
          &step,
          dtype} {
  step.random_key = 0x1234567890abcdef;
  step.loss_factor = 0.25;
  ctx.layer = 3;
}

Tensor Bench::tensor(const Shape& shape, const std::vector<double>& values, Dtype dtype) {
  Tensor out = ctx.allocate(dtype, shape, "activations");
  write(out, values);
  return out;
}

Tensor Bench::integers(const std::vector<std::int32_t>& values) {
  Tensor out = ctx.allocate(Dtype::kI32, {static_cast<std::int64_t>(values.size())}, "case");
  std::copy(values.begin(), values.end(), out.as<std::int32_t>());
  return out;
}

Param& Bench::param(const std::string& name, const Shape& shape, const Split& split,
                    const std::vector<double>& local) {
  Param& out = *params.emplace_back(std::make_unique<Param>());
  out.name = name;
  out.shape = shape;
  out.split = split;
  store.add(out, mesh, ctx.dtype, local);
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
    Var var{bench.tensor(input.shape, values.inputs[i]), placement_of(input), -1, nullptr};
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
    result.outputs.push_back(values_of(var.tensor));
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
  for (const Tensor& value : outputs.values) result.outputs.push_back(values_of(value));
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
      before.push_back(values_of(recorded.seeds[i]));
    }
    const GradSlot& slot = recorded.outputs[i];
    tape.add_gradient(bench.ctx, slot, std::move(recorded.seeds[i]), slot.placement.dual());
  }
  recorded.seeds.clear();
  tape.backward(bench.ctx);
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(values_of(held[i]), before[i]) << "a shared gradient is overwritten";
  }
  result.input_grads.clear();
  for (const GradSlot& slot : recorded.inputs) {
    Tensor gradient = tape.take_gradient(slot.id);
    result.input_grads.push_back(gradient.empty() ? std::vector<double>() : values_of(gradient));
  }
}

}  // namespace

OpResult run_op(const OpCase& test, const OpValues& values, const OpRunOptions& options) {
  Bench bench(options.dtype, options.threads, test.kernels);
  bench.ctx.training = test.training;
  for (std::size_t i = 0; i < test.params.size(); ++i) {
    const OpParam& p = test.params[i];
    bench.param(concat(test.name, ".", i), p.shape, p.split, values.params[i]).trains =
        chosen(options.trains, i);
  }
  if (!test.documents.empty()) {
    SampleShape sample{test.documents};
    bench.layout = SequenceLayout::make(bench.ctx, {&sample, 1}, 5);
  }
  std::size_t memory = bench.arena.in_use();
  OpResult result;
  WeightWork later;
  if (options.delay_weights) bench.ctx.weight_work = &later;
  Offloader offloader(lazy_kernels(), bench.ctx.stream, bench.arena, {1, {}, 1, 1});
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    OffloadPass pass(&offloader);
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

namespace {

// Central differences of fourth order, on a persistent bench.
class Differences {
 public:
  Differences(const OpCase& test, OpValues values)
      : test_(test), values_(std::move(values)), bench_(Dtype::kF64, 1, test.kernels) {
    bench_.ctx.training = test.training;
    for (std::size_t i = 0; i < test.params.size(); ++i) {
      bench_.param(concat(test.name, ".", i), test.params[i].shape, test.params[i].split,
                   values_.params[i]);
    }
    if (!test.documents.empty()) {
      SampleShape sample{test.documents};
      bench_.layout = SequenceLayout::make(bench_.ctx, {&sample, 1}, 5);
    }
  }

  std::vector<double> of_input(std::size_t index) { return of(values_.inputs[index]); }
  std::vector<double> of_param(std::size_t index) { return of(values_.params[index]); }

 private:
  std::vector<double> of(std::vector<double>& list) {
    constexpr double kStep = 2e-4;
    std::vector<double> out;
    for (double& x : list) {
      double middle = x;
      auto at = [&](double steps) {
        x = middle + steps * kStep;
        return objective();
      };
      double near = at(1) - at(-1), far = at(2) - at(-2);
      x = middle;
      out.push_back((8 * near - far) / (12 * kStep));
    }
    return out;
  }
  double objective() {
    for (std::size_t i = 0; i < bench_.params.size(); ++i) {
      write(bench_.store.use(*bench_.params[i]).view, values_.params[i]);
    }
    OpResult result;
    run_forward(test_, values_, {}, bench_, result);
    return result.objective;
  }

  const OpCase& test_;
  OpValues values_;
  Bench bench_;
};

void check_gradients(const OpCase& test, const OpValues& values, const OpResult& exact) {
  Differences differences(test, values);
  for (std::size_t i = 0; i < test.inputs.size(); ++i) {
    EXPECT_LT(relative_error(exact.input_grads[i], differences.of_input(i)),
              kFiniteDifferenceTolerance)
        << "gradient of input " << i;
  }
  for (std::size_t i = 0; i < test.params.size(); ++i) {
    EXPECT_LT(relative_error(exact.param_grads[i], differences.of_param(i)),
              kFiniteDifferenceTolerance)
        << "gradient of parameter " << i;
  }
}

void expect_near(const std::vector<std::vector<double>>& got,
                 const std::vector<std::vector<double>>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT(relative_error(got[i], want[i]), tolerance) << what << " " << i;
  }
}

void expect_equal(const OpResult& got, const OpResult& want, const std::string& what) {
  EXPECT_EQ(got.outputs, want.outputs) << what;
  EXPECT_EQ(got.input_grads, want.input_grads) << what;
  EXPECT_EQ(got.param_grads, want.param_grads) << what;
}

void check_dtypes(const OpCase& test, const OpValues& values) {
  for (const Tolerance& row : kTolerances) {
    SCOPED_TRACE(name_of(row.dtype));
    OpValues same{rounded(values.inputs, row.dtype), rounded(values.params, row.dtype)};
    OpResult exact = run_op(test, same, {});
    OpResult result = run_op(test, same, {.dtype = row.dtype});
    expect_near(result.outputs, exact.outputs, row.output, "output");
    expect_near(result.input_grads, exact.input_grads, row.gradient, "gradient of input");
    expect_near(result.param_grads, exact.param_grads, row.gradient, "gradient of parameter");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .threads = 3}), result, "3 threads");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .share_seeds = true}), result,
                 "shared gradients");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .delay_weights = true}), result,
                 "delayed weight gradients");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .offload = true}), result, "offload");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .delay_weights = true, .offload = true}),
                 result, "offload and delayed weight gradients");
  }
}

// Freezes each input and parameter separately, then all.
void check_frozen(const OpCase& test, const OpValues& values, const OpResult& all) {
  std::size_t inputs = test.inputs.size(), params = test.params.size();
  for (std::size_t left_out = 0; left_out < inputs + params; ++left_out) {
    SCOPED_TRACE(concat(left_out < inputs ? "untracked input " : "frozen parameter ",
                        left_out < inputs ? left_out : left_out - inputs));
    OpRunOptions options;
    options.tracked.assign(inputs, true);
    options.trains.assign(params, true);
    OpResult expected = all;
    if (left_out < inputs) {
      options.tracked[left_out] = false;
      expected.input_grads[left_out].clear();
    } else {
      options.trains[left_out - inputs] = false;
      expected.param_grads[left_out - inputs].clear();
    }
    expect_equal(run_op(test, values, options), expected, "the rest");
  }
  OpRunOptions none;
  none.tracked.assign(inputs, false);
  none.trains.assign(params, false);
  OpResult result = run_op(test, values, none);
  EXPECT_EQ(result.outputs, all.outputs);
  EXPECT_EQ(result.recorded > 0, test.records_always) << "nothing trains";
}

void check_accumulation(const OpCase& test, const OpValues& values, const OpResult& once) {
  OpResult twice = run_op(test, values, {.repeats = 2});
  for (std::size_t i = 0; i < once.param_grads.size(); ++i) {
    std::vector<double> doubled = once.param_grads[i];
    for (double& x : doubled) x *= 2;
    EXPECT_LT(relative_error(twice.param_grads[i], doubled), 1e-13) << "accumulation " << i;
    EXPECT_EQ(twice.sinks[i], 2 * once.sinks[i]);
  }
}

}  // namespace

void check_op(const OpCase& test) {
  SCOPED_TRACE(test.name);
  OpValues values = values_for(test);
  OpResult exact = run_op(test, values, {});
  EXPECT_EQ(run_op(test, values, {.backward = false}).outputs, exact.outputs) << "without a tape";
  expect_equal(run_op(test, values, {.threads = 3}), exact, "3 threads");
  expect_equal(run_op(test, values, {.share_seeds = true}), exact, "shared gradients");
  check_gradients(test, values, exact);
  check_frozen(test, values, exact);
  check_accumulation(test, values, exact);
  check_dtypes(test, values);
}

void expect_same_bits(const OpCase& a, const OpCase& b) {
  SCOPED_TRACE(concat(a.name, " == ", b.name));
  OpValues values = values_for(a);
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    SCOPED_TRACE(name_of(dtype));
    OpCase named = b;
    named.name = a.name;  // for equal cotangents
    expect_equal(run_op(named, values, {.dtype = dtype}), run_op(a, values, {.dtype = dtype}), "");
  }
}

}  // namespace bev::test
