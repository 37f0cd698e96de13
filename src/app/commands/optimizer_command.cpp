// optimizer step: what an optimizer makes of given weights and gradients, without a model.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/output.h"
#include "bridge/safetensors.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "parallel/rank.h"
#include "parallel/store/param_store.h"

namespace bev {

namespace {

struct OptimizerStepOptions {
  std::string input, output;
  std::vector<std::int64_t> qkv_rows;
  bool fp64 = false, bf16 = false;
  OptimConfig optim;
  RuntimeConfig runtime;

  void fields(FieldList& list) {
    list.section("optimizer step");
    list.add("input", input,
             "safetensors with any number of weights W, W.grad.0, W.grad.1, ..: a gradient of each "
             "step");
    list.add("output", output, "safetensors to write: the weights after all steps");
    list.add("qkv-rows", qkv_rows,
             "rows of q, of k and of v in weights called *linear_qkv.weight, for optimizers of "
             "whole matrices");
    list.add("fp64", fp64, "compute and write in fp64 instead of fp32");
    list.add("bf16", bf16, "weights in bf16 with master weights as --main-params-dtype says");
    optim.fields(list);
    runtime.fields(list);
  }
  Dtype dtype() const { return fp64 ? Dtype::kF64 : bf16 ? Dtype::kBf16 : Dtype::kF32; }
};

// A weight of the file and its gradients, in order.
struct GivenWeight {
  std::string name;
  Shape shape;
  std::vector<std::string> gradients;
};

// The weight of "W.grad.7" and 7; an index of -1: the tensor is a weight.
std::pair<std::string, std::int64_t> gradient_of(const std::string& name) {
  constexpr std::string_view kMark = ".grad.";
  const std::size_t at = name.rfind(kMark);
  if (at == std::string::npos) return {name, -1};
  std::int64_t index = -1;
  const char *begin = name.data() + at + kMark.size(), *end = name.data() + name.size();
  auto [rest, error] = std::from_chars(begin, end, index);
  const bool is_number = error == std::errc() && rest == end && index >= 0;
  return is_number ? std::pair{name.substr(0, at), index} : std::pair{name, std::int64_t{-1}};
}

[[noreturn]] void refuse(const SafetensorsFile& file, const std::string& why) {
  throw Error(ErrorKind::kInput, concat(file.path(), ": ", why));
}

std::vector<GivenWeight> read_weights(const SafetensorsFile& file) {
  std::map<std::string, std::map<std::int64_t, std::string>> gradients;
  std::vector<GivenWeight> weights;
  for (const StoredTensor& tensor : file.tensors()) {
    auto [weight, index] = gradient_of(tensor.name);
    if (index < 0) {
      weights.push_back({weight, file.tensor(tensor.name).shape, {}});
    } else if (!gradients[weight].emplace(index, tensor.name).second) {
      refuse(file, concat(weight, " has two gradients of step ", index));
    }
  }
  for (GivenWeight& weight : weights) {
    auto found = gradients.extract(weight.name);
    if (!found) refuse(file, concat(weight.name, " has no gradient ", weight.name, ".grad.0"));
    for (const auto& [index, name] : found.mapped()) {
      const auto next = static_cast<std::int64_t>(weight.gradients.size());
      if (index != next) refuse(file, concat(weight.name, ".grad.", next, " is missing"));
      const Shape shape = file.tensor(name).shape;
      if (!(shape == weight.shape)) {
        refuse(file, concat(name, " is ", shape, ", ", weight.name, " is ", weight.shape));
      }
      weight.gradients.push_back(name);
    }
  }
  if (!gradients.empty()) {
    refuse(file, concat(gradients.begin()->second.begin()->second, " is a gradient of ",
                        gradients.begin()->first, ", which is not there"));
  }
  if (weights.empty()) refuse(file, "holds no weight");
  for (const GivenWeight& weight : weights) {
    if (weight.gradients.size() == weights.front().gradients.size()) continue;
    refuse(file, concat(weight.name, " has ", weight.gradients.size(), " gradients, ",
                        weights.front().name, " ", weights.front().gradients.size()));
  }
  return weights;
}

// Rules by name, as models have them.
Param param_of(const OptimizerStepOptions& wanted, const GivenWeight& weight) {
  Param param;
  param.name = weight.name;
  param.shape = weight.shape.ndim() == 0 ? Shape{1} : weight.shape;
  param.table = weight.name.starts_with("embedding.") || weight.name.starts_with("output_layer.");
  if (weight.name.ends_with(".bias") || param.shape.ndim() == 1) param.wd_mult = 0;
  if (weight.name.ends_with("linear_qkv.weight") && !wanted.qkv_rows.empty()) {
    std::int64_t rows = 0;
    for (std::int64_t size : wanted.qkv_rows) rows += size;
    BEV_CHECK(rows == weight.shape[0], ErrorKind::kConfig, "--qkv-rows: they add up to ", rows,
              ", ", weight.name, " is ", weight.shape);
    param.split = {Axis::kTp, 0, wanted.qkv_rows};
    param.fused = true;
  }
  return param;
}

// The weights on a rank of their own, and the optimizer.
class Steps {
 public:
  Steps(const OptimizerStepOptions& wanted, const SafetensorsFile& file,
        std::vector<GivenWeight> weights, const RankStart& start)
      : wanted_(wanted),
        file_(file),
        weights_(std::move(weights)),
        rank_(start.world, start.kernels, rank_options(start)),
        params_(declare()),
        mesh_(rank_.mesh({})),
        step_(rank_.arena(), Dtype::kU8, {sizeof(StepState)}, "step"),
        store_(pointers(), mesh_, rank_.arena(), rank_.kernels(), rank_.stream(), store_options()),
        ctx_{rank_.kernels(), rank_.stream(),
             rank_.arena(),   rank_.inputs(),
             mesh_,           store_,
             store_,          static_cast<const StepState*>(step_.view().data),
             wanted.dtype()} {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      Tensor value = upload(weights_[i].name, params_[i].shape);
      store_.set_local_value(params_[i], value);
    }
    optimizer_ = std::make_unique<Optimizer>(ctx_, store_.optim_ranges(), store_.shared_params(),
                                             wanted.optim, &rank_.host_memory());
  }

  std::int64_t count() const { return std::ssize(weights_.front().gradients); }

  void run() {
    StepState state;
    state.lr = wanted_.optim.lr;
    state.weight_decay = wanted_.optim.weight_decay;
    for (std::int64_t i = 0; i < count(); ++i) {
      for (std::size_t p = 0; p < params_.size(); ++p) {
        Tensor gradient =
            upload(weights_[p].gradients[static_cast<std::size_t>(i)], params_[p].shape);
        ctx_.kernels.cast(ctx_.stream, gradient, store_.local_gradient(params_[p]).view);
      }
      state.iteration = i + 1;
      state.random_key = static_cast<std::uint64_t>(i + 1);
      state.update = i + 1;
      ctx_.kernels.device.upload(ctx_.stream, &state, step_);
      optimizer_->step(ctx_);
    }
  }

  void write() {
    const Dtype dtype = wanted_.fp64 ? Dtype::kF64 : Dtype::kF32;
    std::vector<TensorSpec> specs;
    for (const GivenWeight& weight : weights_) specs.push_back({weight.name, dtype, weight.shape});
    make_directories(parent_path(wanted_.output));
    SafetensorsWriter writer(wanted_.output, std::move(specs));
    for (const TensorSpec& spec : std::vector<TensorSpec>(writer.tensors())) {
      const auto found = std::ranges::find(params_, spec.name, &Param::name);
      Tensor value = ctx_.allocate(dtype, found->shape, "weight");
      ctx_.kernels.cast(ctx_.stream, main_of(*found), value.view().flat());
      std::vector<std::byte> bytes(value.view().bytes());
      ctx_.download(value, bytes.data());
      writer.write(spec.name, bytes);
    }
    writer.commit();
  }

 private:
  static RankOptions rank_options(const RankStart& start) {
    RankOptions options;
    options.threads = start.threads;
    return options;
  }
  std::vector<Param> declare() const {
    std::vector<Param> params;
    for (const GivenWeight& weight : weights_) params.push_back(param_of(wanted_, weight));
    std::vector<Param*> all;
    for (Param& param : params) all.push_back(&param);
    apply_rules(wanted_.optim.groups.rules(), all);
    for (Param& param : params) param.trains = true;
    return params;
  }
  std::vector<Param*> pointers() {
    std::vector<Param*> all;
    for (Param& param : params_) all.push_back(&param);
    return all;
  }
  StoreOptions store_options() const {
    StoreOptions options;
    options.dtype = wanted_.dtype();
    options.grad_dtype = wanted_.optim.dtypes.for_model(options.dtype).main_grads;
    return options;
  }

  // A tensor of the file on the device, in f32 or f64.
  Tensor upload(const std::string& name, const Shape& shape) {
    const TensorBytes stored = file_.tensor(name);
    Tensor raw(rank_.arena(), stored.dtype, shape, "input");
    std::vector<std::byte> bytes(stored.bytes.begin(), stored.bytes.end());
    ctx_.kernels.device.upload(ctx_.stream, bytes.data(), raw);
    return raw;
  }

  View main_of(const Param& param) const {
    const std::vector<OptimRange>& ranges = optimizer_->ranges();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].param != &param) continue;
      const View& main = optimizer_->state(i).main;
      return main.empty() ? ranges[i].value : main;
    }
    return {};
  }

  const OptimizerStepOptions& wanted_;
  const SafetensorsFile& file_;
  std::vector<GivenWeight> weights_;
  Rank rank_;
  std::vector<Param> params_;
  const Mesh& mesh_;
  Tensor step_;
  ParamStore store_;
  Context ctx_;
  std::unique_ptr<Optimizer> optimizer_;
};

int run_optimizer_step(OptimizerStepOptions& wanted, const CommandInput& input) {
  std::vector<std::string> problems;
  need(wanted.input, "--input", "safetensors with weights and gradients", problems);
  need(wanted.output, "--output", "the safetensors to write", problems);
  if (wanted.fp64 && wanted.bf16) problems.push_back("--fp64: contradicts --bf16; keep one");
  for (const std::string& problem : wanted.optim.state_problems(wanted.dtype())) {
    problems.push_back(problem);
  }
  for (const std::string& problem : wanted.optim.groups.problems({}, wanted.optim.min_lr)) {
    problems.push_back(problem);
  }
  input.options.add_problems(problems);
  input.options.throw_problems();
  if (input.launch.process != 0) return kExitOk;
  check_optimizer_device(wanted.optim.optimizer, device_kernels(wanted.runtime));
  SafetensorsFile file(wanted.input);
  std::vector<GivenWeight> weights = read_weights(file);
  ParallelConfig parallel;
  parallel.data_parallel_size = 1;
  run_ranks({}, parallel, wanted.runtime, [&](const RankStart& start) {
    Steps steps(wanted, file, weights, start);
    steps.run();
    steps.write();
    nlohmann::ordered_json result{
        {"weights", weights.size()}, {"steps", steps.count()}, {"output", wanted.output}};
    write_stdout(result.dump() + "\n");
  });
  return kExitOk;
}

}  // namespace

const Command kOptimizerStepCommand = {
    .name = "optimizer step",
    .summary = "what an optimizer makes of given weights and gradients",
    .examples =
        "bevatron optimizer step --optimizer muon --lr 0.02 --input grads.safetensors "
        "--output weights.safetensors",
    .call = call_of<OptimizerStepOptions, run_optimizer_step>,
    .usual = "input output optimizer lr weight-decay"};

}  // namespace bev
