// generate: continues prompts with a Hugging Face model or a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/commands/commands.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "data/token_file.h"
#include "infer/end_tokens.h"
#include "infer/generator.h"
#include "infer/text_stream.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct GenerateOptions {
  ModelSource model;
  std::string prompt;
  std::string prompt_tokens;
  std::int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;
  bool ignore_eos = false;
  bool json = false;
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void GenerateOptions::fields(FieldList& list) {
  list.section("generate");
  model.fields(list);
  list.add("prompt", prompt, "text to continue");
  list.add("prompt-tokens", prompt_tokens, "JSON file with input_ids [[...]] to continue");
  list.add("max-new-tokens", max_new_tokens, "tokens to add").min(0).limit(1 << 24);
  list.add("temperature", temperature, "divides the logits; 0: always the likeliest token").min(0);
  list.add("top-k", top_k, "choose among so many likeliest tokens; 0: all").min(0).limit(1 << 28);
  list.add("top-p", top_p, "choose among the likeliest tokens that make up this probability")
      .above(0)
      .max(1);
  list.add("ignore-eos", ignore_eos, "go on after the end-of-sequence token");
  list.add("json", json, "one JSON line with token ids, log-probabilities and text");
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> GenerateOptions::problems() const {
  std::vector<std::string> out = model.problems();
  if (prompt.empty() && prompt_tokens.empty()) {
    out.push_back("--prompt: is missing; give it or --prompt-tokens");
  }
  if (!prompt.empty() && !prompt_tokens.empty()) {
    out.push_back("--prompt: excludes --prompt-tokens; keep one");
  }
  return out;
}

struct GenerateJob {
  const SourceModel& model;
  std::unique_ptr<Tokenizer> tokenizer = {};  // nullptr: none is readable
  std::vector<std::vector<std::int32_t>> prompts = {};
  GenerationOptions options = {};

  // Whether this token ends its sequence.
  bool ended_by(std::int32_t token) const {
    return !options.ignore_eos && std::ranges::find(options.eos, token) != options.eos.end();
  }
};

// Counts tokens and prints them as they are generated: the first sequence live, each later one
// after those before it have ended. A newline ends each.
class LiveOutput : public TokenSink {
 public:
  LiveOutput(const GenerateJob& job, bool quiet)
      : job_(job), quiet_(quiet), start_(monotonic_seconds()), sequences_(job.prompts.size()) {
    if (!job.tokenizer) return;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      sequences_[i].text.emplace(*job.tokenizer, job.prompts[i]);
    }
  }

  void on_token(std::int64_t sequence, const TokenChoice& choice) override {
    last_ = monotonic_seconds();
    if (tokens_++ == 0) first_ = last_;
    if (quiet_) return;
    add(sequences_[static_cast<std::size_t>(sequence)], choice.token);
    if (sequence != static_cast<std::int64_t>(current_)) return;
    std::string ready;
    while (current_ < sequences_.size()) {
      ready += std::exchange(sequences_[current_].waiting, {});
      if (!sequences_[current_].ended) break;
      ++current_;
    }
    write_stdout(ready);
  }

  void log_speed() const {
    if (tokens_ == 0) return;
    double seconds = std::max(last_ - start_, 1e-9);
    log_info(
        fmt::format("generated {} tokens in {:.2f} s: {:.1f} tokens/s, the first after {:.2f} s",
                    tokens_, seconds, static_cast<double>(tokens_) / seconds, first_ - start_));
  }

 private:
  struct Sequence {
    std::optional<TextStream> text;
    std::string waiting;
    std::int64_t tokens = 0;
    bool ended = false;
  };

  void add(Sequence& sequence, std::int32_t token) const {
    bool last = job_.ended_by(token);
    if (!sequence.text) {
      sequence.waiting += concat(sequence.tokens == 0 ? "" : " ", token);
    } else if (!last) {
      sequence.waiting += sequence.text->add(token);
    }
    ++sequence.tokens;
    sequence.ended = last || sequence.tokens == job_.options.max_new_tokens;
    if (!sequence.ended) return;
    if (sequence.text) sequence.waiting += sequence.text->finish();
    sequence.waiting += '\n';
  }

  const GenerateJob& job_;
  bool quiet_;
  double start_, first_ = 0, last_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<Sequence> sequences_;
  std::size_t current_ = 0;  // the sequence that is printed live
};

// One line: {"generated": [[ids]..], "logprobs": [[..]..], "text": [..]}; text is null without a
// tokenizer.
std::string result_json(const GenerateJob& job, const std::vector<GeneratedSequence>& results) {
  using Json = nlohmann::ordered_json;
  Json generated = Json::array(), logprobs = Json::array(), text;
  if (job.tokenizer) text = Json::array();
  for (const GeneratedSequence& result : results) {
    generated.push_back(result.tokens);
    logprobs.push_back(result.logprobs);
    if (!job.tokenizer) continue;
    std::span<const std::int32_t> shown = result.tokens;
    if (!shown.empty() && job.ended_by(shown.back())) shown = shown.first(shown.size() - 1);
    text.push_back(replace_invalid_utf8(job.tokenizer->decode(shown)));
  }
  Json line;
  line["generated"] = std::move(generated);
  line["logprobs"] = std::move(logprobs);
  line["text"] = std::move(text);
  return line.dump() + "\n";
}

std::vector<std::vector<std::int32_t>> read_prompts(const GenerateOptions& wanted,
                                                    const SourceModel& model,
                                                    const Tokenizer* tokenizer) {
  if (!wanted.prompt_tokens.empty()) {
    return read_token_rows(wanted.prompt_tokens, model.config().vocab_size).input_ids;
  }
  BEV_CHECK(tokenizer != nullptr, ErrorKind::kInput,
            "--prompt: ", model.files().empty() ? wanted.model.load : model.files(),
            " has no tokenizer of a kind that can be read; give token ids by --prompt-tokens");
  std::vector<std::int32_t> prompt = tokenizer->encode(wanted.prompt);
  BEV_CHECK(!prompt.empty(), ErrorKind::kInput, "--prompt: the text gives no token");
  return {std::move(prompt)};
}

GenerateJob make_job(const GenerateOptions& wanted, const SourceModel& model) {
  GenerateJob job{model};
  if (!model.files().empty()) {
    job.tokenizer = load_tokenizer(model.files());
    job.options.eos = read_end_tokens(model.files());
  }
  job.prompts = read_prompts(wanted, model, job.tokenizer.get());
  job.options.max_new_tokens = wanted.max_new_tokens;
  job.options.sampling = {wanted.temperature, wanted.top_k, wanted.top_p,
                          static_cast<std::uint64_t>(wanted.run.runtime.seed)};
  job.options.ignore_eos = wanted.ignore_eos;
  check_generation(wanted.run.model, job.prompts, job.options);
  return job;
}

void generate_rank(const RankStart& start, const GenerateOptions& wanted, const GenerateJob& job) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  Generator generator(model);
  job.model.load_weights(model);
  bool quiet = wanted.json || start.world.rank() != 0;
  LiveOutput output(job, quiet);
  std::vector<GeneratedSequence> results = generator.generate(job.prompts, job.options, &output);
  if (start.world.rank() != 0) return;
  if (wanted.json) write_stdout(result_json(job, results));
  output.log_speed();
}

int run_generate(GenerateOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  SourceModel model(wanted.model);
  run.model = model.config();
  // Resolved as given first, so that the ranks of --context-parallel-size are known when they
  // become data-parallel ranks.
  options.add_problems(run.parallel.resolve());
  options.throw_problems();
  run.parallel = inference_layout(run.parallel);
  options.add_problems(run.resolve_layout());
  options.throw_problems();
  GenerateJob job = make_job(wanted, model);
  run_ranks(input.launch, run.parallel, run.runtime,
            [&](const RankStart& start) { generate_rank(start, wanted, job); });
  return kExitOk;
}

}  // namespace

const Command kGenerateCommand = {
    .name = "generate",
    .summary = "continue a prompt",
    .examples =
        "bevatron generate --hf-model DIR --prompt \"Once upon a time\" --max-new-tokens 100 "
        "--temperature 0.8\n"
        "bevatron generate --load RUN --prompt \"Once upon a time\"\n"
        "bevatron generate --hf-model DIR --prompt-tokens prompts.json --max-new-tokens 16 --json",
    .call = call_of<GenerateOptions, run_generate>};

}  // namespace bev
