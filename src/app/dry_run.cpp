#include "app/dry_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/memory_fit.h"
#include "app/ranks.h"
#include "app/run_summary.h"
#include "base/fields.h"
#include "base/text.h"
#include "parallel/engine.h"
#include "plan/flops.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kRanksShown = 64;          // larger meshes are summarised by stage
constexpr std::int64_t kRanksWithGroups = 1024;  // in JSON; larger meshes would give too long lists

struct Forecast {
  MemoryPlan memory;
  BatchSize first, last;  // of the first and the last iteration
  double first_flops = 0, last_flops = 0;
  double megatron_flops = 0;  // of the last iteration, by Megatron's formula
  // Totals of the run; empty if it has no length.
  std::optional<std::int64_t> iterations, samples, tokens;
};

// Pairs are two completions of up to a sequence each. Rows that have the reference's
// log-probabilities need less: its model is not loaded.
void add_preferences(const RunConfig& run, MemoryQuery& query) {
  const ObjectiveRule rule = run.data.preferences.rule();
  const bool own = run.model.lora.used() && run.data.preferences.ref_model.empty();
  bool pairs = rule.kind == ObjectiveKind::kPair || rule.kind == ObjectiveKind::kReward;
  if (pairs) query.micro_batch_size *= 2;
  query.log_probs = true;
  query.rollouts = run.data.preferences.rollouts;
  query.reference = rule.uses_reference() && !own;
}

// Plans the micro-batch with the most memory: as many tokens as the ranks hold, of sequences that
// all of them share.
void add_shared_sequences(const RunConfig& run, MemoryQuery& query) {
  ParallelConfig& parallel = query.parallel;
  const std::int64_t samples = query.micro_batches * query.micro_batch_size;
  parallel.hybrid_context_parallel = false;
  parallel.context_parallel_size *= std::exchange(parallel.data_parallel_size, 1);
  const std::int64_t tokens = parallel.max_seqlen_per_dp_cp_rank * parallel.context_parallel_size;
  parallel.max_seqlen_per_dp_cp_rank = 0;
  query.seq_length = std::min(tokens, run.data.seq_length);
  query.micro_batch_size = tokens / query.seq_length;
  query.micro_batches = ceil_div(samples, query.micro_batch_size);
}

MemoryPlan memory_plan(const RunConfig& run, std::int64_t micro_batches) {
  MemoryQuery query;
  query.model = run.model;
  query.parallel = run.parallel;
  query.optim = run.optim;
  query.dtype = run.precision.model_dtype();
  query.fp8 = run.fp8;
  query.base = run.base;
  query.seq_length = run.data.seq_length;
  query.micro_batch_size = run.batch.micro_batch_size;
  query.micro_batches = micro_batches;
  query.max_attention_logit = run.log.log_max_attention_logit;
  if (run.data.preferences.any()) add_preferences(run, query);
  if (run.parallel.hybrid_context_parallel) add_shared_sequences(run, query);
  query.device = planned_kernels(run.runtime);
  return plan_memory(query);
}

Forecast forecast_of(const RunConfig& run) {
  BatchSchedule batches(run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length));
  Forecast forecast;
  if (run.train.train_iters > 0) {
    forecast.iterations = run.train.train_iters;
  } else if (run.train.train_samples > 0) {
    forecast.iterations = batches.iterations_within(run.train.train_samples);
  }
  std::int64_t last_start = batches.steps().back().from_samples;
  if (forecast.iterations) {
    forecast.samples = batches.samples_after(*forecast.iterations);
    forecast.tokens = *forecast.samples * run.data.seq_length;
    last_start = batches.samples_after(std::max<std::int64_t>(*forecast.iterations - 1, 0));
  }
  forecast.first = batches.at(0);
  forecast.last = batches.at(last_start);
  forecast.first_flops = model_flops(run.model, forecast.first.running, run.data.seq_length);
  forecast.last_flops = model_flops(run.model, forecast.last.running, run.data.seq_length);
  forecast.megatron_flops = megatron_flops(
      flop_sizes(run.model), unpacked_tokens(forecast.last.running, run.data.seq_length));
  std::int64_t most = 1;
  for (const BatchSchedule::Step& step : batches.steps()) {
    if (step.from_samples > last_start) break;
    most = std::max(most, batches.at(step.from_samples).micro_batches);
  }
  forecast.memory = memory_plan(run, most);
  return forecast;
}

// The configuration with the derived sizes of the model filled in.
RunConfig shown(const RunConfig& run) {
  RunConfig copy = run;
  copy.model.ffn_hidden_size = run.model.ffn_size();
  copy.model.num_query_groups = run.model.kv_heads();
  copy.model.kv_channels = run.model.head_size();
  return copy;
}

const RankMemory& largest(const MemoryPlan& plan) {
  return *std::ranges::max_element(plan.ranks, {}, &RankMemory::total);
}

// Total of device and host memory over all ranks.
double sum_of_ranks(const MemoryPlan& plan) {
  double sum = 0;
  for (const RankMemory& rank : plan.ranks) sum += static_cast<double>(rank.total() + rank.host());
  return sum;
}

double machine_bytes() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGE_SIZE));
}

// Text.

std::string bytes_text(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void add_line(std::string& out, std::string_view name, std::string_view value) {
  std::string label = concat(name, " ");
  out += fmt::format("  {:.<48} {}\n", label, value);
}

// Whether it fits, and what it is.
void add_essentials(std::string& out, const RunConfig& run, const Forecast& forecast) {
  MemoryFit fit = memory_fit(run, forecast.memory, {}, machine_bytes());
  bool known = fit.there_bytes > 0;
  out += concat(!known ? "memory: " : fit.fits() ? "fits: " : "does not fit: ", fit.text());
  if (std::size_t ranks = forecast.memory.ranks.size(); ranks > 1) {
    out += concat(" for ", ranks, " ranks, ", bytes_text(largest(forecast.memory).total()),
                  " for the largest");
  }
  out += "\n";
  if (!fit.fits()) {
    out += memory_advice(run, {}, machine_bytes()).substr(1) + "\n";
  }
  out += concat("parameters: ", format_count(static_cast<double>(forecast.memory.parameters)), " (",
                forecast.memory.parameters, ")\n");
  out += concat("model: ", architecture_text(run.model), "\n");
  out += concat("run: ", length_text(run, 0), "\n");
}

void add_config(std::string& out, const RunConfig& run) {
  RunConfig copy = shown(run);
  FieldList list;
  copy.fields(list);
  for (const std::string& section : list.sections()) {
    out += concat("------------------------ ", section, " ------------------------\n");
    for (const auto& entry : list.entries()) {
      if (entry->section != section) continue;
      std::string value = entry->field.text();
      add_line(out, entry->field.name(), value.empty() ? "none" : value);
    }
  }
}

std::string either(std::int64_t first, std::int64_t last) {
  return first == last ? concat(first) : concat(first, " at first, ", last, " at last");
}

std::string known(const std::optional<std::int64_t>& value) {
  return value ? concat(*value) : "not known: the run has no length";
}

std::string flops_text(const Forecast& forecast) {
  std::string last = fmt::format("{:.4g}", forecast.last_flops);
  if (forecast.first_flops == forecast.last_flops) return last;
  return fmt::format("{:.4g} at first, {} at last", forecast.first_flops, last);
}

void add_run(std::string& out, const RunConfig& run, const Forecast& forecast) {
  const MemoryPlan& plan = forecast.memory;
  out += "------------------------ model and run ------------------------\n";
  auto count = [](std::int64_t n) {
    return concat(n, " (", format_count(static_cast<double>(n)), ")");
  };
  add_line(out, "parameters", count(plan.parameters));
  add_line(out, "parameters of embeddings and output layer", count(plan.embedding_parameters));
  add_line(out, "parameters of the rest", count(plan.parameters - plan.embedding_parameters));
  add_line(out, "floating-point operations per iteration", flops_text(forecast));
  add_line(out, "as Megatron counts them", fmt::format("{:.4g}", forecast.megatron_flops));
  add_line(out, "global batch size", either(forecast.first.running, forecast.last.running));
  add_line(out, "micro-batches per rank",
           concat(either(forecast.first.micro_batches, forecast.last.micro_batches), " of ",
                  run.batch.micro_batch_size, " x ", run.data.seq_length, " tokens"));
  add_line(out, "iterations", known(forecast.iterations));
  add_line(out, "samples", known(forecast.samples));
  add_line(out, "tokens", known(forecast.tokens));
  MeshShape mesh = mesh_shape(run.parallel);
  add_line(out, "mesh",
           concat("tp ", mesh.tp, " x cp ", mesh.cp, " x dp ", mesh.dp, " x pp ", mesh.pp, " = ",
                  mesh.size(), " ranks"));
  add_line(out, "mesh of experts",
           concat("etp ", mesh.etp, " x ep ", mesh.ep, " x edp ", mesh.edp(), " x pp ", mesh.pp));
}

// The process groups of each kind, each once: "[0 1] [2 3]". Kinds whose groups are single ranks
// are omitted.
void add_groups(std::string& out, const RunConfig& run) {
  MeshShape mesh = mesh_shape(run.parallel, run.model);
  if (mesh.size() == 1 || mesh.size() > static_cast<std::int64_t>(kRanksShown)) return;
  out += "------------------------ groups of ranks ------------------------\n";
  for (int kind = 0; kind < kMeshGroupCount; ++kind) {
    auto group = static_cast<MeshGroup>(kind);
    std::vector<std::string> texts;
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      std::vector<int> members = members_of(mesh, rank, group);
      if (members.size() < 2 || members.front() != rank) continue;
      texts.push_back(fmt::format("[{}]", fmt::join(members, " ")));
    }
    if (!texts.empty()) add_line(out, name_of(group), join(texts, " "));
  }
}

void add_rank(std::string& out, const RankMemory& rank, bool marked) {
  out += fmt::format(
      "{:>6} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>10} {:>11} {:>11} {:>11} {:>11} "
      "{:>11} {:>11}{}\n",
      rank.rank, rank.at.tp, rank.at.cp, rank.at.dp, rank.at.pp, rank.at.etp, rank.at.ep,
      rank.at.edp, format_count(static_cast<double>(rank.parameters)), bytes_text(rank.weights),
      bytes_text(rank.gradients), bytes_text(rank.optimizer), bytes_text(rank.activations),
      bytes_text(rank.total()), bytes_text(rank.host()), marked ? "  < most" : "");
}

void add_memory(std::string& out, const RunConfig& run, const MemoryPlan& plan) {
  const RankMemory& most = largest(plan);
  out += "------------------------ memory by rank ------------------------\n";
  out += fmt::format(
      "{:>6} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>10} {:>11} {:>11} {:>11} {:>11} {:>11} "
      "{:>11}\n",
      "rank", "tp", "cp", "dp", "pp", "etp", "ep", "edp", "parameters", "weights", "gradients",
      "optimizer", "activations", "total", "on host");
  bool all = plan.ranks.size() <= kRanksShown;
  MeshShape mesh = mesh_shape(run.parallel);
  for (const RankMemory& rank : plan.ranks) {
    if (all) add_rank(out, rank, &rank == &most);
  }
  // For a large mesh, shows the largest rank of each stage.
  for (std::int64_t stage = 0; stage < mesh.pp && !all; ++stage) {
    auto need = [&](const RankMemory& rank) { return rank.at.pp == stage ? rank.total() : -1; };
    const RankMemory& rank = *std::ranges::max_element(plan.ranks, {}, need);
    add_rank(out, rank, &rank == &most);
  }
  if (!all) out += concat("  (of each of the ", mesh.pp, " stages the rank that needs most)\n");
  if (run.runtime.device == DeviceKind::kCuda) return;
  double sum = sum_of_ranks(plan), machine = machine_bytes();
  add_line(out, "all ranks together", format_bytes(sum));
  add_line(out, "memory of this machine",
           concat(format_bytes(machine), sum <= machine ? ": fits" : ": does not fit"));
}

// JSON.

Json number_of(const std::string& text) {
  std::int64_t whole = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc() && end == text.data() + text.size()) return whole;
  double real = 0;
  std::from_chars(text.data(), text.data() + text.size(), real);
  return real;
}

Json value_of(const Field& field) {
  std::string text = field.text();
  if (field.is_flag()) return text == "true";
  if (field.is_number()) return number_of(text);
  if (!field.is_list()) return text;
  std::string type = field.type_text();
  bool numbers = type.starts_with("list of integers") || type.starts_with("list of numbers");
  Json list = Json::array();
  if (text.empty()) return list;
  for (const std::string& item : split(text, ',')) {
    list.push_back(numbers ? number_of(item) : Json(item));
  }
  return list;
}

Json config_json(const RunConfig& run) {
  RunConfig copy = shown(run);
  FieldList list;
  copy.fields(list);
  Json out = Json::object();
  for (const auto& entry : list.entries()) out[entry->field.name()] = value_of(entry->field);
  return out;
}

Json groups_json(const MeshShape& mesh, std::int64_t rank) {
  Json groups = Json::object();
  for (int kind = 0; kind < kMeshGroupCount; ++kind) {
    auto group = static_cast<MeshGroup>(kind);
    groups[std::string(name_of(group))] = members_of(mesh, rank, group);
  }
  return groups;
}

Json rank_json(const RankMemory& rank) {
  return {{"rank", rank.rank},
          {"tp", rank.at.tp},
          {"cp", rank.at.cp},
          {"dp", rank.at.dp},
          {"pp", rank.at.pp},
          {"etp", rank.at.etp},
          {"ep", rank.at.ep},
          {"edp", rank.at.edp},
          {"parameters", rank.parameters},
          {"weights", rank.weights},
          {"gradients", rank.gradients},
          {"optimizer", rank.optimizer},
          {"activations", rank.activations},
          {"gathered", rank.gathered},
          {"total", rank.total()},
          {"host_optimizer", rank.host_optimizer},
          {"host_activations", rank.host_activations}};
}

Json layers_json(const ModelConfig& model) {
  Json layers = Json::array();
  for (const LayerSpec& spec : layer_specs(model)) {
    std::int64_t window = spec.attention.window;
    layers.push_back({{"mixer", spec.mixer != nullptr ? spec.mixer->name : "none"},
                      {"ffn", name_of(spec.feed_forward)},
                      {"window", window < 0 ? Json(nullptr) : Json(window)},
                      {"rope", spec.rope != RopeKind::kNone}});
  }
  return layers;
}

// Stages in the order of the model.
Json stages_json(const RunConfig& run) {
  PipelineLayout layout = pipeline_layout(run.model.num_layers, run.parallel);
  Json stages = Json::array();
  for (std::int64_t stage = 0; stage < layout.shape.stages(); ++stage) {
    const StageRange& range = layout.stages[static_cast<std::size_t>(stage)];
    StagePlace place = layout.shape.place_of(stage);
    Json depths = Json::array();
    Range held = range.depths(run.model);
    for (std::int64_t depth = held.begin; depth < held.end; ++depth) depths.push_back(depth + 1);
    stages.push_back({{"stage", stage},
                      {"pp", place.rank},
                      {"chunk", place.chunk},
                      {"first_layer", range.first_layer},
                      {"end_layer", range.end_layer},
                      {"embedding", range.first},
                      {"head", range.last},
                      {"mtp_depths", std::move(depths)}});
  }
  return stages;
}

Json optional_json(const std::optional<std::int64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

MemoryPlan planned_memory(const RunConfig& run) { return forecast_of(run).memory; }

std::string dry_run_text(const RunConfig& run) {
  Forecast forecast = forecast_of(run);
  std::string out;
  add_essentials(out, run, forecast);
  add_config(out, run);
  add_run(out, run, forecast);
  add_groups(out, run);
  add_memory(out, run, forecast.memory);
  return out;
}

std::string dry_run_json(const RunConfig& run) {
  Forecast forecast = forecast_of(run);
  MeshShape mesh = mesh_shape(run.parallel);
  Json out;
  out["config"] = config_json(run);
  out["parameters"] = forecast.memory.parameters;
  out["embedding_parameters"] = forecast.memory.embedding_parameters;
  out["layers"] = layers_json(run.model);
  out["stages"] = stages_json(run);
  out["flops_per_iteration"] = forecast.last_flops;
  out["megatron_flops_per_iteration"] = forecast.megatron_flops;
  out["iterations"] = optional_json(forecast.iterations);
  out["samples"] = optional_json(forecast.samples);
  out["tokens"] = optional_json(forecast.tokens);
  out["batch"] = {{"micro_batch_size", run.batch.micro_batch_size},
                  {"first_global_batch_size", forecast.first.running},
                  {"last_global_batch_size", forecast.last.running},
                  {"first_micro_batches", forecast.first.micro_batches},
                  {"last_micro_batches", forecast.last.micro_batches}};
  out["mesh"] = {{"tp", mesh.tp}, {"cp", mesh.cp},   {"dp", mesh.dp},    {"pp", mesh.pp},
                 {"ep", mesh.ep}, {"etp", mesh.etp}, {"edp", mesh.edp()}};
  out["ranks"] = Json::array();
  bool groups = mesh.size() <= kRanksWithGroups;
  MeshShape model_mesh = mesh_shape(run.parallel, run.model);
  for (const RankMemory& rank : forecast.memory.ranks) {
    Json row = rank_json(rank);
    if (groups) row["groups"] = groups_json(model_mesh, rank.rank);
    out["ranks"].push_back(std::move(row));
  }
  if (run.runtime.device != DeviceKind::kCuda) {
    out["fits_machine"] = sum_of_ranks(forecast.memory) <= machine_bytes();
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace bev
