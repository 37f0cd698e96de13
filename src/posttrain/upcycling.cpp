#include "posttrain/upcycling.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "bridge/convert.h"
#include "bridge/hf_model.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "kernels/device.h"
#include "kernels/optim.h"
#include "models/families/family.h"

namespace bev {

namespace {

constexpr std::string_view kExperts = ".mlp.experts.", kRouter = ".mlp.router.weight";

// Scale of the weights such that the sum over a token's experts, weighted by probability, equals
// the output of the MLP: exact if the activation is homogeneous.
double weight_scale(const ModelConfig& model, std::int64_t granularity) {
  auto parts = static_cast<double>(granularity);
  double scale = parts;
  if (model.moe.pre_softmax) {
    scale *= static_cast<double>(model.moe.num_experts) / static_cast<double>(model.moe.topk);
  }
  bool cubic = model.gated || model.activation == Activation::kSquaredRelu;
  return cubic ? std::cbrt(scale) : std::sqrt(scale);
}

// Parameters by our own names, which every checkpoint uses.
std::vector<ParamMapping> declared_params(const ModelConfig& model) {
  std::vector<ParamMapping> params;
  for (const Param& param : declare_params(model)) {
    ParamMapping mapping;
    mapping.param = param.name;
    mapping.shape = param.shape;
    params.push_back(std::move(mapping));
  }
  return params;
}

}  // namespace

ModelConfig dense_model(const ModelConfig& model, std::int64_t granularity) {
  ModelConfig dense = model;
  dense.ffn_hidden_size = granularity * model.expert_ffn_size();
  dense.moe = {};
  return dense;
}

std::vector<std::string> upcycling_problems(const ModelConfig& model, std::int64_t granularity) {
  const MoeConfig& moe = model.moe;
  if (!moe.any()) {
    return {"--moe-use-upcycling: the model has no experts; give --num-experts"};
  }
  if (!model.hybrid_layer_pattern.empty()) {
    return {
        "--moe-use-upcycling: is for models whose layers are all of one kind; leave it or "
        "--hybrid-layer-pattern away"};
  }
  std::vector<std::string> out;
  std::int64_t dense = model.ffn_size(), expert = model.expert_ffn_size();
  if (expert * granularity != dense) {
    std::string cure = dense % granularity == 0
                           ? concat("use --moe-ffn-hidden-size ", dense / granularity)
                           : concat("use a granularity that divides ", dense);
    out.push_back(concat("--moe-upcycling-granularity: ", granularity, " x --moe-ffn-hidden-size ",
                         expert, " is not the --ffn-hidden-size ", dense, " of the dense MLP; ",
                         cure));
  }
  if (moe.num_experts % granularity != 0) {
    out.push_back(concat("--moe-upcycling-granularity: ", granularity,
                         " parts of an MLP do not divide --num-experts ", moe.num_experts));
  }
  return out;
}

UpcycledWeights::UpcycledWeights(const ModelConfig& model, std::int64_t granularity,
                                 ParamSource& source, std::span<const ParamMapping> dense,
                                 const DrawTools& draws)
    : model_(model),
      granularity_(granularity),
      source_(source),
      dense_(dense),
      draws_(draws),
      declared_(declare_params(model)) {
  for (const Param& param : declared_) params_[param.name] = &param;
}

UpcycledWeights::~UpcycledWeights() = default;

void UpcycledWeights::Value::copy(Range elements, std::byte* out) const {
  const std::size_t item = size_of(dtype_);
  for (std::int64_t at = elements.begin; at < elements.end;) {
    std::int64_t block = at / cut_.block, within = at % cut_.block, rest = within % cut_.inner;
    std::int64_t from = block / cut_.repeats * cut_.row +
                        (within / cut_.inner * cut_.parts + block % cut_.parts) * cut_.inner + rest;
    std::int64_t count = std::min(cut_.inner - rest, elements.end - at);
    std::memcpy(out, source_.data() + static_cast<std::size_t>(from) * item,
                static_cast<std::size_t>(count) * item);
    out += static_cast<std::size_t>(count) * item;
    at += count;
  }
}

const ParamMapping* UpcycledWeights::source_of(const std::string& param) const {
  std::string name = param;
  if (std::size_t at = param.find(kExperts); at != std::string::npos) {
    name = concat(param.substr(0, at), ".mlp.", param.substr(at + kExperts.size()));
  }
  auto found = std::ranges::find(dense_, name, &ParamMapping::param);
  return found == dense_.end() ? nullptr : &*found;
}

bool UpcycledWeights::is_drawn(const std::string& param) const {
  bool repeats = param.ends_with(kRouter) && granularity_ > 1;
  return source_of(param) == nullptr && !repeats;
}

std::vector<std::byte> UpcycledWeights::drawn(const Param& param, std::int64_t count,
                                              Dtype dtype) const {
  Tensor values(draws_.arena, dtype, {count}, "initial values");
  if (param.init.kind == InitKind::kConstant) {
    draws_.kernels.fill(draws_.stream, values, param.init.value);
  } else {
    std::uint64_t key = mix_bits(draws_.seed, hash_name(param.name));
    draws_.kernels.optim.normal(draws_.stream,
                                {.x = values, .key = key, .mean = 0.0, .std = param.init.value});
  }
  std::vector<std::byte> out(values.view().bytes());
  draws_.kernels.device.fetch(draws_.stream, values, out.data()).wait();
  return out;
}

namespace {
// Reads a whole parameter times `scale`, with a single rounding.
std::vector<std::byte> read_scaled(ParamSource& source, const ParamMapping& mapping, double scale,
                                   Dtype dtype) {
  std::int64_t count = mapping.shape.numel();
  std::vector<std::byte> out(static_cast<std::size_t>(count) * size_of(dtype));
  if (scale == 1) {
    source.read(mapping, {0, count}, dtype, out.data());
    return out;
  }
  std::vector<double> values(static_cast<std::size_t>(count));
  source.read(mapping, {0, count}, Dtype::kF64, values.data());
  for (double& value : values) value *= scale;
  convert_elements({values.data(), Dtype::kF64}, {out.data(), dtype}, count);
  return out;
}
}  // namespace

UpcycledWeights::Value UpcycledWeights::experts(const Param& param, const ParamMapping& dense,
                                                Dtype dtype) const {
  bool up = param.name.find("linear_fc1") != std::string::npos;
  // Every expert adds the output bias times its probability, so it is not split.
  bool whole = param.name.ends_with(".bias") && !up;
  std::int64_t expert = param.shape.row_numel();
  std::int64_t inner = up ? expert / (model_.gated ? 2 : 1) : model_.expert_ffn_size();
  Value value;
  value.dtype_ = dtype;
  value.source_ =
      read_scaled(source_, dense, whole ? 1 : weight_scale(model_, granularity_), dtype);
  value.cut_ = {expert, whole ? expert : inner, whole ? 1 : granularity_};
  return value;
}

UpcycledWeights::Value UpcycledWeights::open(const std::string& name, Dtype dtype) const {
  const Param& param = *params_.at(name);
  const ParamMapping* dense = source_of(name);
  if (dense != nullptr && dense->param != name) return experts(param, *dense, dtype);
  std::int64_t count = param.shape.numel();
  Value value;
  value.dtype_ = dtype;
  value.cut_ = {count, count};
  if (dense != nullptr) {
    value.source_ = read_scaled(source_, *dense, 1, dtype);
  } else if (is_drawn(name)) {
    value.source_ = drawn(param, count, dtype);
  } else {
    // Draws one router row per MLP and repeats it for all parts of that MLP.
    std::int64_t columns = param.shape[1];
    value.source_ = drawn(param, count / granularity_, dtype);
    value.cut_ = {columns, columns, 1, granularity_, columns};
  }
  return value;
}

Dtype UpcycledWeights::dtype(const ParamMapping& mapping, std::size_t) const {
  const ParamMapping* dense = source_of(mapping.param);
  Dtype dtype = source_.dtype(dense != nullptr ? *dense : dense_.front(), 0);
  return stored_dtype(mapping.format, dtype);
}

void UpcycledWeights::read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) {
  open(mapping.param, dtype).copy(elements, static_cast<std::byte*>(out));
}

// Files that the weights are read from.
struct Upcycling::Opened {
  std::unique_ptr<WeightFiles> files;
  std::unique_ptr<CheckpointReader> reader;
  std::unique_ptr<ParamSource> source;
  std::vector<ParamMapping> dense;
};

Upcycling::Upcycling(const ModelConfig& model, std::int64_t granularity, const DenseSource& from,
                     const DrawTools& draws)
    : folder_(from.hf_model), opened_(std::make_unique<Opened>()) {
  if (from.load.empty()) {
    ModelConfig dense = read_hf_config(from.hf_model);
    BEV_CHECK(!dense.moe.any(), ErrorKind::kConfig, "--moe-use-upcycling: ", from.hf_model,
              " has experts already; leave the flag out");
    opened_->files = std::make_unique<WeightFiles>(from.hf_model);
    WeightMap map(dense);
    map.check(*opened_->files);
    opened_->dense = map.params();
    opened_->source = std::make_unique<WeightFilesSource>(*opened_->files);
  } else {
    opened_->reader =
        std::make_unique<CheckpointReader>(find_step_folder(from.load, from.ckpt_step));
    folder_ = opened_->reader->folder();
    opened_->dense = declared_params(dense_model(model, granularity));
    auto source = std::make_unique<CheckpointWeights>(*opened_->reader);
    source->check(opened_->dense);
    opened_->source = std::move(source);
  }
  weights_ = std::make_unique<UpcycledWeights>(model, granularity, *opened_->source, opened_->dense,
                                               draws);
}

Upcycling::~Upcycling() = default;

void upcycle(Engine& engine, std::int64_t granularity, const DenseSource& from) {
  Context& ctx = engine.model().ctx();
  Upcycling upcycling(engine.model().options().model, granularity, from,
                      {ctx.kernels, ctx.stream, ctx.arena, engine.model().options().seed});
  for (const Param* param : engine.model().store().params()) {
    if (upcycling.weights().is_drawn(param->name)) continue;
    KeptPart part(engine.model(), *param);
    UpcycledWeights::Value value = upcycling.weights().open(param->name, part.dtype());
    for (const KeptPart::Run& run : part.runs()) value.copy(run.elements, run.out);
    part.store();
  }
  engine.weights_written();
  if (engine.model().mesh().world().rank() == 0) {
    log_info(concat("experts are copies of the MLPs of ", upcycling.folder()));
  }
}

}  // namespace bev
