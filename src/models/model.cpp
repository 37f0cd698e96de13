#include "models/model.h"

#include <cmath>

#include "base/error.h"
#include "data/batch_file.h"
#include "models/lora.h"
#include "nn/adapter.h"
#include "ops/collective.h"
#include "optim/update_rule.h"

namespace bev {

StageRange even_stage(std::int64_t layers, std::int64_t stages, std::int64_t stage) {
  Range range = shard_range(layers, stages, stage);
  return {range.begin, range.end, stage == 0, stage == stages - 1};
}

BoundaryTensor token_boundary(const Context& ctx, BoundaryId id, const SequenceLayout& layout,
                              std::int64_t columns, const TensorParallel& tp) {
  PlaceState rows = tp.sequence_parallel ? PlaceState::kShard0 : PlaceState::kReplicated;
  Placement placement = batch_placement().with(Axis::kTp, rows);
  return {id, {token_rows(ctx, layout, placement).size(), columns}, placement};
}

namespace {
[[noreturn]] void refuse_generation(const ModelConfig& config) {
  BEV_FAIL(ErrorKind::kConfig, "generate: models of the architecture ",
           architecture_of(config).name, " do not generate");
}
}  // namespace

std::vector<Param*> ModelStage::all_params() {
  std::vector<Param*> all;
  for (Param* param : params()) {
    all.push_back(param);
    if (param->trained_copy != nullptr) all.push_back(param->trained_copy);
  }
  return all;
}

void ModelStage::add_trained_copy(Param& param) {
  copies_.push_back(std::make_unique<Param>(trained_copy_of(param)));
  param.trained_copy = copies_.back().get();
}

std::vector<StateSpec> ModelStage::states(const Context&) const { refuse_generation(config_); }
Var ModelStage::decode(Context&, const MicroBatch&, const Var&, const DecodeStep&,
                       std::vector<LayerState>&) const {
  refuse_generation(config_);
}
Var ModelStage::final_states(Context&, const Var&) const { refuse_generation(config_); }

Tensor stage_logits(Context& ctx, const ModelStage& stage, const Var& final, std::int64_t tokens) {
  Var inputs = stage.predictions(ctx, final);
  return lm_head_logits(ctx, enter_tensor_parallel(ctx, inputs, tokens), stage.head());
}

const Architecture& architecture_of(const ModelConfig& config) {
  return config.architecture != nullptr ? *config.architecture : kDecoderArchitecture;
}

std::vector<LayerSpec> layer_specs(const ModelConfig& config) {
  return architecture_of(config).layers(config);
}

BatchFormat batch_format(const ModelConfig& config) {
  BatchFormat format{config.vocab_size};
  const Architecture& architecture = architecture_of(config);
  if (architecture.fields != nullptr) format.fields = architecture.fields(config);
  const EncoderConfig& encoder = config.encoder;
  if (!encoder.encoder) return format;
  // Positions that begin behind the padding token's number leave padding out.
  format.encoder = {true, encoder.token_types, config.num_labels, encoder.position_offset - 1};
  return format;
}

namespace {
// Initial hidden matrices as MuP and --init-method-xavier-uniform have them, experts each by
// itself.
void set_init(const ModelConfig& config, Param& param) {
  if (!is_hidden_matrix(param) || param.init.kind != InitKind::kNormal || is_adapter(param)) return;
  const int first = param.split.of_experts() ? 1 : 0;
  const auto sides = static_cast<double>(param.shape[first] + param.shape[first + 1]);
  if (config.init_method_xavier_uniform) param.init = {InitKind::kUniform, std::sqrt(6 / sides)};
  param.init.value /= std::sqrt(config.mup_width());
}
}  // namespace

std::unique_ptr<ModelStage> make_stage(const ModelConfig& config, const StageRange& range,
                                       const BuildOptions& options, Param* embedding) {
  auto stage = architecture_of(config).make_stage(config, range, options, embedding);
  for (Param* param : stage->params()) set_init(config, *param);
  if (config.lora.used()) {
    for (Param* param : stage->params()) {
      param->trains = param->trains && is_adapter(*param);
      if (is_saved_whole(config, *param)) stage->add_trained_copy(*param);
    }
    // Later stages use the embeddings of earlier ones too.
    bool again = embedding != nullptr && embedding->trained_copy != nullptr;
    if (again) embedding->trained_copy->uses = embedding->uses;
  }
  return stage;
}

std::vector<Param> declare_params(const ModelConfig& config, const Fp8Config& fp8) {
  BuildOptions options;
  options.fp8 = fp8;
  auto whole = make_stage(config, even_stage(config.num_layers, 1, 0), options);
  std::vector<Param> params;
  for (Param* param : whole->all_params()) {
    params.push_back(*param);
    params.back().trained_copy = nullptr;
  }
  return params;
}

MtpSpec mtp_spec(const ModelConfig& config) {
  if (config.mtp_num_layers == 0) return {};
  return {config.mtp_num_layers,
          config.mtp_loss_scaling_factor / static_cast<double>(config.mtp_num_layers)};
}

void check_windows(const ModelConfig& config, const GlobalBatch& batch) {
  if (batch.hole.empty()) return;
  std::vector<LayerSpec> layers = layer_specs(config);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    BEV_CHECK(layers[i].attention.window < 0, ErrorKind::kInput, batch.hole,
              ": a 0 between ones, and layer ", i, " of the model sees a window of ",
              layers[i].attention.window,
              " earlier tokens, which would then be others; mask the ends of ", "rows only");
  }
}

}  // namespace bev
