// generate: continues prompts, or answers in conversations, with a Hugging Face model or a
// checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/chat_session.h"
#include "app/commands/commands.h"
#include "app/generation_options.h"
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
#include "infer/answer_text.h"
#include "infer/exact_check.h"
#include "infer/generate.h"
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
  GenerationFlags generation;
  EngineFlags engine;
  bool prompt_logprobs = false;
  bool check_exact = false;
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
  generation.fields(list);
  list.add("show-special-tokens", show_special_tokens, "show special tokens in texts");
  list.add("prompt-logprobs", prompt_logprobs,
           "with --json: log-probabilities of the prompts' tokens too");
  list.add("check-exact", check_exact,
           "compare tokens and log-probabilities under other batch sizes, and with a whole forward "
           "as in training; a JSON line with the differences");
  list.add("json", json, "one JSON line with token ids, log-probabilities and text");
  engine.fields(list);
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
  for (const std::string& problem : generation.problems()) out.push_back(problem);
  for (const std::string& problem : engine.problems()) out.push_back(problem);
  if (prompt_logprobs && !json) out.push_back("--prompt-logprobs: is for --json");
  bool several = generation.n > 1 || generation.beams();
  if (several && converses()) out.push_back("--n, --num-beams: are not for a conversation");
  if (check_exact && (generation.n > 1 || generation.beams() || converses())) {
    out.push_back(
        "--check-exact: compares single sequences; leave out --n, --num-beams and --chat "
        "without a prompt");
  }
  if (json && converses()) out.push_back("--json: needs --prompt or --prompt-file with --chat");
  return out;
}

struct GenerateJob {
  const SourceModel& model;
  std::unique_ptr<Tokenizer> tokenizer = {};  // nullptr: none is readable
  std::optional<ChatTemplate> chat_template = {};
  std::vector<std::vector<std::int32_t>> prompts = {};
  Request request = {};  // without a prompt
  bool show_special_tokens = false;

  std::vector<Request> requests() const {
    std::vector<Request> out;
    for (const std::vector<std::int32_t>& prompt : prompts) {
      Request& each = out.emplace_back(request);
      each.prompt = prompt;
      each.stream = std::ssize(out) - 1;
    }
    return out;
  }
  // Whether texts have this token.
  bool shows(std::int32_t token) const {
    if (show_special_tokens) return true;
    bool ends = !request.ignore_end &&
                std::ranges::find(request.end_tokens, token) != request.end_tokens.end();
    return !ends && !tokenizer->is_special(token);
  }
  // The text of a sequence, up to the stop text that ended it.
  std::string text_of(const SequenceResult& result) const {
    std::vector<std::int32_t> shown;
    std::ranges::copy_if(result.tokens, std::back_inserter(shown),
                         [&](std::int32_t token) { return shows(token); });
    std::string text = tokenizer->decode(shown);
    if (!result.stop_text.empty()) {
      // Its last character is one of the last token.
      shown.pop_back();
      std::size_t before = tokenizer->decode(shown).size(), size = result.stop_text.size();
      text.resize(
          std::min(text.find(result.stop_text, before - std::min(before, size - 1)), text.size()));
    }
    return replace_invalid_utf8(text);
  }
};

// Counts tokens and prints them as they are generated: the first sequence live, each later one
// after those before it have ended. A newline ends each.
class LiveOutput : public RequestSink {
 public:
  LiveOutput(const GenerateJob& job, bool quiet)
      : job_(job), quiet_(quiet), start_(monotonic_seconds()) {
    sequences_.resize(job.prompts.size() * width());
    for (std::size_t i = 0; i < sequences_.size() && job.tokenizer; ++i) {
      sequences_[i].text.emplace(*job.tokenizer, job.prompts[i / width()], job.request.stop);
    }
  }

  void on_token(const TokenEvent& event) override {
    last_ = monotonic_seconds();
    if (tokens_++ == 0) first_ = last_;
    if (quiet_) return;
    add(sequence(event.request, event.index), event.token);
    print();
  }
  void on_finished(RequestResult result) override {
    if (quiet_) return count_beams(result);
    for (const SequenceResult& ended : result.sequences) {
      if (!ended.error.empty()) log_error(ended.error);
      if (job_.request.beams && ended.index > 0) continue;
      Sequence& of = sequence(result.id, ended.index);
      if (job_.request.beams) {
        for (std::int32_t token : ended.tokens) add(of, token);
      }
      end(of, ended.stop_text);
    }
    count_beams(result);
    print();
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
    std::optional<AnswerText> text;
    std::string waiting;  // to be printed
    std::int64_t tokens = 0;
    bool ended = false;
  };

  std::size_t width() const {
    return job_.request.beams ? 1 : static_cast<std::size_t>(job_.request.n);
  }
  Sequence& sequence(RequestId request, std::int64_t index) {
    return sequences_[static_cast<std::size_t>(request) * width() +
                      static_cast<std::size_t>(index)];
  }

  // Beams have no tokens before they end.
  void count_beams(const RequestResult& result) {
    if (!job_.request.beams) return;
    last_ = monotonic_seconds();
    if (tokens_ == 0) first_ = last_;
    for (const SequenceResult& ended : result.sequences) tokens_ += std::ssize(ended.tokens);
  }

  void add(Sequence& sequence, std::int32_t token) const {
    if (!sequence.text) {
      sequence.waiting += concat(sequence.tokens == 0 ? "" : " ", token);
    } else if (job_.shows(token)) {
      bool may_stop = sequence.tokens + 1 >= job_.request.min_new_tokens;
      sequence.waiting += sequence.text->add(token, may_stop);
    }
    ++sequence.tokens;
  }

  void end(Sequence& sequence, const std::string& stop_text) const {
    if (sequence.text) sequence.waiting += sequence.text->finish(stop_text);
    sequence.waiting += '\n';
    sequence.ended = true;
  }

  void print() {
    std::string ready;
    while (current_ < sequences_.size()) {
      ready += std::exchange(sequences_[current_].waiting, {});
      if (!sequences_[current_].ended) break;
      ++current_;
    }
    write_stdout(ready);
  }

  const GenerateJob& job_;
  bool quiet_;
  double start_, first_ = 0, last_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<Sequence> sequences_;
  std::size_t current_ = 0;  // the sequence that is printed live
};

using Json = nlohmann::ordered_json;

// null for what is no number.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (double value : values) list.push_back(number(value));
  return list;
}

// One line: {"generated": [[ids]..], "logprobs": [[..]..], "text": [..]} with the first or best
// sequence of each prompt, and all of them as "sequences"; text is null without a tokenizer.
std::string result_json(const GenerateJob& job, const std::vector<RequestResult>& results,
                        bool prompt_logprobs) {
  Json generated = Json::array(), logprobs = Json::array(), text, sequences = Json::array();
  Json prompts = Json::array();
  if (job.tokenizer) text = Json::array();
  for (std::size_t prompt = 0; prompt < results.size(); ++prompt) {
    for (const SequenceResult& result : results[prompt].sequences) {
      Json written = job.tokenizer ? Json(job.text_of(result)) : Json();
      sequences.push_back({{"prompt", prompt},
                           {"index", result.index},
                           {"tokens", result.tokens},
                           {"logprobs", numbers(result.logprobs)},
                           {"score", number(result.score)},
                           {"finish_reason", name_of(result.finish)},
                           {"text", written}});
      if (!result.error.empty()) sequences.back()["error"] = result.error;
      if (result.index > 0) continue;
      generated.push_back(result.tokens);
      logprobs.push_back(numbers(result.logprobs));
      if (job.tokenizer) text.push_back(std::move(written));
    }
    Json row = numbers(results[prompt].prompt_logprobs);
    row.insert(row.begin(), Json());
    prompts.push_back(std::move(row));
  }
  Json line;
  line["generated"] = std::move(generated);
  line["logprobs"] = std::move(logprobs);
  line["text"] = std::move(text);
  line["sequences"] = std::move(sequences);
  if (prompt_logprobs) line["prompt_logprobs"] = std::move(prompts);
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
  std::vector<std::int32_t>& eos = job.request.end_tokens;
  if (end && std::ranges::find(eos, *end) == eos.end()) eos.push_back(*end);
}

GenerateJob make_job(const GenerateOptions& wanted, const SourceModel& model, bool length_given) {
  GenerateJob job{model};
  if (!model.files().empty()) {
    job.tokenizer = load_tokenizer(model.files());
  }
  job.request =
      wanted.generation.request(model.files(), static_cast<std::uint64_t>(wanted.run.runtime.seed));
  job.request.prompt_logprobs = wanted.prompt_logprobs;
  BEV_CHECK(job.tokenizer || !wanted.prompt_tokens.empty(), ErrorKind::kInput,
            wanted.chat ? "--chat: " : "--prompt: ",
            model.files().empty() ? wanted.model.load : model.files(),
            " has no tokenizer.json of a kind that can be read; give token ids by --prompt-tokens");
  if (wanted.chat) {
    job.chat_template.emplace(ChatTemplate::load(model.files(), wanted.chat_template, false));
  }
  job.prompts = read_prompts(wanted, job);
  job.show_special_tokens = wanted.show_special_tokens;
  if (job.chat_template) add_turn_end(job);
  if (job.chat_template && !job.prompts.empty()) {
    auto longest = std::ranges::max(job.prompts, {}, &std::vector<std::int32_t>::size).size();
    std::int64_t room = answer_tokens(wanted.run.model, static_cast<std::int64_t>(longest),
                                      wanted.generation.max_new_tokens, length_given);
    if (!length_given && room > 0) job.request.max_new_tokens = room;
  }
  std::vector<Request> requests = job.requests();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    check_request(wanted.run.model, requests[i], concat("prompt ", i));
  }
  return job;
}

void generate_rank(const RankStart& start, const GenerateOptions& wanted, const GenerateJob& job,
                   bool length_given, Interrupt* interrupt, ExactReport& exact) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  InferenceOptions limits = wanted.engine.options();
  limits.tokenizer = job.tokenizer.get();
  const std::vector<Request> requests = job.requests();
  if (wanted.check_exact) {
    job.model.load_weights(model);
    ExactReport report = check_exact(model, requests, limits);
    if (start.world.rank() == 0) exact = report;
    return;
  }
  if (interrupt) {
    limits.max_sequences = 1;
    limits.wanted_tokens =
        wanted.run.model.max_position_embeddings + (length_given ? job.request.max_new_tokens : 0);
  } else {
    limits = options_for(requests, limits);
  }
  InferenceEngine engine(model, limits);
  job.model.load_weights(model);
  if (interrupt) {
    return hold_conversation(engine, model.mesh().world().host(),
                             {.tokenizer = *job.tokenizer,
                              .chat_template = *job.chat_template,
                              .model = wanted.run.model,
                              .interrupt = *interrupt,
                              .request = job.request,
                              .length_given = length_given,
                              .system_prompt = wanted.prompts.system_prompt,
                              .show_special_tokens = wanted.show_special_tokens});
  }
  bool quiet = wanted.json || start.world.rank() != 0;
  LiveOutput output(job, quiet);
  std::vector<RequestResult> results = generate(engine, requests, &output);
  if (start.world.rank() != 0) return;
  if (wanted.json) write_stdout(result_json(job, results, wanted.prompt_logprobs));
  output.log_speed();
  for (const RequestResult& result : results) {
    for (const SequenceResult& sequence : result.sequences) {
      BEV_CHECK(sequence.finish != FinishReason::kError, ErrorKind::kNumeric,
                "sampling: ", sequence.error);
    }
  }
}

std::string exact_json(const ExactReport& report) {
  Json line;
  line["tokens"] = report.tokens;
  line["different_tokens"] = report.different_tokens;
  line["max_abs_logprob_diff"] = report.max_abs_logprob_diff;
  line["mean_abs_logprob_diff"] = report.mean_abs_logprob_diff;
  line["batch_sizes"] = report.batch_sizes;
  return line.dump() + "\n";
}

int run_generate(GenerateOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  if (input.launch.process == 0) wanted.generation.warn(options);
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
  if (run.model.moe_training.capacity_factor > 0 && input.launch.process == 0) {
    log_info(concat("--moe-expert-capacity-factor ", run.model.moe_training.capacity_factor,
                    " is for training: here experts take all tokens"));
  }
  GenerateJob job = make_job(wanted, model, length_given);
  std::optional<Interrupt> interrupt;  // of a conversation
  if (wanted.converses()) interrupt.emplace();
  // A step has one token of each sequence and waits for the weights more than for the arithmetic.
  constexpr double kReadingFlops = 8;
  auto sequences = std::max<std::int64_t>(static_cast<std::int64_t>(job.prompts.size()), 1);
  RuntimeConfig runtime =
      paying_threads(run, input.launch, kReadingFlops * model_flops(run.model, sequences, 1));
  ExactReport exact;
  run_ranks(input.launch, run.parallel, runtime, [&](const RankStart& start) {
    generate_rank(start, wanted, job, length_given, interrupt ? &*interrupt : nullptr, exact);
  });
  if (!wanted.check_exact || input.launch.process != 0) return kExitOk;
  write_stdout(exact_json(exact));
  bool differs = exact.different_tokens > 0 || exact.max_abs_logprob_diff > 0;
  return run.runtime.exact && differs ? kExitMismatch : kExitOk;
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
