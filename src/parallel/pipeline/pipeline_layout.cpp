#include "parallel/pipeline/pipeline_layout.h"

#include <algorithm>
#include <set>

#include "base/problems.h"
#include "base/text.h"
#include "parallel/pipeline/layout_text.h"

namespace bev {

namespace {

using Problems = std::vector<std::string>;

constexpr const char* kVirtual = "--num-virtual-stages-per-pipeline-rank";
constexpr const char* kLayersEach = "--num-layers-per-virtual-pipeline-stage";
constexpr const char* kGroup = "--microbatch-group-size-per-virtual-pipeline-stage";
constexpr const char* kFirst = "--decoder-first-pipeline-num-layers";
constexpr const char* kLast = "--decoder-last-pipeline-num-layers";
constexpr const char* kEmbedding = "--account-for-embedding-in-pipeline-split";
constexpr const char* kLoss = "--account-for-loss-in-pipeline-split";
constexpr const char* kText = "--pipeline-model-parallel-layout";
constexpr const char* kStages = "--pipeline-model-parallel-size";

// Several flags define how layers are split; only one kind may be given.
void check_contradictions(const ParallelConfig& config, Problems& out) {
  auto refuse = [&](bool given, const char* flag, const char* other) {
    if (given) out.push_back(concat(flag, ": contradicts ", other, "; keep one of them"));
  };
  bool ends =
      config.decoder_first_pipeline_num_layers > 0 || config.decoder_last_pipeline_num_layers > 0;
  bool counted =
      config.account_for_embedding_in_pipeline_split || config.account_for_loss_in_pipeline_split;
  refuse(ends && counted, config.decoder_first_pipeline_num_layers > 0 ? kFirst : kLast,
         config.account_for_embedding_in_pipeline_split ? kEmbedding : kLoss);
  refuse(config.num_layers_per_virtual_pipeline_stage > 0 &&
             config.num_virtual_stages_per_pipeline_rank > 0,
         kLayersEach, kVirtual);
  if (config.num_layers_per_virtual_pipeline_stage > 0) {
    refuse(ends, kLayersEach, config.decoder_first_pipeline_num_layers > 0 ? kFirst : kLast);
    refuse(counted, kLayersEach,
           config.account_for_embedding_in_pipeline_split ? kEmbedding : kLoss);
  }
  if (config.pipeline_model_parallel_layout.empty()) return;
  refuse(config.decoder_first_pipeline_num_layers > 0, kFirst, kText);
  refuse(config.decoder_last_pipeline_num_layers > 0, kLast, kText);
  refuse(config.account_for_embedding_in_pipeline_split, kEmbedding, kText);
  refuse(config.account_for_loss_in_pipeline_split, kLoss, kText);
  refuse(config.num_layers_per_virtual_pipeline_stage > 0, kLayersEach, kText);
}

// Stages per rank by the flags, without a layout text.
std::int64_t chunks_of(std::int64_t layers, const ParallelConfig& config, Problems& out) {
  std::int64_t each = config.num_layers_per_virtual_pipeline_stage;
  std::int64_t ranks = config.pipeline_model_parallel_size;
  if (each > 0) {
    if (layers % (ranks * each) == 0) return layers / (ranks * each);
    std::string cure = layers % ranks == 0
                           ? concat("use ", divisors_text(layers / ranks))
                           : concat("give ", kVirtual, " instead, which splits any number");
    out.push_back(concat(kLayersEach, ": stages of ", each, " on ", ranks, " ranks do not divide ",
                         layers, " layers; ", cure));
    return 1;
  }
  if (config.num_virtual_stages_per_pipeline_rank > 0) {
    return config.num_virtual_stages_per_pipeline_rank;
  }
  return traits_of(config.pipeline_schedule).default_chunks();
}

// Stages per rank of a layout text, which must have equally many for every rank.
std::int64_t chunks_of_text(const std::vector<StageRange>& stages, const ParallelConfig& config,
                            Problems& out) {
  auto count = static_cast<std::int64_t>(stages.size());
  std::int64_t ranks = config.pipeline_model_parallel_size;
  std::int64_t asked = config.num_virtual_stages_per_pipeline_rank;
  if (count == 0) return 1;
  if (count % ranks != 0) {
    out.push_back(concat(kText, ": ", count, " stages do not divide over ", kStages, " ", ranks,
                         "; give a multiple of it, empty stages included"));
    return 1;
  }
  if (asked > 0 && asked * ranks != count) {
    out.push_back(concat(kVirtual, ": ", asked, " contradicts the ", count, " stages of ", kText,
                         " on ", ranks, " ranks; leave it out"));
  }
  return count / ranks;
}

void check_schedule(const PipelineShape& shape, const ParallelConfig& config, Problems& out) {
  if (shape.chunks > 1 && shape.ranks == 1) {
    out.push_back(
        concat(kVirtual, ": ", shape.chunks, " stages on one rank need ", kStages, " above 1"));
  }
  const ScheduleTraits& traits = traits_of(shape.schedule);
  if (traits.chunks > 0 && shape.chunks != traits.chunks) {
    out.push_back(concat("--pipeline-schedule: ", traits.name, " ", traits.chunks_rule, ", not ",
                         shape.chunks, "; ", traits.chunks_cure));
  }
  if (config.microbatch_group_size > 0 && !shape.interleaved()) {
    out.push_back(concat(kGroup, ": ", config.microbatch_group_size, " is for ",
                         names_of_schedules(&ScheduleTraits::grouped),
                         " with several stages on a rank; leave it out or give ", kVirtual));
  } else if (config.microbatch_group_size > 0 && config.microbatch_group_size < shape.ranks) {
    out.push_back(concat(kGroup, ": ", config.microbatch_group_size, " is less than ", kStages, " ",
                         shape.ranks, "; use at least that"));
  }
}

// Layers of each stage if the first and last rank have a given number.
std::vector<std::int64_t> counts_with_ends(std::int64_t layers, const PipelineShape& shape,
                                           const ParallelConfig& config, Problems& out) {
  std::int64_t first = config.decoder_first_pipeline_num_layers;
  std::int64_t last = config.decoder_last_pipeline_num_layers;
  const char* flag = first > 0 ? kFirst : kLast;
  std::int64_t others = shape.ranks - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  std::int64_t rest = layers - first - last;
  std::int64_t least = others * shape.chunks;
  if (shape.ranks == 1) {
    out.push_back(concat(flag, ": needs ", kStages, " above 1; leave it out"));
    return {};
  }
  if (rest < least || (others == 0 && rest > 0)) {
    std::string advice = others == 0      ? concat("they must add up to ", layers)
                         : layers > least ? concat("use at most ", layers - least, " together")
                                          : concat("leave it out, and use fewer stages or ", kText);
    out.push_back(concat(flag, ": first ", first, " and last ", last, " of ", layers,
                         " layers leave ", rest, " for ", least, " other stages; ", advice));
    return {};
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(shape.stages()));
  std::int64_t other = 0;
  for (std::int64_t stage = 0; stage < shape.stages(); ++stage) {
    StagePlace place = shape.place_of(stage);
    std::int64_t& count = counts[static_cast<std::size_t>(stage)];
    if (first > 0 && place.rank == 0) {
      count = shard_range(first, shape.chunks, place.chunk).size();
    } else if (last > 0 && place.rank == shape.ranks - 1) {
      count = shard_range(last, shape.chunks, place.chunk).size();
    } else {
      count = shard_range(rest, least, other++).size();
    }
  }
  return counts;
}

// Splits layers evenly, the earlier stages larger; embedding and loss count as layers if asked.
std::vector<std::int64_t> even_counts(std::int64_t layers, const PipelineShape& shape,
                                      const ParallelConfig& config, Problems& out) {
  std::int64_t front = config.account_for_embedding_in_pipeline_split ? 1 : 0;
  std::int64_t back = config.account_for_loss_in_pipeline_split ? 1 : 0;
  std::int64_t total = layers + front + back, stages = shape.stages();
  if (stages > total) {
    std::string asked = shape.chunks == 1
                            ? concat(shape.ranks, " stages")
                            : concat(shape.ranks, " ranks x ", shape.chunks, " stages");
    out.push_back(concat(kStages, ": ", asked, " for --num-layers ", layers, "; use at most ",
                         std::max<std::int64_t>(total / shape.chunks, 1),
                         ", or place empty stages by ", kText));
    return {};
  }
  std::vector<std::int64_t> counts;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    std::int64_t count = shard_range(total, stages, stage).size();
    counts.push_back(count - (stage == 0 ? front : 0) - (stage == stages - 1 ? back : 0));
  }
  return counts;
}

std::vector<StageRange> split_layers(std::int64_t layers, const PipelineShape& shape,
                                     const ParallelConfig& config, Problems& out) {
  bool ends =
      config.decoder_first_pipeline_num_layers > 0 || config.decoder_last_pipeline_num_layers > 0;
  std::vector<std::int64_t> counts =
      ends ? counts_with_ends(layers, shape, config, out) : even_counts(layers, shape, config, out);
  std::vector<StageRange> stages;
  std::int64_t layer = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    stages.push_back({layer, layer + counts[i], i == 0, i + 1 == counts.size()});
    layer += counts[i];
  }
  return stages;
}

PipelineLayout make_layout(std::int64_t layers, const ParallelConfig& config, Problems& out) {
  PipelineLayout layout;
  layout.shape.ranks = config.pipeline_model_parallel_size;
  layout.shape.schedule = config.pipeline_schedule;
  layout.shape.group_size = config.microbatch_group_size;
  layout.shape.paired =
      config.overlap_moe_expert_parallel_comm && config.expert_model_parallel_size > 1;
  check_contradictions(config, out);
  if (config.pipeline_model_parallel_layout.empty()) {
    layout.shape.chunks = chunks_of(layers, config, out);
  } else {
    layout.stages = parse_pipeline_text(config.pipeline_model_parallel_layout, layers, out);
    layout.shape.chunks = chunks_of_text(layout.stages, config, out);
  }
  check_schedule(layout.shape, config, out);
  if (!out.empty() || !layout.stages.empty()) return layout;
  layout.stages = split_layers(layers, layout.shape, config, out);
  return layout;
}

// Requires whole groups of micro-batches, or a last group that still fills the pipeline.
void check_micro_batches(const PipelineShape& shape, std::span<const std::int64_t> counts,
                         Problems& out) {
  if (!shape.interleaved()) return;
  std::int64_t group = shape.group_size > 0 ? shape.group_size : shape.ranks;
  for (std::int64_t count : std::set(counts.begin(), counts.end())) {
    if (group > count) {
      out.push_back(concat(
          kGroup, ": ", group, " is more than the ", count, " micro-batches of an iteration; ",
          count >= shape.ranks ? concat("use ", shape.ranks, " to ", count)
                               : concat("with several stages on a rank give at least ", shape.ranks,
                                        " micro-batches by --global-batch-size")));
    } else if (count % group != 0 && count % group < shape.ranks) {
      out.push_back(concat(kGroup, ": groups of ", group, " leave ", count % group, " of ", count,
                           " micro-batches, fewer than the ", shape.ranks,
                           " ranks of the pipeline; use ", count,
                           ", or a number of micro-batches that is a multiple of ", group));
    }
  }
}

void check_recompute(const PipelineLayout& layout, const ParallelConfig& config, Problems& out) {
  if (config.recompute_granularity != RecomputeGranularity::kFull) return;
  std::int64_t most = 0;
  for (const StageRange& stage : layout.stages) {
    most = std::max(most, stage.end_layer - stage.first_layer);
  }
  if (config.recompute_num_layers > most) {
    out.push_back(concat("--recompute-num-layers: ", config.recompute_num_layers,
                         " is more than the ", most, " layers of a stage; use at most that"));
  }
}

}  // namespace

std::vector<std::int64_t> PipelineLayout::embedding_ranks(const ModelConfig& model) const {
  std::set<std::int64_t> ranks;
  for (std::int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageRange& range = stages[static_cast<std::size_t>(stage)];
    bool uses = architecture_of(model).uses_embedding(model, range);
    if (uses) ranks.insert(shape.place_of(stage).rank);
  }
  return {ranks.begin(), ranks.end()};
}

PipelineLayout pipeline_layout(std::int64_t layers, const ParallelConfig& config) {
  Problems problems;
  PipelineLayout layout = make_layout(layers, config, problems);
  throw_problems(problems);
  return layout;
}

std::vector<std::string> pipeline_problems(std::int64_t layers, const ParallelConfig& config,
                                           std::span<const std::int64_t> micro_batches) {
  Problems problems;
  PipelineLayout layout = make_layout(layers, config, problems);
  if (!problems.empty()) return problems;
  check_micro_batches(layout.shape, micro_batches, problems);
  check_recompute(layout, config, problems);
  return problems;
}

ParallelConfig inference_layout(ParallelConfig config) {
  ParallelConfig plain;
  config.sequence_parallel = config.tp_comm_overlap = false;
  config.data_parallel_size *= config.context_parallel_size;
  config.context_parallel_size = 1;
  config.hybrid_context_parallel = false;
  config.max_seqlen_per_dp_cp_rank = 0;
  config.hierarchical_context_parallel_sizes.clear();
  config.pipeline_schedule = plain.pipeline_schedule;
  config.num_virtual_stages_per_pipeline_rank = plain.num_virtual_stages_per_pipeline_rank;
  config.num_layers_per_virtual_pipeline_stage = plain.num_layers_per_virtual_pipeline_stage;
  config.microbatch_group_size = plain.microbatch_group_size;
  config.decoder_first_pipeline_num_layers = plain.decoder_first_pipeline_num_layers;
  config.decoder_last_pipeline_num_layers = plain.decoder_last_pipeline_num_layers;
  config.account_for_embedding_in_pipeline_split = plain.account_for_embedding_in_pipeline_split;
  config.account_for_loss_in_pipeline_split = plain.account_for_loss_in_pipeline_split;
  config.pipeline_model_parallel_layout.clear();
  return config;
}

}  // namespace bev
