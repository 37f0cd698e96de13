#include "train/upcycling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "bridge/convert.h"
#include "bridge/hf_model.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "models/family.h"

namespace bev {

namespace {

constexpr std::string_view kExperts = ".mlp.experts.", kRouter = ".mlp.router.weight";

// Elements that lie one after the other in an expert's parameter and in their source.
struct Piece {
  std::int64_t source = 0, count = 0;
};

// An expert's parameter is blocks of `inner` elements; the dense one has `parts` of them for each,
// of which expert e takes number e % parts.
struct ExpertCut {
  std::int64_t expert = 0;  // elements of one
  std::int64_t inner = 0, parts = 1;

  Piece operator()(std::int64_t element) const {
    std::int64_t number = element / expert, within = element % expert, at = within % inner;
    return {(within / inner * parts + number % parts) * inner + at, inner - at};
  }
};

// Rows that come `times` times each.
struct RepeatedRows {
  std::int64_t columns = 0, times = 1;

  Piece operator()(std::int64_t element) const {
    std::int64_t row = element / columns, column = element % columns;
    return {row / times * columns + column, columns - column};
  }
};

struct SameElements {
  std::int64_t count = 0;

  Piece operator()(std::int64_t element) const { return {element, count - element}; }
};

// What weights are multiplied with so that the sum over a token's experts, each times its
// probability, is the MLP's result: exactly where the activation is homogeneous.
double weight_scale(const ModelConfig& model, std::int64_t granularity) {
  auto parts = static_cast<double>(granularity);
  double scale = parts;
  if (model.moe.pre_softmax) {
    scale *= static_cast<double>(model.moe.num_experts) / static_cast<double>(model.moe.topk);
  }
  bool cubic = model.gated || model.activation == ActivationKind::kSquaredRelu;
  return cubic ? std::cbrt(scale) : std::sqrt(scale);
}

class Upcycler {
 public:
  Upcycler(Engine& engine, std::int64_t granularity, ParamSource& source,
           std::span<const ParamMapping> dense)
      : engine_(engine),
        model_(engine.options().model),
        granularity_(granularity),
        source_(source),
        dense_(dense) {}

  void run() {
    for (const Param* param : engine_.store().params()) {
      if (param->name.ends_with(kRouter)) {
        repeat_rows(*param);
      } else if (std::size_t at = param->name.find(kExperts); at != std::string::npos) {
        fill_experts(*param, at);
      } else if (const ParamMapping* mapping = find(param->name)) {
        read(*mapping, 1);
        place(*param, SameElements{param->shape.numel()});
      }
    }
    if (engine_.optimizer() != nullptr) engine_.optimizer()->refresh_main(engine_.ctx());
  }

 private:
  Dtype dtype() const { return engine_.options().dtype; }

  const ParamMapping* find(const std::string& name) const {
    auto found = std::ranges::find(dense_, name, &ParamMapping::param);
    return found == dense_.end() ? nullptr : &*found;
  }

  void fill_experts(const Param& param, std::size_t at) {
    std::string name =
        concat(param.name.substr(0, at), ".mlp.", param.name.substr(at + kExperts.size()));
    const ParamMapping* mapping = find(name);
    BEV_CHECK(mapping != nullptr, ErrorKind::kInternal, "upcycling: no dense ", name);
    bool up = name.find("linear_fc1") != std::string::npos, bias = name.ends_with(".bias");
    // Every expert adds the bias behind the last product, times its probability.
    bool whole = bias && !up;
    std::int64_t expert = param.shape.row_numel();
    std::int64_t inner = up ? expert / (model_.gated ? 2 : 1) : model_.expert_ffn_size();
    read(*mapping, whole ? 1 : weight_scale(model_, granularity_));
    place(param, ExpertCut{expert, whole ? expert : inner, whole ? 1 : granularity_});
  }

  // The values that the first rows of the router have by the seed, as many as there are MLPs.
  void repeat_rows(const Param& param) {
    if (granularity_ == 1) return;
    Context& ctx = engine_.ctx();
    std::int64_t columns = param.shape[1], rows = param.shape[0] / granularity_;
    Tensor drawn = ctx.allocate(dtype(), {rows * columns}, "initial values");
    std::uint64_t key = mix_bits(engine_.options().seed, hash_name(param.name));
    ctx.kernels.optim.normal(ctx.stream, {drawn, key, 0, 0.0, param.init.value});
    whole_.resize(drawn.view().bytes());
    ctx.kernels.device.fetch(ctx.stream, drawn, whole_.data()).wait();
    place(param, RepeatedRows{columns, granularity_});
  }

  // The whole dense parameter times `scale` into whole_. What is scaled is rounded once.
  void read(const ParamMapping& mapping, double scale) {
    std::int64_t count = mapping.shape.numel();
    whole_.resize(static_cast<std::size_t>(count) * size_of(dtype()));
    if (scale == 1) return source_.read(mapping, {0, count}, dtype(), whole_.data());
    std::vector<double> values(static_cast<std::size_t>(count));
    source_.read(mapping, {0, count}, Dtype::kF64, values.data());
    for (double& value : values) value *= scale;
    convert_elements({values.data(), Dtype::kF64}, {whole_.data(), dtype()}, count);
  }

  // What this rank keeps of the parameter, from where `piece_at` says in whole_.
  template <class Map>
  void place(const Param& param, const Map& piece_at) {
    ValueRange kept = engine_.store().kept_value(param);
    std::size_t item = size_of(dtype());
    part_.resize(static_cast<std::size_t>(kept.range.size()) * item);
    ParamPart cut = part_of(param.split, engine_.mesh());
    for (const ElementRun& run : element_runs(param.shape, param.split, cut)) {
      std::int64_t at = std::max(run.local, kept.range.begin);
      std::int64_t end = std::min(run.local + run.count, kept.range.end);
      while (at < end) {
        Piece piece = piece_at(run.global + at - run.local);
        std::int64_t count = std::min(piece.count, end - at);
        std::memcpy(part_.data() + static_cast<std::size_t>(at - kept.range.begin) * item,
                    whole_.data() + static_cast<std::size_t>(piece.source) * item,
                    static_cast<std::size_t>(count) * item);
        at += count;
      }
    }
    Context& ctx = engine_.ctx();
    if (!part_.empty()) ctx.kernels.device.upload(ctx.stream, part_.data(), kept.value);
  }

  Engine& engine_;
  const ModelConfig& model_;
  std::int64_t granularity_;
  ParamSource& source_;
  std::span<const ParamMapping> dense_;
  std::vector<std::byte> whole_;  // the source of a parameter, in the model's dtype
  std::vector<std::byte> part_;
};

// Parameters by our own names, which every checkpoint has.
std::vector<ParamMapping> declared_params(const ModelConfig& model) {
  Decoder declared(model, even_stage(model.num_layers, 1, 0), {});
  std::vector<ParamMapping> params;
  for (const Param* param : declared.params()) {
    ParamMapping mapping;
    mapping.param = param->name;
    mapping.shape = param->shape;
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

void upcycle(Engine& engine, const CheckpointConfig& config, const std::string& hf_model) {
  std::int64_t granularity = config.moe_upcycling_granularity;
  std::string from = hf_model;
  if (config.load.empty()) {
    WeightFiles files(hf_model);
    ModelConfig dense = read_hf_config(hf_model);
    BEV_CHECK(!dense.moe.any(), ErrorKind::kConfig, "--moe-use-upcycling: ", hf_model,
              " has experts already; leave the flag out");
    WeightMap map(dense);
    map.check(files);
    WeightFilesSource source(files);
    Upcycler(engine, granularity, source, map.params()).run();
  } else {
    CheckpointReader reader(find_step_folder(config.load, config.ckpt_step));
    from = reader.folder();
    CheckpointWeights source(reader);
    std::vector<ParamMapping> dense =
        declared_params(dense_model(engine.options().model, granularity));
    source.check(dense);
    Upcycler(engine, granularity, source, dense).run();
  }
  if (engine.mesh().world().rank() == 0) {
    log_info(concat("experts are copies of the MLPs of ", from));
  }
}

}  // namespace bev
