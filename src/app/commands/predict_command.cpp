// predict: what a fine-tuned encoder says of examples, one JSON line for each; evaluate: metrics of
// such predictions.
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands/commands.h"
#include "app/evaluated.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/predictions.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/output.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

// A model with a head for labels, and the examples that it is applied to.
struct LabelModel {
  ModelSource model;
  LabelConfig labels;
  RunConfig run;

  void fields(FieldList& list) {
    labels.column_fields(list);
    run.parallel.fields(list);
    run.precision.fields(list);
    run.runtime.fields(list);
  }
};

struct Applied {
  ExampleFormat format;
  std::vector<TextExample> examples;
  std::vector<Prediction> predictions;
};

// Predictions of the examples of a file, in process 0; nullopt in others.
std::optional<Applied> apply(LabelModel& wanted, const std::string& file, bool need_labels,
                             const CommandInput& input) {
  Options& options = input.options;
  SourceModel source(wanted.model);
  wanted.run.model = source.config();
  options.add_problems(wanted.run.resolve_layout());
  options.throw_problems();
  Applied out{format_of(wanted.run.model, source.files()), {}, {}};
  BEV_CHECK(!source.files().empty(), ErrorKind::kInput,
            "--load: the run left no tokenizer; give the folder of an export by --hf-model");
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(source.files());
  BEV_CHECK(tokenizer, ErrorKind::kInput, source.files(),
            ": has no tokenizer of a kind that can be read");
  const ExampleEncoder encoder(*tokenizer, out.format);
  out.examples = read_text_examples(file, out.format.task, wanted.labels.columns, need_labels);
  bool first = false;
  run_ranks(input.launch, wanted.run.parallel, wanted.run.runtime, [&](const RankStart& start) {
    EngineOptions engine = engine_options(wanted.run, start.threads, start.local_rank);
    engine.gradients = false;
    Rank rank(start.world, start.kernels, engine);
    RankModel model(rank, engine);
    source.load_weights(model);
    std::vector<Prediction> found = predict(model, encoder, out.examples);
    if (start.world.rank() != 0) return;
    out.predictions = std::move(found);
    first = true;
  });
  return first ? std::optional<Applied>(std::move(out)) : std::nullopt;
}

struct PredictOptions {
  LabelModel with;
  std::string input, output;

  void fields(FieldList& list) {
    list.section("predict");
    with.model.fields(list);
    list.add("input", input, "table of examples: JSON lines, .csv or .tsv, with named columns");
    list.add("output", output, "file with a JSON line for each example");
    with.fields(list);
  }
  std::vector<std::string> problems() const {
    std::vector<std::string> out = with.model.problems();
    need(input, "--input", "a table of examples (.jsonl, .csv, .tsv)", out);
    need(output, "--output", "a file for the predictions", out);
    return out;
  }
};

int run_predict(PredictOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  const std::optional<Applied> found = apply(wanted.with, wanted.input, false, input);
  if (!found) return kExitOk;
  std::string lines;
  for (std::size_t i = 0; i < found->examples.size(); ++i) {
    lines += prediction_json(found->format, found->examples[i], i, found->predictions[i]) + "\n";
  }
  write_file(wanted.output, lines);
  nlohmann::ordered_json line{{"examples", found->examples.size()}, {"output", wanted.output}};
  write_stdout(line.dump() + "\n");
  return kExitOk;
}

struct EvaluateOptions {
  LabelModel with;
  std::string data, predictions, references;
  std::vector<std::string> metrics;

  void fields(FieldList& list) {
    list.section("evaluate");
    with.model.fields(list);
    list.add("data", data, "table of examples with labels, which the model is applied to");
    list.add("predictions", predictions, "instead of a model: JSON lines as `predict` writes them");
    list.add("references", references,
             "JSON lines with what is right, in the same order or with the same \"id\": label, "
             "labels, value, answer or answers");
    list.add("metrics", metrics,
             "accuracy, f1, f1_macro, f1_micro, f1_weighted, precision, recall, matthews of "
             "labels; pearson, spearman, mse, mae of numbers; accuracy, precision, recall, f1 of "
             "tags; exact_match, f1 of answers")
        .defaults_to("all of the task");
    with.fields(list);
  }
  std::vector<std::string> problems() const {
    std::vector<std::string> out;
    const bool files = !predictions.empty() || !references.empty();
    if (files) {
      need(predictions, "--predictions", "the file to judge", out);
      need(references, "--references", "the file with what is right", out);
      if (!data.empty()) out.push_back("--data: excludes --predictions; keep one");
      return out;
    }
    out = with.model.problems();
    need(data, "--data", "a table with labels, or --predictions and --references", out);
    return out;
  }
};

int run_evaluate(EvaluateOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  if (!wanted.predictions.empty()) {
    write_stdout(evaluate_files(wanted.predictions, wanted.references, wanted.metrics) + "\n");
    return kExitOk;
  }
  const std::optional<Applied> found = apply(wanted.with, wanted.data, true, input);
  if (!found) return kExitOk;
  write_stdout(
      evaluate_predictions(found->format, found->examples, found->predictions, wanted.metrics) +
      "\n");
  return kExitOk;
}

}  // namespace

const Command kPredictCommand = {
    .name = "predict",
    .summary = "labels, numbers, tags or answers of a fine-tuned encoder",
    .examples =
        "bevatron predict --hf-model DIR --input texts.jsonl --output predictions.jsonl\n"
        "bevatron predict --hf-model DIR --input pairs.tsv --text-column sentence1 "
        "--pair-column sentence2 --output p.jsonl",
    .call = call_of<PredictOptions, run_predict>};

const Command kEvaluateCommand = {
    .name = "evaluate",
    .summary = "metrics of a fine-tuned encoder, or of predictions",
    .examples =
        "bevatron evaluate --hf-model DIR --data test.csv --metrics accuracy,f1,matthews\n"
        "bevatron evaluate --predictions p.jsonl --references r.jsonl --metrics pearson,spearman",
    .call = call_of<EvaluateOptions, run_evaluate>};

}  // namespace bev
