#include "serve/ask.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/text.h"
#include "infer/text_stream.h"
#include "serve/api_error.h"

namespace bev {

namespace {

constexpr double kAny = std::numeric_limits<double>::max();
constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMostChoices = 128;
constexpr std::size_t kMostStops = 4;

// Capabilities that are not there yet.
void refuse_missing(const Body& body) {
  body.refuse({"tools", "functions", "function_call", "parallel_tool_calls"},
              "tool calls are not supported");
  if (std::optional<std::string> choice; body.has("tool_choice")) {
    const jinja::Value& value = *body.find("tool_choice");
    bool none = value.is_string() && *value.string() == "none";
    if (!none) body.refuse({"tool_choice"}, "tool calls are not supported");
  }
  body.refuse({"structured_outputs", "guided_json", "guided_regex", "guided_choice",
               "guided_grammar", "grammar"},
              "structured output is not supported");
  if (std::optional<Body> format = body.object("response_format")) {
    if (format->text("type").value_or("") != "text") {
      body.refuse({"response_format"}, "structured output is not supported; only type text is");
    }
  }
  body.refuse({"suffix"}, "text between a prompt and a suffix is not supported");
  body.refuse(
      {"thinking_token_budget", "audio", "web_search_options", "prompt_embeds", "multi_modal_data",
       "mm_processor_kwargs", "kv_transfer_params", "logits_processors", "vllm_xargs"},
      "is not supported");
  // Megatron's dynamic server has these.
  for (const char* name : {"add_BOS", "return_raw_text", "return_tokenized_data"}) {
    if (body.flag(name, false)) body.refuse({name}, "is not supported");
  }
  for (const std::string& modality : body.texts("modalities")) {
    if (modality != "text") body.refuse({"modalities"}, "only text is supported");
  }
}

void parse_logit_bias(const ServedModel& model, const Body& body, Ask& ask) {
  std::optional<Body> biases = body.object("logit_bias");
  if (!biases) return;
  for (const auto& [key, value] : body.find("logit_bias")->dict()->items) {
    const std::string& id = *key.string();
    std::int32_t token = -1;
    auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    bool known = error == std::errc() && end == id.data() + id.size() && token >= 0 &&
                 token < model.config.vocab_size;
    if (!known) body.fail("logit_bias", concat("'", id, "' is no token id of the model"));
    double bias = biases->number(id, -100, 100).value_or(0);
    ask.request.sampling.logit_bias.push_back({token, static_cast<float>(bias)});
  }
}

// A word may stand at the beginning of a text or after a blank, which tokens write differently.
void parse_bad_words(const ServedModel& model, const Body& body, Ask& ask) {
  for (const std::string& word : body.texts("bad_words")) {
    if (word.empty()) body.fail("bad_words", "a text is empty");
    const Tokenizer& tokenizer = need_tokenizer(model, "bad_words");
    for (const std::string& text : {word, " " + word}) {
      ask.request.rules.banned.push_back(tokenizer.encode(text));
    }
  }
}

void parse_stops(const ServedModel& model, const Body& body, Ask& ask) {
  ask.request.stop = body.texts("stop");
  if (ask.request.stop.size() > kMostStops) {
    body.fail("stop", concat(ask.request.stop.size(), " texts; at most ", kMostStops, " may stop"));
  }
  if (std::ranges::find(ask.request.stop, "") != ask.request.stop.end()) {
    body.fail("stop", "a text is empty");
  }
  if (!ask.request.stop.empty()) need_tokenizer(model, "stop");
  ask.request.stop_tokens = body.ids("stop_token_ids", model.config.vocab_size);
  ask.request.ignore_end = body.flag("ignore_eos", false);
  ask.request.end_tokens = ask.chat ? model.chat_end_tokens : model.end_tokens;
  ask.include_stop = body.flag("include_stop_str_in_output", false);
}

void parse_stream(const Body& body, Ask& ask) {
  ask.stream = body.flag("stream", false);
  const bool megatron = body.has("streaming_interval");  // its name there
  ask.stream_interval =
      body.integer(megatron ? "streaming_interval" : "stream_interval", 1, kMostTokens).value_or(1);
  std::optional<Body> options = body.object("stream_options");
  if (!options) return;
  if (!ask.stream) body.fail("stream_options", "is for stream: true");
  ask.continuous_usage = options->flag("continuous_usage_stats", false);
  ask.include_usage = options->flag("include_usage", false) || ask.continuous_usage;
}

}  // namespace

void check_model(const ServedModel& model, const Body& body) {
  std::string wanted = body.text("model").value_or("");
  if (model.answers_to(wanted)) return;
  throw ApiError(
      404,
      concat("The model '", wanted, "' does not exist; this server has ", join(model.names, ", "),
             model.adapters.empty() ? "" : ", ", join(model.adapters, ", ")),
      "model", "model_not_found");
}

const Tokenizer& need_tokenizer(const ServedModel& model, const char* field) {
  if (model.tokenizer) return *model.tokenizer;
  throw ApiError(400,
                 concat(field,
                        ": the model has no tokenizer; give token ids and take them "
                        "by return_token_ids"),
                 field, "no_tokenizer");
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text,
                                      bool special_tokens) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (special_tokens) tokenizer.add_special_tokens(ids);
  return ids;
}

void parse_shared(const ServedModel& model, const Body& body, Ask& ask) {
  refuse_missing(body);
  SamplingOptions& sampling = ask.request.sampling;
  sampling = model.sampling;
  auto number = [&](const char* name, double least, double most, double& into) {
    into = body.number(name, least, most).value_or(into);
  };
  number("temperature", 0, 2, sampling.temperature);
  number("top_p", 0, 1, sampling.top_p);
  if (sampling.top_p == 0) sampling.top_k = 1;  // only the likeliest token is left
  sampling.top_p = std::max(sampling.top_p, std::numeric_limits<double>::min());
  sampling.top_k =
      std::max<std::int64_t>(body.integer("top_k", -1, kMostTokens).value_or(sampling.top_k), 0);
  number("min_p", 0, 1, sampling.min_p);
  number("repetition_penalty", std::numeric_limits<double>::min(), kAny,
         sampling.repetition_penalty);
  number("presence_penalty", -2, 2, sampling.presence_penalty);
  number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  parse_logit_bias(model, body, ask);
  sampling.allowed_tokens = body.ids("allowed_token_ids", model.config.vocab_size);
  parse_bad_words(model, body, ask);
  if (auto seed = body.integer("seed", std::numeric_limits<std::int64_t>::min(),
                               std::numeric_limits<std::int64_t>::max())) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
    ask.seeded = true;
  }
  ask.n = ask.request.n = body.integer("n", 1, kMostChoices).value_or(1);
  parse_stops(model, body, ask);
  parse_stream(body, ask);
  ask.request.min_new_tokens = body.integer("min_tokens", 0, kMostTokens).value_or(0);
  ask.prompt_logprobs = body.integer("prompt_logprobs", 0, kMostTopLogprobs).value_or(-1);
  if (ask.prompt_logprobs >= 0 && ask.stream) {
    body.fail("prompt_logprobs", "is not for stream: true");
  }
  ask.request.logprob_tokens = body.ids("logprob_token_ids", model.config.vocab_size);
  if (std::ssize(ask.request.logprob_tokens) > kMostLogprobTokens) {
    body.fail("logprob_token_ids", concat("at most ", kMostLogprobTokens, " ids"));
  }
  ask.skip_special_tokens = body.flag("skip_special_tokens", true);
  ask.return_token_ids = body.flag("return_token_ids", false);
  ask.tokens_as_ids = body.flag("return_tokens_as_token_ids", false);
  ask.request.priority = body.integer("priority", -kMostTokens, kMostTokens).value_or(0);
  ask.request.cache_key.salt = body.text("cache_salt").value_or("");
  ask.request.cache_key.adapter = model.adapter_of(body.text("model").value_or(""));
  ask.id = body.text("request_id").value_or("");
}

namespace {

// The text of a prompt that was given as ids, without special tokens.
std::string text_of(const ServedModel& model, const std::vector<std::int32_t>& ids) {
  if (!model.tokenizer) return {};
  std::vector<std::int32_t> shown;
  std::ranges::copy_if(ids, std::back_inserter(shown),
                       [&](std::int32_t id) { return !model.tokenizer->is_special(id); });
  return replace_invalid_utf8(model.tokenizer->decode(shown));
}

[[noreturn]] void fail_length(const ServedModel& model, const AskPrompt& prompt,
                              std::int64_t wanted, bool chat) {
  std::string asked =
      wanted > 0 ? concat("you requested ", std::ssize(prompt.ids) + wanted, " tokens (",
                          prompt.ids.size(), " in the prompt, ", wanted, " in the completion)")
                 : concat("the prompt has ", prompt.ids.size(), " tokens");
  throw ApiError(400,
                 concat("This model's maximum context length is ", model.max_model_len,
                        " tokens, but ", asked, ". Shorten the prompt or ask for fewer tokens."),
                 chat ? "messages" : "prompt", "context_length_exceeded");
}

}  // namespace

void limit_lengths(const ServedModel& model, const Body& body, std::int64_t wanted, Ask& ask) {
  std::int64_t keep = body.integer("truncate_prompt_tokens", -1, kMostTokens).value_or(kMostTokens);
  if (keep == 0) body.fail("truncate_prompt_tokens", "0 leaves nothing of the prompt");
  const std::int64_t least = wanted < 0 ? 1 : wanted;
  if (keep < 0) keep = std::max<std::int64_t>(model.max_model_len - least, 1);
  for (AskPrompt& prompt : ask.prompts) {
    std::int64_t length = std::ssize(prompt.ids);
    if (length > keep) {
      prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - keep);
      prompt.text = text_of(model, prompt.ids);
      length = keep;
    }
    if (length + least > model.max_model_len) fail_length(model, prompt, wanted, ask.chat);
    prompt.max_new_tokens = wanted < 0 ? model.max_model_len - length : wanted;
    if (ask.request.min_new_tokens > prompt.max_new_tokens) {
      body.fail("min_tokens", concat(ask.request.min_new_tokens, " is above the most tokens of ",
                                     "the answer, ", prompt.max_new_tokens));
    }
  }
}

namespace {

// A text, texts, ids, or lists of ids.
std::vector<AskPrompt> parse_prompts(const ServedModel& model, const Body& body) {
  const jinja::Value* prompt = body.find("prompt");
  if (prompt == nullptr) body.fail("prompt", "is missing");
  const bool special = body.flag("add_special_tokens", true);
  std::vector<AskPrompt> out;
  auto add_text = [&](const std::string& text) {
    out.push_back({encode_text(need_tokenizer(model, "prompt"), text, special), text});
  };
  auto add_ids = [&](const jinja::Value& list) {
    AskPrompt& each = out.emplace_back();
    each.ids = token_ids(list, model.config.vocab_size, "prompt");
    each.text = text_of(model, each.ids);
  };
  if (prompt->is_string()) {
    add_text(*prompt->string());
  } else if (!prompt->is_sequence() || prompt->sequence()->items.empty()) {
    body.fail("prompt", "is neither a text nor a list of texts, of ids, or of lists of ids");
  } else if (prompt->sequence()->items.front().is_int()) {
    add_ids(*prompt);
  } else {
    for (const jinja::Value& each : prompt->sequence()->items) {
      each.is_string() ? add_text(*each.string()) : add_ids(each);
    }
  }
  for (const AskPrompt& each : out) {
    if (each.ids.empty()) body.fail("prompt", "is empty; give at least one token");
  }
  return out;
}

}  // namespace

Ask parse_completion(const ServedModel& model, const Body& body) {
  check_model(model, body);
  Ask ask;
  parse_shared(model, body, ask);
  ask.echo = body.flag("echo", false);
  if (ask.echo && ask.stream && body.has("logprobs")) {
    body.fail("echo", "with logprobs is not for stream: true");
  }
  if (auto top = body.integer("logprobs", 0, kMostTopLogprobs)) {
    ask.logprobs = true;
    ask.request.top_logprobs = *top;
  }
  std::int64_t best_of = body.integer("best_of", 0, 20).value_or(0);
  if (best_of > 0) {
    if (best_of < ask.n) body.fail("best_of", concat(best_of, " is below n, which is ", ask.n));
    if (best_of > ask.n && ask.stream) body.fail("best_of", "is not for stream: true");
    ask.request.n = best_of;
  }
  constexpr std::int64_t kUsual = 16;
  std::int64_t wanted = body.integer("max_tokens", 0, kMostTokens).value_or(kUsual);
  if (wanted == 0 && !ask.echo && ask.prompt_logprobs < 0) {
    body.fail("max_tokens", "0 asks for nothing; it is for echo: true or prompt_logprobs");
  }
  ask.prompts = parse_prompts(model, body);
  limit_lengths(model, body, wanted, ask);
  bool prompt_scores = ask.echo && ask.logprobs;
  ask.request.prompt_logprobs = prompt_scores || ask.prompt_logprobs >= 0;
  ask.request.prompt_top_logprobs =
      std::max(prompt_scores ? ask.request.top_logprobs : 0, ask.prompt_logprobs);
  return ask;
}

}  // namespace bev
