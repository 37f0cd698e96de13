// generate: continues prompts with a Hugging Face model.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/commands.h"
#include "app/ranks.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/output.h"
#include "bridge/hf_model.h"
#include "data/token_file.h"
#include "infer/end_tokens.h"
#include "infer/generator.h"
#include "infer/text_stream.h"
#include "parallel/pipeline_layout.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct GenerateJob {
  std::unique_ptr<Tokenizer> tokenizer;  // nullptr: none that can be read
  std::vector<std::vector<std::int32_t>> prompts;
  GenerationOptions options;

  // Whether this token ends its sequence.
  bool ended_by(std::int32_t token) const {
    return !options.ignore_eos && std::ranges::find(options.eos, token) != options.eos.end();
  }
};

// Counts tokens and shows them as they come: the first sequence live, each later one once those
// before it have ended. A line end closes each.
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
  std::size_t current_ = 0;  // the one that is shown live
};

// One line: {"generated": [[ids]..], "logprobs": [[..]..], "text": [..]}, text null without a
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
                                                    const ModelConfig& model,
                                                    const Tokenizer* tokenizer) {
  if (!wanted.prompt_tokens.empty()) {
    return read_token_rows(wanted.prompt_tokens, model.vocab_size).input_ids;
  }
  BEV_CHECK(tokenizer != nullptr, ErrorKind::kInput, "--prompt: ", wanted.hf_model,
            " has no tokenizer.json of a kind that can be read; give token ids by --prompt-tokens");
  std::vector<std::int32_t> prompt = tokenizer->encode(wanted.prompt);
  BEV_CHECK(!prompt.empty(), ErrorKind::kInput, "--prompt: the text gives no token");
  return {std::move(prompt)};
}

GenerateJob make_job(const CommandConfig& config) {
  const GenerateOptions& wanted = config.generate;
  GenerateJob job;
  job.tokenizer = load_tokenizer(wanted.hf_model);
  job.prompts = read_prompts(wanted, config.run.model, job.tokenizer.get());
  job.options.max_new_tokens = wanted.max_new_tokens;
  job.options.sampling = {wanted.temperature, wanted.top_k, wanted.top_p,
                          static_cast<std::uint64_t>(config.run.runtime.seed)};
  job.options.eos = read_end_tokens(wanted.hf_model);
  job.options.ignore_eos = wanted.ignore_eos;
  check_generation(config.run.model, job.prompts, job.options);
  return job;
}

void generate_rank(const RankStart& start, const CommandConfig& config, const GenerateJob& job) {
  EngineOptions options = engine_options(config.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  Generator generator(model);
  load_hf_weights(model, config.generate.hf_model);
  bool quiet = config.generate.json || start.world.rank() != 0;
  LiveOutput output(job, quiet);
  std::vector<GeneratedSequence> results = generator.generate(job.prompts, job.options, &output);
  if (start.world.rank() != 0) return;
  if (config.generate.json) write_stdout(result_json(job, results));
  output.log_speed();
}

}  // namespace

int run_generate(CommandConfig& config, const FieldList&, Options& options) {
  options.add_problems(config.generate.problems());
  options.throw_problems();
  config.run.model = read_hf_config(config.generate.hf_model);
  // First as it was given, so that ranks of --context-parallel-size are known when they become dp.
  options.add_problems(config.run.parallel.resolve());
  options.throw_problems();
  config.run.parallel = inference_layout(config.run.parallel);
  options.add_problems(config.run.resolve_layout());
  options.throw_problems();
  GenerateJob job = make_job(config);
  run_ranks(config.launch, config.run.parallel, config.run.runtime,
            [&](const RankStart& start) { generate_rank(start, config, job); });
  return kExitOk;
}

}  // namespace bev
