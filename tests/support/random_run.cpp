#include "tests/support/random_run.h"

#include <algorithm>
#include <vector>

#include "base/divide.h"
#include "base/fields.h"
#include "base/philox.h"
#include "base/text.h"

namespace bev::test {

namespace {

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t index) : key_(mix_bits(seed, index)) {}

  // Uniform in [least, most].
  std::int64_t whole(std::int64_t least, std::int64_t most) {
    auto span = static_cast<std::uint64_t>(most - least + 1);
    return least + static_cast<std::int64_t>(mix_bits(key_, next_++) % span);
  }
  bool one_in(std::int64_t n) { return whole(1, n) == 1; }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(whole(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t key_;
  std::uint64_t next_ = 0;
};

void draw_shape(Draw& draw, ModelConfig& model) {
  model.family = draw.of<std::string>({"gpt2", "llama"});
  model.num_layers = draw.whole(1, 9);
  model.num_attention_heads = draw.of<std::int64_t>({1, 2, 3, 4, 4, 6, 8, 8, 8});
  std::int64_t groups = draw.of<std::int64_t>({0, 1, 2, 2, 4});
  bool divides = groups > 0 && model.num_attention_heads % groups == 0;
  model.num_query_groups = divides || draw.one_in(8) ? groups : 0;
  model.kv_channels = draw.of<std::int64_t>({0, 2, 3, 4, 4, 8});
  // Norms over one or two values divide by almost nothing; layouts, which round differently, could
  // not be compared.
  constexpr std::int64_t kLeastHidden = 4;
  bool whole_heads = model.kv_channels == 0 && !draw.one_in(8);
  std::int64_t heads = whole_heads ? model.num_attention_heads : 1;
  model.hidden_size = heads * draw.whole(ceil_div(kLeastHidden, heads), whole_heads ? 5 : 30);
  model.ffn_hidden_size = draw.one_in(4) ? draw.whole(1, 30) : 4 * draw.whole(1, 8);
  // With a vocabulary of one, every gradient is zero up to rounding.
  model.vocab_size = draw.one_in(8) ? draw.whole(2, 5) : draw.whole(6, 70);
}

void draw_positions(Draw& draw, ModelConfig& model) {
  model.position_embedding_type =
      draw.of<PositionKind>({PositionKind::kLearned, PositionKind::kRope, PositionKind::kNone});
  model.rotary_percent = draw.of<double>({1, 1, 0.5});
  model.rotary_interleaved = draw.one_in(3);
  if (!draw.one_in(3)) return;
  model.window_size = draw.whole(1, 6);
  if (draw.one_in(3)) model.rotary_base_local = 100;
  if (draw.one_in(3)) model.window_layers = {draw.whole(1, 3)};
  if (!model.window_layers.empty() || draw.one_in(2)) return;
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    model.window_layers.push_back(draw.whole(0, 2));
  }
}

void draw_block(Draw& draw, ModelConfig& model) {
  model.normalization = draw.of<NormKind>(
      {NormKind::kLayerNorm, NormKind::kRmsNorm, NormKind::kLayerNormWithoutBias});
  model.apply_layernorm_1p = draw.one_in(4);
  model.parallel_residual = draw.one_in(4);
  using Placement = NormPlacement;
  const Placement other = model.parallel_residual ? Placement::kShared : Placement::kPost;
  model.norm_placement =
      draw.of<Placement>({Placement::kPre, Placement::kPre, Placement::kPreAndPost, other});
  model.residual_multiplier = draw.one_in(4) ? 0.5 : 1;
  model.activation =
      draw.of<Activation>({Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                           Activation::kRelu, Activation::kSquaredRelu, Activation::kQuickGelu});
  model.gated = draw.one_in(2);
  model.add_bias_linear = draw.one_in(2);
  model.add_qkv_bias = draw.one_in(4);
  model.add_proj_bias = draw.one_in(4);
  model.add_mlp_bias = draw.one_in(4);
  model.qk_layernorm = draw.one_in(3);
  if (model.qk_layernorm) {
    model.qk_norm_kind = draw.of<QkNorm>(
        {QkNorm::kHead, QkNorm::kHeadAfterRope, QkNorm::kUnitAfterRope, QkNorm::kWidth});
  }
  const bool chunks = std::ranges::find(model.window_layers, 2) != model.window_layers.end();
  model.causal = chunks || !draw.one_in(model.window_size > 0 ? 30 : 6);
  model.scale_by_inverse_layer = draw.one_in(6);
  model.attn_logit_softcapping = draw.one_in(4) ? 5 : 0;
  model.final_logit_softcapping = draw.one_in(4) ? 7 : 0;
}

// Layers without rotation, and queries that grow with the position.
void draw_rotation(Draw& draw, ModelConfig& model) {
  const bool rotates = model.position_embedding_type == PositionKind::kRope;
  const bool all = !rotates || !draw.one_in(4);
  for (std::int64_t i = 0; !all && i < model.num_layers; ++i) {
    model.no_rope_layers.push_back(draw.whole(0, 1));
  }
  if (!rotates || model.head_size() % 2 != 0 || !draw.one_in(4)) return;
  model.rope_scaling.queries = {0.4, draw.whole(1, 4), draw.whole(0, 1), draw.one_in(2)};
}

void draw_model(Draw& draw, ModelConfig& model) {
  draw_shape(draw, model);
  draw_positions(draw, model);
  draw_rotation(draw, model);
  draw_block(draw, model);
  model.untie_embeddings_and_output_weights = draw.one_in(2);
  model.embedding_multiplier = draw.one_in(4) ? 1.5 : 1;
  model.logit_scale = draw.one_in(4) ? 0.5 : 1;
  model.add_head_bias = draw.one_in(5);
  model.padding_row = draw.one_in(4) ? draw.whole(0, model.vocab_size - 1) : -1;
  model.hidden_dropout = draw.one_in(2) ? 0.2 : 0;
  model.attention_dropout = draw.one_in(2) ? 0.3 : 0;
  model.init_method_std = 0.2;
}

// Sizes whose product is at most 8, and not always a power of two.
void draw_sizes(Draw& draw, ParallelConfig& parallel) {
  std::int64_t left = 8;
  std::vector<std::int64_t*> axes = {&parallel.tensor_model_parallel_size,
                                     &parallel.pipeline_model_parallel_size,
                                     &parallel.context_parallel_size, &parallel.data_parallel_size};
  while (!axes.empty()) {
    auto at = axes.begin() + draw.whole(0, static_cast<std::int64_t>(axes.size()) - 1);
    std::int64_t size = draw.of<std::int64_t>({1, 1, 2, 2, 2, 2, 3, 4, 4, 8});
    **at = size <= left ? size : 1;
    left /= **at;
    axes.erase(at);
  }
}

void draw_pipeline(Draw& draw, std::int64_t layers, ParallelConfig& parallel) {
  parallel.overlap_p2p_communication = draw.one_in(2);
  if (parallel.pipeline_model_parallel_size == 1 && !draw.one_in(10)) return;
  parallel.pipeline_schedule =
      draw.of<PipelineSchedule>({PipelineSchedule::k1F1B, PipelineSchedule::k1F1B,
                                 PipelineSchedule::kZeroBubbleH1, PipelineSchedule::kZeroBubbleV});
  bool one_forward = parallel.pipeline_schedule == PipelineSchedule::k1F1B;
  if (one_forward || draw.one_in(12)) {
    parallel.num_virtual_stages_per_pipeline_rank = draw.whole(0, 3);
  }
  bool several = one_forward && parallel.num_virtual_stages_per_pipeline_rank > 1;
  if (several && draw.one_in(3)) parallel.microbatch_group_size = draw.whole(1, 5);
  if (draw.one_in(16)) parallel.num_layers_per_virtual_pipeline_stage = draw.whole(1, 3);
  parallel.account_for_embedding_in_pipeline_split = draw.one_in(6);
  parallel.account_for_loss_in_pipeline_split = draw.one_in(6);
  bool counted = parallel.account_for_embedding_in_pipeline_split ||
                 parallel.account_for_loss_in_pipeline_split;
  if (draw.one_in(counted ? 20 : 5)) {
    parallel.decoder_first_pipeline_num_layers = draw.whole(1, 3);
    if (draw.one_in(2)) parallel.decoder_last_pipeline_num_layers = draw.whole(1, 3);
    counted = true;
  }
  if (!draw.one_in(counted ? 20 : 4)) return;
  // Distributes layers randomly over the stages, some of which may be empty.
  std::string text = "E";
  std::int64_t bars = parallel.pipeline_model_parallel_size * draw.whole(1, 3) - 1;
  for (std::int64_t todo = layers; todo + bars > 0;) {
    bool layer = draw.whole(1, todo + bars) <= todo;
    text += layer ? 't' : '|';
    --(layer ? todo : bars);
  }
  parallel.pipeline_model_parallel_layout = text + "L";
}

void draw_data(Draw& draw, ParallelConfig& parallel) {
  parallel.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(draw.whole(0, 3));
  std::int64_t copies = parallel.data_parallel_size * parallel.context_parallel_size;
  bool instances =
      copies > 1 && parallel.data_parallel_sharding_strategy != ShardingStrategy::kNoShard;
  parallel.num_distributed_optimizer_instances =
      draw.one_in(instances ? 2 : 20) ? draw.of<std::int64_t>({2, 2, 2, 3, 4}) : 1;
  parallel.ddp_bucket_size = draw.one_in(2) ? draw.whole(1, 2000) : 0;
  parallel.overlap_grad_reduce = draw.one_in(2);
  parallel.overlap_param_gather = draw.one_in(2);
}

void draw_context(Draw& draw, std::int64_t layers, ParallelConfig& parallel) {
  const std::vector<std::string> kinds = {"p2p", "a2a", "allgather", "a2a+p2p"};
  parallel.cp_comm_type.clear();
  std::int64_t count = draw.one_in(3) ? layers : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    parallel.cp_comm_type.push_back(draw.of(kinds));
  }
  std::int64_t cp = parallel.context_parallel_size;
  bool both = cp > 1 && std::ranges::count(parallel.cp_comm_type, "a2a+p2p") > 0;
  if (!both && !draw.one_in(20)) return;
  std::int64_t inner = draw.of<std::int64_t>({1, 2, 2, 4});
  parallel.hierarchical_context_parallel_sizes = {inner, std::max<std::int64_t>(cp / inner, 1)};
}

void draw_recompute(Draw& draw, ParallelConfig& parallel) {
  parallel.recompute_granularity = static_cast<RecomputeGranularity>(draw.whole(0, 2));
  parallel.recompute_method = static_cast<RecomputeMethod>(draw.whole(0, 1));
  parallel.recompute_num_layers = draw.whole(1, 3);
  if (draw.one_in(2)) return;
  parallel.recompute_modules.clear();
  for (const char* part : {"core_attn", "layernorm", "activation", "mlp"}) {
    if (draw.one_in(2)) parallel.recompute_modules.emplace_back(part);
  }
}

}  // namespace

std::int64_t RandomRun::micro_batches() const {
  std::int64_t block =
      config.batch.micro_batch_size * std::max<std::int64_t>(config.parallel.data_parallel_size, 1);
  return ceil_div(samples, block);
}

RandomRun random_run(std::uint64_t seed, std::uint64_t index) {
  Draw draw(seed, index);
  RandomRun run;
  ModelConfig& model = run.config.model;
  ParallelConfig& parallel = run.config.parallel;
  draw_model(draw, model);
  draw_sizes(draw, parallel);
  parallel.use_tp_pp_dp_mapping = draw.one_in(3);
  parallel.sequence_parallel = draw.one_in(2);
  parallel.tp_comm_overlap = draw.one_in(2);
  parallel.expert_model_parallel_size = draw.one_in(30) ? 2 : 1;
  draw_pipeline(draw, model.num_layers, parallel);
  draw_data(draw, parallel);
  draw_context(draw, model.num_layers, parallel);
  draw_recompute(draw, parallel);
  std::int64_t length = draw.one_in(4) ? draw.whole(1, 3) : draw.whole(4, 16);
  run.config.data.seq_length = length;
  model.max_position_embeddings = length + draw.whole(0, 3);
  run.config.batch.micro_batch_size = draw.whole(1, 3);
  run.samples = draw.whole(1, 12);
  return run;
}

std::string flags_text(RunConfig config) {
  RunConfig plain;
  FieldList given, defaults;
  config.fields(given);
  plain.fields(defaults);
  std::string out;
  for (std::size_t i = 0; i < given.entries().size(); ++i) {
    const Field& field = given.entries()[i]->field;
    std::string text = field.text();
    if (text == defaults.entries()[i]->field.text()) continue;
    if (!out.empty()) out += ' ';
    if (field.is_flag()) {
      out += concat(text == "true" ? "--" : "--no-", field.name());
    } else {
      out += concat("--", field.name(), " '", text, "'");
    }
  }
  return out;
}

}  // namespace bev::test
