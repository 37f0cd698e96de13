#include "app/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "app/ranks.h"
#include "app/run_folder.h"
#include "base/fields.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "data/gpt/split.h"
#include "data/indexed/indexed_dataset.h"
#include "models/families/family.h"
#include "train/token_files.h"

namespace bev {

namespace {

std::string count_text(std::int64_t count) { return format_count(static_cast<double>(count)); }

std::string plural(std::int64_t count, std::string_view one, std::string_view many) {
  return concat(count, " ", count == 1 ? one : many);
}

std::int64_t layers_with(const ModelConfig& model, bool (ModelConfig::*has)(std::int64_t) const) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) count += (model.*has)(layer);
  return count;
}

std::string attention_text(const ModelConfig& model) {
  std::string text =
      concat(plural(model.num_attention_heads, "head", "heads"), " of ", model.head_size());
  if (model.multi_latent_attention) {
    text += concat(" from latents of ", model.kv_lora_rank);
  } else if (model.kv_heads() != model.num_attention_heads) {
    text += concat(" (", model.kv_heads(), " of keys and values)");
  }
  if (model.window_size > 0) {
    text += concat(", window ", model.window_size + 1, " in ",
                   plural(layers_with(model, &ModelConfig::windowed), "layer", "layers"));
  }
  return text;
}

std::string experts_text(const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  std::string text =
      concat(moe.num_experts, " experts of ", model.expert_ffn_size(), " (top ", moe.topk, ") in ",
             plural(layers_with(model, &ModelConfig::has_experts), "layer", "layers"));
  if (moe.shared_expert_size > 0) text += concat(", shared expert of ", moe.shared_expert_size);
  return text;
}

std::string device_text(const RunConfig& run, const RuntimeConfig& runtime, const Launch& launch) {
  GpuInfo gpus = gpu_info(run.runtime);
  std::int64_t ranks = mesh_shape(run.parallel).size() / launch.processes;
  if (gpus.used) {
    std::int64_t local = std::min(gpus.count, ranks * launch.local_processes);
    return concat(plural(local, "GPU", "GPUs"), " of ", gpus.count, ", ", gpus.name, " with ",
                  format_bytes(gpus.memory_bytes));
  }
  int threads = threads_per_rank(runtime, ranks, launch);
  return concat("CPU, ", plural(machine_threads(), "core", "cores"), ", ",
                plural(threads, "thread", "threads"), ranks > 1 ? " for each rank" : "");
}

std::string precision_text(const RunConfig& run) {
  std::string text(name_of(run.precision.model_dtype()));
  if (run.precision.bf16 || run.precision.fp16) {
    text += concat(" with main weights in ", name_of(run.optim.dtypes.main_params));
  }
  if (run.fp8.used())
    text += run.fp8.emulates_fp4() ? ", linear layers in fp4" : ", linear layers in fp8";
  return text;
}

// Tokens of the training split of the token files; 0 if they are not known.
double file_tokens(const DataConfig& config) {
  if (!config.has_token_files()) return 0;
  GptSources sources = gpt_sources(config);
  const Blend* blend = sources.own[0]   ? &*sources.own[0]
                       : sources.shared ? &*sources.shared
                                        : nullptr;
  if (blend == nullptr) return 0;
  double tokens = 0;
  for (const std::string& prefix : blend->prefixes) {
    tokens += static_cast<double>(IndexedDataset(prefix).num_tokens());
  }
  if (sources.own[0]) return tokens;
  constexpr std::int64_t kParts = std::int64_t{1} << 40;
  return tokens * static_cast<double>(split_bounds(config.split_weights(), kParts)[1]) /
         static_cast<double>(kParts);
}

double training_tokens(const RunConfig& run, const RunData& data) {
  if (run.data.mock_data || data.replay || !data.train) return 0;
  double tokens = file_tokens(run.data);
  if (tokens > 0) return tokens;
  return static_cast<double>(data.train->num_samples() * data.train->seq_length());
}

std::string data_text(const RunConfig& run, const RunData& data) {
  if (data.replay) {
    std::string flag = run.data.replay_flag();
    return concat(plural(static_cast<std::int64_t>(data.replay->size()), "batch", "batches"),
                  " of ", flag);
  }
  if (run.data.preferences.rollouts) {
    return concat("completions of ", join(run.data.preferences.data, ", "), ", sampled by the run");
  }
  double tokens = training_tokens(run, data);
  std::string length = length_text(run, tokens);
  if (data.train && data.train->seq_length() == 0) {
    return concat(plural(data.train->num_samples(), "sample", "samples"), " of --data, ", length);
  }
  if (run.data.mock_data) return concat("made-up tokens, ", length);
  return concat(format_count(tokens), " tokens for training, ", length);
}

std::string layout_text(const RunConfig& run) {
  MeshShape mesh = mesh_shape(run.parallel);
  std::string text = plural(mesh.size(), "rank", "ranks");
  if (mesh.size() > 1) {
    text += concat(" = tp ", mesh.tp, " x cp ", mesh.cp, " x dp ", mesh.dp, " x pp ", mesh.pp);
  }
  if (mesh.ep > 1) text += concat(", ep ", mesh.ep);
  return concat(text, ", micro-batches of ", run.batch.micro_batch_size, " x ", run.data.seq_length,
                " tokens");
}

std::string results_text(const RunConfig& run) {
  std::vector<std::string> places;
  auto add = [&](std::string_view what, const std::string& where) {
    if (!where.empty()) places.push_back(concat(what, " ", where));
  };
  add("checkpoints", run.checkpoint.save);
  add("model", run.train.export_hf);
  add("models", run.checkpoint.save_hf);
  add("metrics", metrics_path(run));
  add("TensorBoard", run.log.tensorboard_dir);
  add("trace", run.profile.profile_trace);
  add("loss curve", run.log.loss_svg);
  const bool kept =
      !concat(run.checkpoint.save, run.train.export_hf, run.checkpoint.save_hf).empty();
  if (!kept && !run.train.eval.skip_train)
    places.push_back("the model is not kept (--save DIR or --export-hf DIR keeps it)");
  return join(places, ", ");
}

}  // namespace

std::string architecture_text(const ModelConfig& given) {
  ModelConfig model = given;
  FieldList list;
  model.fields(list);
  auto value = [&](const char* flag) { return list.find(flag)->text(); };
  std::string text = concat(model.family, ", ", plural(model.num_layers, "layer", "layers"),
                            ", hidden size ", model.hidden_size, ", ", attention_text(model));
  if (model.has_dense_layers()) {
    text += concat(", MLP of ", model.ffn_size());
  }
  if (model.moe.any()) text += concat(", ", experts_text(model));
  text += concat(", ", model.gated ? "gated " : "", value("activation"), ", ",
                 value("normalization"), ", ", value("position-embedding-type"));
  if (model.rope_scaling.kind != RopeScalingKind::kDefault) {
    text += concat(" (", value("rope-scaling-type"), ")");
  }
  if (model.mtp_num_layers > 0) text += concat(", MTP ", model.mtp_num_layers);
  return concat(text, ", vocabulary ", model.vocab_size, ", ", model.max_position_embeddings,
                " positions");
}

std::string length_text(const RunConfig& run, double training_tokens) {
  BatchSchedule batches(run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length));
  std::int64_t iterations = run.train.train_iters > 0
                                ? run.train.train_iters
                                : batches.iterations_within(run.train.train_samples);
  if (iterations == 0) return "the run has no length";
  auto tokens = static_cast<double>(batches.samples_after(iterations) * run.data.seq_length);
  std::string text = concat(plural(iterations, "iteration takes", "iterations take"), " ",
                            format_count(tokens), " tokens");
  if (training_tokens <= 0) return text;
  return concat(text, fmt::format(" ({:.3g} epochs)", tokens / training_tokens));
}

std::vector<std::string> run_summary(const RunConfig& run, const RuntimeConfig& runtime,
                                     const RunData& data, const Launch& launch,
                                     const MemoryFit& memory) {
  std::int64_t parameters = count_parameters(run.model);
  std::vector<std::string> lines = {
      concat("device: ", device_text(run, runtime, launch)),
      concat("precision: ", precision_text(run)),
      concat("model: ", architecture_text(run.model)),
      concat("parameters: ", count_text(parameters), " (", parameters, ")"),
      concat("data: ", data_text(run, data)),
      concat("layout: ", layout_text(run)),
      concat("memory: ", memory.text()),
      concat("results: ", results_text(run)),
  };
  return lines;
}

std::vector<std::string> start_warnings(const RunConfig& run) {
  std::vector<std::string> out;
  const CheckpointConfig& checkpoint = run.checkpoint;
  std::int64_t positions = run.model.max_position_embeddings, length = run.data.seq_length;
  if (length > positions) {
    out.push_back(concat("--seq-length: ", length, " is beyond the ", positions,
                         " positions of the model (max_position_embeddings), which it was not made "
                         "for; shorten it, or stretch the model by --max-position-embeddings and "
                         "--rope-scaling-type"));
  }
  bool at_intervals = checkpoint.save_interval > 0 || checkpoint.save_interval_mins > 0 ||
                      checkpoint.non_persistent_save_interval > 0;
  if (!checkpoint.save.empty() && !at_intervals) {
    out.push_back(concat("--save ", checkpoint.save,
                         ": there is one checkpoint, at the end of the run; --save-interval N "
                         "also saves every N iterations"));
  }
  return out;
}

}  // namespace bev
