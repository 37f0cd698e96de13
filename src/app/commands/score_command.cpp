// score: loss, logits and gradients of a Hugging Face model or a checkpoint on given tokens, under
// any layout.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands/commands.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "app/score_objective.h"
#include "app/score_outputs.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "bridge/adapter_files.h"
#include "bridge/hf_model.h"
#include "bridge/safetensors.h"
#include "bridge/weight_map.h"
#include "data/batch_file.h"
#include "data/token_file.h"
#include "infer/token_scores.h"
#include "models/model.h"
#include "ops/converted.h"
#include "ops/loss.h"
#include "posttrain/reference_model.h"

namespace bev {

namespace {

struct ScoreOptions {
  ModelSource model;
  std::string tokens;
  std::string batch;
  std::string objective;
  std::string ref_model;
  std::string logits_out;
  std::string grads_out;
  std::vector<std::string> outputs;
  std::string outputs_out;
  bool logprobs = false;
  bool json = true;  // always
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  // What the model does not give.
  std::vector<std::string> label_problems() const;
};

void ScoreOptions::fields(FieldList& list) {
  list.section("score");
  model.fields(list);
  list.add("tokens", tokens, "JSON file with input_ids [[...]] and perhaps labels (-100: ignored)");
  list.add("batch", batch,
           "JSON file {\"input_ids\": [[ids], ...], \"labels\": ..., \"attention_mask\": ...}; a "
           "field that the model does not use is an error");
  list.add("objective", objective,
           "loss of the pairs, rows or rollouts of --batch instead of cross entropy; what they and "
           "\"settings\" hold is as in `bevatron objective`")
      .one_of(objective_names());
  list.add(
      "ref-model", ref_model,
      "Hugging Face folder of the reference, for --objective; without it the log-probabilities "
      "of the reference are those of the batch, or 0");
  list.add("logits-out", logits_out,
           "safetensors file for the logits, [B,S,V] in fp32; 0 where there is no token");
  list.add("grads-out", grads_out,
           "safetensors file for the gradients of the mean loss, in fp32, with --fp64 in fp64");
  list.add("outputs", outputs,
           "outputs of the model by Hugging Face's names, for --outputs-out: logits, "
           "last_hidden_state, and those of an encoder's heads: pooler_output, "
           "seq_relationship_logits, start_logits, end_logits");
  list.add("outputs-out", outputs_out,
           "safetensors file for --outputs, [B,S,..] or [B,..] in fp32, with --fp64 in fp64; 0 "
           "where there is no token");
  list.add("logprobs", logprobs,
           "add the log-probability of every token: \"logprobs\" [[null, ...], ...]; null where "
           "there is none");
  list.add("json", json, "results are one JSON line in any case");
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> ScoreOptions::problems() const {
  std::vector<std::string> out = model.problems();
  if (batch.empty()) need(tokens, "--tokens", "a JSON file with input_ids, or --batch", out);
  if (!tokens.empty() && !batch.empty()) {
    out.push_back("--batch: excludes --tokens; keep one");
  }
  if (!objective.empty()) need(batch, "--batch", "the file with the completions", out);
  if (objective.empty() && !ref_model.empty()) out.push_back("--ref-model: needs --objective");
  if (!objective.empty() && (logprobs || !logits_out.empty())) {
    out.push_back(concat(logprobs ? "--logprobs" : "--logits-out",
                         ": excludes --objective, which prints \"logps\"; keep one"));
  }
  if (!logits_out.empty() && logits_out == grads_out) {
    out.push_back(concat("--grads-out: ", grads_out, " is also --logits-out; give two files"));
  }
  return out;
}

std::vector<std::string> ScoreOptions::label_problems() const {
  std::vector<std::string> out;
  for (std::string& problem : output_problems(run.model, outputs, outputs_out)) {
    out.push_back(std::move(problem));
  }
  if (run.model.encoder.encoder) {
    if (logprobs) out.push_back("--logprobs: an encoder predicts no next tokens; leave it away");
    if (!logits_out.empty() && !run.model.has_output_layer()) {
      out.push_back("--logits-out: the model has no output layer; give --outputs");
    }
    return out;
  }
  if (run.model.num_labels == 0 || !objective.empty()) return out;
  const char* why = ": the model scores sequences and predicts no tokens; leave it away";
  if (!logits_out.empty()) out.push_back(concat("--logits-out", why));
  if (!grads_out.empty()) out.push_back(concat("--grads-out", why));
  if (logprobs) out.push_back(concat("--logprobs", why));
  return out;
}

// Approximate tokens of a micro-batch: bounds the memory of long files.
constexpr std::int64_t kMicroBatchTokens = 8192;

struct ScoreJob {
  const ScoreOptions& wanted;
  const SourceModel& model;
  GlobalBatch batch;
  std::int64_t micro_batch_size = 1;
  const ObjectiveScore* objective = nullptr;  // null: cross entropy
};

GlobalBatch read_input(const ScoreOptions& wanted) {
  const ModelConfig& model = wanted.run.model;
  const bool rows = wanted.batch.empty() && !model.encoder.encoder;
  if (rows) return batch_of(read_token_rows(wanted.tokens, model.vocab_size));
  const std::string& file = wanted.batch.empty() ? wanted.tokens : wanted.batch;
  GlobalBatch batch = read_batch(file, batch_format(model));
  check_windows(model, batch);
  return batch;
}

ScoreJob make_job(const ScoreOptions& wanted, const SourceModel& model, GlobalBatch batch) {
  std::int64_t rows = kMicroBatchTokens / std::max<std::int64_t>(batch.columns, 1);
  return {wanted, model, std::move(batch), std::max<std::int64_t>(rows, 1)};
}

double target_count(const ScoreJob& job) {
  double count = 0;
  for (const TokenSample& sample : job.batch.samples) {
    for (float weight : sample.weights) count += weight;
  }
  return count;
}

// Full logits [T, V] of a micro-batch in f32, on the ranks of the last stage.
Tensor whole_logits(RankModel& model, const MicroBatch& batch, const Var& final) {
  Context& ctx = model.ctx();
  Tensor whole =
      gather_vocabulary(ctx, stage_logits(ctx, model.head_stage(), final, batch.layout.tokens),
                        model.options().model.vocab_size);
  whole = converted(ctx, whole, Dtype::kF32, "logits");
  return join_sequences(model, batch.layout, std::move(whole));
}

// Writes the samples in order, the logits of each token in its column; all others are zeros.
class LogitsFile {
 public:
  LogitsFile(const std::string& path, const GlobalBatch& batch, std::int64_t vocabulary)
      : batch_(batch),
        width_(static_cast<std::size_t>(vocabulary)),
        writer_(path,
                {{"logits", Dtype::kF32, {std::ssize(batch.samples), batch.columns, vocabulary}}}) {
  }

  // Appends the full rows of the next samples.
  void add(std::span<const float> logits) {
    while (!logits.empty()) {
      std::vector<float> row(static_cast<std::size_t>(batch_.columns) * width_);
      for (std::int32_t column : columns_of(batch_.samples[next_++])) {
        std::ranges::copy(logits.first(width_),
                          row.begin() + static_cast<std::ptrdiff_t>(column) *
                                            static_cast<std::ptrdiff_t>(width_));
        logits = logits.subspan(width_);
      }
      writer_.write("logits", std::as_bytes(std::span(row)));
    }
  }
  void commit() { writer_.commit(); }

 private:
  const GlobalBatch& batch_;
  std::size_t width_;
  std::size_t next_ = 0;
  SafetensorsWriter writer_;
};

// Receives the logits of one micro-batch, on the ranks that have them.
class LogitsSink : public OutputSink {
 public:
  LogitsSink(RankModel& model, const MicroBatch& batch) : model_(model), batch_(batch) {}
  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    logits = model_.ctx().download<float>(whole_logits(model_, batch_, outputs[0]));
  }
  std::vector<float> logits;

 private:
  RankModel& model_;
  const MicroBatch& batch_;
};

// Number of tokens of the m-th micro-batch of a data-parallel rank.
std::int64_t token_count(const ScoreJob& job, std::int64_t micro_batch_number) {
  std::int64_t total = std::ssize(job.batch.samples);
  std::int64_t first = std::min(micro_batch_number * job.micro_batch_size, total);
  std::int64_t rows = 0;
  for (std::int64_t i = first; i < std::min(first + job.micro_batch_size, total); ++i) {
    rows += std::ssize(job.batch.samples[static_cast<std::size_t>(i)].tokens);
  }
  return rows;
}

// Runs forward only, one micro-batch at a time to bound memory. World rank 0 receives the rows in
// the order of the samples.
void write_logits(RankModel& model, const ScoreJob& job, std::span<const MicroBatch> batches) {
  const MeshShape& mesh = model.mesh().shape();
  Group& world = model.mesh().world().host();
  auto view_of = [](std::vector<float>& values) {
    return View{values.data(), Dtype::kF32, {static_cast<std::int64_t>(values.size())}};
  };
  std::int64_t vocabulary = model.options().model.vocab_size;
  const PipelineShape& pipeline = model.pipeline().shape;
  std::int64_t head_rank = pipeline.place_of(pipeline.stages() - 1).rank;
  std::unique_ptr<LogitsFile> file;
  if (world.rank() == 0) {
    file = std::make_unique<LogitsFile>(job.wanted.logits_out, job.batch, vocabulary);
  }
  for (std::size_t m = 0; m < batches.size(); ++m) {
    LogitsSink sink(model, batches[m]);
    model.forward_outputs(batches.subspan(m, 1), sink);
    for (std::int64_t dp = 0; dp < mesh.dp; ++dp) {
      auto source = static_cast<int>(rank_of(mesh, {0, 0, dp, head_rank}));
      if (source != 0 && world.rank() == source) {
        world.send(view_of(sink.logits), 0, 0, "logits").wait();
      }
      if (world.rank() != 0) continue;
      if (source != 0) {
        std::int64_t rows = token_count(job, static_cast<std::int64_t>(m) * mesh.dp + dp);
        sink.logits.resize(static_cast<std::size_t>(rows * vocabulary));
        world.receive(view_of(sink.logits), source, 0, "logits").wait();
      }
      file->add(sink.logits);
    }
  }
  if (file) file->commit();
}

// Writes the gradients of the mean loss, of a model with adapters theirs alone; the gradients in
// the model are multiplied by `scale`.
void write_gradients(RankModel& model, const std::string& path, double scale) {
  const ModelConfig& config = model.options().model;
  WeightMap map = config.lora.used() ? adapter_map(config) : WeightMap(config);
  Dtype dtype = model.options().dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  std::vector<ExportTensor> tensors = export_tensors(map, dtype);
  std::unique_ptr<SafetensorsWriter> writer;
  if (model.mesh().world().rank() == 0) {
    std::vector<TensorSpec> specs;
    for (const ExportTensor& tensor : tensors) specs.push_back(tensor.spec);
    writer = std::make_unique<SafetensorsWriter>(path, specs);
  }
  gather_tensors(model, ParamGather::What::kGradient, map, tensors,
                 [&](const ExportTensor& tensor, std::span<const std::byte> bytes) {
                   visit_float(dtype, [&]<class T>(T) {
                     std::vector<T> values(bytes.size() / sizeof(T));
                     std::memcpy(values.data(), bytes.data(), bytes.size());
                     for (T& value : values) {
                       value = static_cast<T>(static_cast<double>(value) / scale);
                     }
                     writer->write(tensor.spec.name, std::as_bytes(std::span(values)));
                   });
                 });
  if (writer) writer->commit();
}

using Json = nlohmann::ordered_json;

// By column of the input: null for masked tokens and the first of each row.
Json logprob_rows(const GlobalBatch& batch, const std::vector<std::vector<double>>& scores) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::vector<std::int32_t> columns = columns_of(batch.samples[i]);
    Json row = Json::array();
    for (std::size_t t = 0; t < scores[i].size(); ++t) {
      while (std::ssize(row) < columns[t]) row.push_back(nullptr);
      row.push_back(t > 0 && std::isfinite(scores[i][t]) ? Json(scores[i][t]) : Json());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The terms of a loss that has several.
void add_terms(const StepResult& result, Json& line) {
  Json terms;
  for (const Metric& metric : result.metrics) {
    const bool term = metric.name == "lm loss" || metric.name == "sop loss";
    if (term) terms[std::string(metric.name)] = metric.value;
  }
  if (terms.size() > 1) line["losses"] = terms;
}

void print_result(const StepResult& result, const Json& logprobs) {
  nlohmann::ordered_json line;
  line["loss"] = std::isfinite(result.loss) ? nlohmann::ordered_json(result.loss) : nullptr;
  line["tokens"] = static_cast<std::int64_t>(std::llround(result.tokens));
  line["grad_norm"] =
      std::isfinite(result.grad_norm) ? nlohmann::ordered_json(result.grad_norm) : nullptr;
  if (!logprobs.is_null()) line["logprobs"] = logprobs;
  add_terms(result, line);
  write_stdout(line.dump() + "\n");
}

// True if something of the batch of an encoder has a label.
bool has_labels(const GlobalBatch& batch) {
  return std::ranges::any_of(batch.samples, [](const TokenSample& sample) {
    bool tokens = std::ranges::any_of(sample.weights, [](float weight) { return weight != 0; });
    return tokens || std::ranges::any_of(sample.fields, [](const SampleField& field) {
             return field.rows == FieldRows::kSamples;
           });
  });
}

void print_without_loss(Engine& engine, const ScoreJob& job) {
  BEV_CHECK(job.wanted.grads_out.empty(), ErrorKind::kInput, job.wanted.batch,
            ": has no labels, so there is no loss; give labels, or leave --grads-out away");
  if (!job.wanted.logits_out.empty()) {
    write_logits(engine.model(), job,
                 rank_micro_batches(engine.model().ctx(), job.batch.samples, job.micro_batch_size));
  }
  if (engine.model().mesh().world().rank() == 0) print_result({.loss = NAN, .grad_norm = NAN}, {});
}

// A model for sequence classification has scores in place of a loss.
void score_sequences(Engine& engine, const ScoreJob& job) {
  std::vector<std::vector<double>> scores =
      sequence_scores(engine.model(), job.batch.samples, job.micro_batch_size);
  if (engine.model().mesh().world().rank() != 0) return;
  Json rows = Json::array();
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    Json row = Json::array();
    for (double score : scores[i]) row.push_back(std::isfinite(score) ? Json(score) : Json());
    rows.push_back(std::move(row));
    tokens += job.batch.samples[i].tokens.size();
  }
  Json line{{"loss", nullptr}, {"tokens", tokens}, {"grad_norm", nullptr}, {"scores", rows}};
  write_stdout(line.dump() + "\n");
}

void score_rank(const RankStart& start, const ScoreJob& job) {
  EngineOptions options = engine_options(job.wanted.run, start.threads, start.local_rank);
  options.optimizer = false;
  if (job.objective != nullptr) options.objective = &job.objective->objective();
  Engine engine(start.world, start.kernels, options);
  job.model.load_weights(engine);
  if (!job.wanted.outputs.empty()) {
    write_outputs(engine.model(), job.wanted.outputs, job.wanted.outputs_out, job.batch,
                  job.micro_batch_size);
  }
  const bool encoder = options.model.encoder.encoder;
  if (options.model.num_labels > 0 && !encoder && job.objective == nullptr) {
    return score_sequences(engine, job);
  }
  if (encoder && !has_labels(job.batch)) return print_without_loss(engine, job);
  std::unique_ptr<RankModel> reference;
  if (!job.wanted.ref_model.empty()) {
    reference = open_reference(engine.model(), job.wanted.ref_model);
  }
  std::vector<MicroBatch> batches =
      rank_micro_batches(engine.model().ctx(), job.batch.samples, job.micro_batch_size,
                         mtp_spec(engine.model().options().model));
  if (job.objective != nullptr) {
    CompletionPreparation(job.objective->rule(), engine.model(), reference.get()).prepare(batches);
  } else {
    engine.prepare(batches);
  }
  if (!job.wanted.logits_out.empty()) write_logits(engine.model(), job, batches);
  StepInput input;
  input.iteration = 1;
  // In fp16 the gradients of a mean would underflow: gradients of the sum are computed and divided.
  if (options.dtype == Dtype::kF16) input.loss_scale = std::max(target_count(job), 1.0);
  StepResult result = engine.gradients(batches, input);
  if (!job.wanted.grads_out.empty()) {
    write_gradients(engine.model(), job.wanted.grads_out, input.loss_scale);
  }
  if (job.objective != nullptr) {
    std::string line = job.objective->result(engine.model(), reference.get(), job.micro_batch_size,
                                             result.grad_norm);
    if (start.world.rank() == 0) write_stdout(line + "\n");
    return;
  }
  Json logprobs;
  if (job.wanted.logprobs) {
    std::vector<std::vector<double>> scores =
        token_scores(engine.model(), job.batch.samples, job.micro_batch_size);
    logprobs = logprob_rows(job.batch, scores);
  }
  if (start.world.rank() == 0) print_result(result, logprobs);
}

int run_score(ScoreOptions& wanted, const CommandInput& input) {
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  SourceModel model(wanted.model);
  wanted.run.model = model.config();
  options.add_problems(wanted.label_problems());
  options.add_problems(wanted.run.resolve_layout());
  options.add_problems(row_problems(wanted.run.parallel));
  options.throw_problems();
  std::optional<ObjectiveScore> objective;
  if (!wanted.objective.empty()) {
    objective.emplace(wanted.objective, wanted.batch, wanted.run.model, !wanted.ref_model.empty());
  }
  ScoreJob job = make_job(wanted, model, objective ? objective->batch() : read_input(wanted));
  if (objective) job.objective = &*objective;
  run_ranks(input.launch, wanted.run.parallel, wanted.run.runtime,
            [&](const RankStart& start) { score_rank(start, job); });
  return kExitOk;
}

}  // namespace

const Command kScoreCommand = {
    .name = "score",
    .summary = "loss, logits and gradients of a model on given tokens",
    .examples = "bevatron score --hf-model DIR --tokens batch.json --logits-out logits.safetensors",
    .call = call_of<ScoreOptions, run_score>};

}  // namespace bev
