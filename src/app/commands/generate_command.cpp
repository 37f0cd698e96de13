// generate: continues prompts, or answers in conversations, with a Hugging Face model or a
// checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/chat_session.h"
#include "app/commands/commands.h"
#include "app/interrupt.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/prompts.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "chat/turn_end.h"
#include "data/token_file.h"
#include "infer/end_tokens.h"
#include "infer/generator.h"
#include "infer/text_stream.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "plan/flops.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct GenerateOptions {
  ModelSource model;
  PromptSource prompts;
  std::string prompt_tokens;
  bool chat = false;
  std::string chat_template;
  bool show_special_tokens = false;
  std::int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;
  bool ignore_eos = false;
  bool json = false;
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  // Whether the turns of a conversation come one by one from standard input.
  bool converses() const { return chat && prompts.empty(); }
};

void GenerateOptions::fields(FieldList& list) {
  list.section("generate");
  model.fields(list);
  list.add("prompt", prompts.prompt, "text to continue; -: read it from standard input")
      .defaults_to("what is piped in");
  list.add("prompt-file", prompts.prompt_file,
           "file with the text to continue; FILE.jsonl: a prompt in each line, as a text or as an "
           "object with \"prompt\" or, for --chat, \"messages\"");
  list.add("prompt-tokens", prompt_tokens, "JSON file with input_ids [[...]] to continue");
  list.add("chat", chat,
           "prompts are what the user says, in the model's chat template; without a prompt a "
           "conversation on the terminal: /clear forgets it, /exit or Ctrl-D leaves, Ctrl-C ends "
           "an answer");
  list.add("chat-template", chat_template,
           "file with the chat template, or the name of one of several")
      .defaults_to("that of --hf-model");
  list.add("system-prompt", prompts.system_prompt, "first message of a conversation");
  list.add("max-new-tokens", max_new_tokens, "tokens to add")
      .min(0)
      .limit(1 << 24)
      .defaults_to("64; with --chat 1024, as far as the model has positions");
  list.add("temperature", temperature, "divides the logits; 0: always the likeliest token").min(0);
  list.add("top-k", top_k, "choose among so many likeliest tokens; 0: all").min(0).limit(1 << 28);
  list.add("top-p", top_p, "choose among the likeliest tokens that make up this probability")
      .above(0)
      .max(1);
  list.add("ignore-eos", ignore_eos, "go on after the end-of-sequence token");
  list.add("show-special-tokens", show_special_tokens, "show special tokens in texts");
  list.add("json", json, "one JSON line with token ids, log-probabilities and text");
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> GenerateOptions::problems() const {
  std::vector<std::string> out = model.problems();
  // Standard input is looked at only if the rest is there.
  bool missing = prompts.empty() && prompt_tokens.empty() && !chat;
  if (missing && (!out.empty() || !input_is_piped())) {
    out.push_back(
        "--prompt: is missing; give it or --prompt-tokens, a --prompt-file, or --chat to converse");
  }
  if (!prompts.prompt.empty() && !prompt_tokens.empty()) {
    out.push_back("--prompt: excludes --prompt-tokens; keep one");
  }
  if (!prompts.prompt_file.empty() && !(prompts.prompt.empty() && prompt_tokens.empty())) {
    out.push_back("--prompt-file: excludes --prompt and --prompt-tokens; keep one");
  }
  if (chat && !prompt_tokens.empty()) {
    out.push_back("--chat: is for text; leave it out with --prompt-tokens");
  }
  if (!chat && !chat_template.empty()) out.push_back("--chat-template: is for --chat");
  if (!chat && !prompts.system_prompt.empty()) out.push_back("--system-prompt: is for --chat");
  if (json && converses()) out.push_back("--json: needs --prompt or --prompt-file with --chat");
  return out;
}

struct GenerateJob {
  const SourceModel& model;
  std::unique_ptr<Tokenizer> tokenizer = {};  // nullptr: none is readable
  std::optional<ChatTemplate> chat_template = {};
  std::vector<std::vector<std::int32_t>> prompts = {};
  GenerationOptions options = {};
  bool show_special_tokens = false;

  // Whether this token ends its sequence.
  bool ended_by(std::int32_t token) const {
    return !options.ignore_eos && std::ranges::find(options.eos, token) != options.eos.end();
  }
  // Whether texts have this token.
  bool shows(std::int32_t token) const {
    return show_special_tokens || !(ended_by(token) || tokenizer->is_special(token));
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
    } else if (job_.shows(token)) {
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
    std::vector<std::int32_t> shown;
    std::ranges::copy_if(result.tokens, std::back_inserter(shown),
                         [&](std::int32_t token) { return job.shows(token); });
    text.push_back(replace_invalid_utf8(job.tokenizer->decode(shown)));
  }
  Json line;
  line["generated"] = std::move(generated);
  line["logprobs"] = std::move(logprobs);
  line["text"] = std::move(text);
  return line.dump() + "\n";
}

std::vector<std::vector<std::int32_t>> read_prompts(const GenerateOptions& wanted,
                                                    const GenerateJob& job) {
  if (!wanted.prompt_tokens.empty()) {
    return read_token_rows(wanted.prompt_tokens, wanted.run.model.vocab_size).input_ids;
  }
  if (wanted.converses()) return {};
  return encode_prompts(wanted.prompts, *job.tokenizer,
                        job.chat_template ? &*job.chat_template : nullptr);
}

void add_turn_end(GenerateJob& job) {
  std::optional<std::int32_t> end = turn_end(*job.chat_template, *job.tokenizer);
  std::vector<std::int32_t>& eos = job.options.eos;
  if (end && std::ranges::find(eos, *end) == eos.end()) eos.push_back(*end);
}

GenerateJob make_job(const GenerateOptions& wanted, const SourceModel& model, bool length_given) {
  GenerateJob job{model};
  if (!model.files().empty()) {
    job.tokenizer = load_tokenizer(model.files());
    job.options.eos = read_end_tokens(model.files());
  }
  BEV_CHECK(job.tokenizer || !wanted.prompt_tokens.empty(), ErrorKind::kInput,
            wanted.chat ? "--chat: " : "--prompt: ",
            model.files().empty() ? wanted.model.load : model.files(),
            " has no tokenizer.json of a kind that can be read; give token ids by --prompt-tokens");
  if (wanted.chat) {
    job.chat_template.emplace(ChatTemplate::load(model.files(), wanted.chat_template, false));
  }
  job.prompts = read_prompts(wanted, job);
  job.options.max_new_tokens = wanted.max_new_tokens;
  job.options.sampling = {wanted.temperature, wanted.top_k, wanted.top_p,
                          static_cast<std::uint64_t>(wanted.run.runtime.seed)};
  job.options.ignore_eos = wanted.ignore_eos;
  job.show_special_tokens = wanted.show_special_tokens;
  if (job.chat_template) add_turn_end(job);
  if (job.chat_template && !job.prompts.empty()) {
    auto longest = std::ranges::max(job.prompts, {}, &std::vector<std::int32_t>::size).size();
    std::int64_t room = answer_tokens(wanted.run.model, static_cast<std::int64_t>(longest),
                                      wanted.max_new_tokens, length_given);
    if (!length_given && room > 0) job.options.max_new_tokens = room;
  }
  check_generation(wanted.run.model, job.prompts, job.options);
  return job;
}

void generate_rank(const RankStart& start, const GenerateOptions& wanted, const GenerateJob& job,
                   bool length_given, Interrupt* interrupt) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  Generator generator(model);
  job.model.load_weights(model);
  if (interrupt) {
    return hold_conversation(generator, model.mesh().world().host(),
                             {.tokenizer = *job.tokenizer,
                              .chat_template = *job.chat_template,
                              .model = wanted.run.model,
                              .interrupt = *interrupt,
                              .options = job.options,
                              .length_given = length_given,
                              .system_prompt = wanted.prompts.system_prompt,
                              .show_special_tokens = wanted.show_special_tokens});
  }
  bool quiet = wanted.json || start.world.rank() != 0;
  LiveOutput output(job, quiet);
  std::vector<GeneratedSequence> results = generator.generate(job.prompts, job.options, &output);
  if (start.world.rank() != 0) return;
  if (wanted.json) write_stdout(result_json(job, results));
  output.log_speed();
}

// The likeliest token is among any of them.
void warn_of_unused_choice(const GenerateOptions& wanted, const CommandInput& input) {
  if (wanted.temperature > 0 || input.launch.process != 0) return;
  for (const char* flag : {"top-k", "top-p"}) {
    if (!input.options.given(flag)) continue;
    log_warning(concat("--", flag,
                       ": has no effect at --temperature 0, which always takes the "
                       "likeliest token; give --temperature 1, say, or leave it out"));
  }
}

int run_generate(GenerateOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  warn_of_unused_choice(wanted, input);
  SourceModel model(wanted.model);
  run.model = model.config();
  // Resolved as given first, so that the ranks of --context-parallel-size are known when they
  // become data-parallel ranks.
  options.add_problems(run.parallel.resolve());
  options.throw_problems();
  run.parallel = inference_layout(run.parallel);
  options.add_problems(run.resolve_layout());
  options.throw_problems();
  bool shares_input = wanted.prompt_tokens.empty() && wanted.prompts.reads_input() &&
                      !wanted.converses() && input.launch.processes > 1;
  BEV_CHECK(!shares_input, ErrorKind::kConfig, "--prompt: standard input reaches one of the ",
            input.launch.processes, " processes only; give --prompt-file");
  bool length_given = options.given("max-new-tokens");
  GenerateJob job = make_job(wanted, model, length_given);
  std::optional<Interrupt> interrupt;  // of a conversation
  if (wanted.converses()) interrupt.emplace();
  // A step has one token of each sequence and waits for the weights more than for the arithmetic.
  constexpr double kReadingFlops = 8;
  auto sequences = std::max<std::int64_t>(static_cast<std::int64_t>(job.prompts.size()), 1);
  RuntimeConfig runtime =
      paying_threads(run, input.launch, kReadingFlops * model_flops(run.model, sequences, 1));
  run_ranks(input.launch, run.parallel, runtime, [&](const RankStart& start) {
    generate_rank(start, wanted, job, length_given, interrupt ? &*interrupt : nullptr);
  });
  return kExitOk;
}

}  // namespace

const Command kGenerateCommand = {
    .name = "generate",
    .summary = "continue prompts, or chat",
    .examples =
        "bevatron generate --hf-model DIR --prompt \"Once upon a time\" --max-new-tokens 100 "
        "--temperature 0.8\n"
        "bevatron generate --load RUN --prompt \"Once upon a time\"\n"
        "bevatron generate --hf-model DIR --chat --temperature 0.7\n"
        "bevatron generate --hf-model DIR --chat --prompt-file questions.jsonl --json\n"
        "bevatron generate --hf-model DIR --prompt-tokens prompts.json --max-new-tokens 16 --json",
    .call = call_of<GenerateOptions, run_generate>};

}  // namespace bev
