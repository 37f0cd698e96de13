// Megatron-LM's text generation server: PUT /api with prompts, the whole text back.
#include <limits>
#include <utility>

#include "base/text.h"
#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/json_text.h"

namespace bev {

namespace {

class MegatronAnswer : public Answer {
 public:
  using Answer::Answer;

 protected:
  // It never streams.
  std::string begin_event(Choice&) override { return {}; }
  std::string part_event(Choice&, const ChoicePart&) override { return {}; }
  std::string end_event(Choice&, const ChoicePart&) override { return {}; }
  std::string usage_event() override { return {}; }
  HttpResponse failure(const ApiError& error) const override { return megatron_error(error); }

  std::string whole() override {
    JsonText texts, tokens, segments, logprobs;
    for (JsonText* list : {&texts, &tokens, &segments, &logprobs}) list->begin_list();
    for (const Choice* each : chosen()) {
      const Choice& choice = *each;
      const AskPrompt& prompt = ask().prompts[static_cast<std::size_t>(choice.prompt)];
      texts.text(prompt.text + choice.part.content);
      std::vector<std::int32_t> ids = prompt.ids;
      ids.insert(ids.end(), choice.part.tokens.begin(), choice.part.tokens.end());
      tokens.json(json_integers(ids));
      segments.begin_list();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        segments.text(token_label(ids[i], i == 0 ? -1 : ids[i - 1]));
      }
      segments.end_list();
      logprobs.begin_list();
      for (double value : result(choice.prompt).prompt_logprobs) logprobs.number(finite(value));
      for (const TokenScore& score : choice.part.scores) logprobs.number(finite(score.logprob));
      logprobs.end_list();
    }
    for (JsonText* list : {&texts, &tokens, &segments, &logprobs}) list->end_list();
    JsonText out;
    out.begin_object().add_json("text", texts.str()).add_json("segments", segments.str());
    if (ask().logprobs) out.add_json("logprobs", logprobs.str());
    return out.add_json("tokens", tokens.str()).end_object().take();
  }
};

// Fields that Megatron's server checks and then leaves aside: here only values that change nothing.
void refuse_idle_fields(const Body& body) {
  body.refuse({"beam_width", "max_len", "sentences"}, "is not supported");
  auto neutral = [&](const char* name, double value) {
    constexpr double kAny = std::numeric_limits<double>::max();
    if (body.number(name, -kAny, kAny).value_or(value) != value) {
      body.refuse({name}, "is not supported");
    }
  };
  neutral("top_p_decay", 0);
  neutral("top_p_bound", 0);
  neutral("length_penalty", 1);
  if (body.flag("prevent_newline_after_colon", false)) {
    body.refuse({"prevent_newline_after_colon"}, "is not supported");
  }
}

void parse_megatron_sampling(const ServedModel& model, const Body& body, Ask& ask) {
  SamplingOptions& sampling = ask.request.sampling;
  constexpr double kLeast = std::numeric_limits<double>::min();
  sampling.temperature = body.number("temperature", kLeast, 100).value_or(1);
  sampling.top_k = body.integer("top_k", 0, 1000).value_or(0);
  double top_p = body.number("top_p", 0, 1).value_or(0);
  if (top_p > 0 && sampling.top_k > 0) body.fail("top_p", "excludes top_k; keep one");
  if (top_p > 0) sampling.top_p = top_p;
  if (auto seed = body.integer("random_seed", 0, std::numeric_limits<std::int64_t>::max())) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
    ask.seeded = true;
  }
  ask.request.end_tokens = model.end_tokens;
  const std::int64_t most_id = model.config.vocab_size - 1;
  if (auto stop = body.integer("stop_token", 0, most_id)) {
    ask.request.stop_tokens = {static_cast<std::int32_t>(*stop)};
  }
  if (body.flag("stop_on_eol", false)) ask.request.stop = {"\n"};
  if (body.flag("stop_on_double_eol", false)) ask.request.stop.push_back("\n\n");
  ask.include_stop = true;
}

}  // namespace

Ask parse_megatron(const ServedModel& model, const Body& body) {
  refuse_idle_fields(body);
  Ask ask;
  parse_megatron_sampling(model, body, ask);
  ask.logprobs = body.flag("logprobs", false);
  ask.request.prompt_logprobs = ask.logprobs;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max(), kUsual = 64;
  constexpr std::size_t kMostPrompts = 128;
  std::int64_t wanted = body.integer("tokens_to_generate", 0, kMost).value_or(kUsual);
  if (wanted == 0 && !ask.logprobs) body.fail("tokens_to_generate", "0 needs logprobs: true");
  const Tokenizer& tokenizer = need_tokenizer(model, "prompts");
  const jinja::Value* prompts = body.find("prompts");
  if (prompts == nullptr || !prompts->is_sequence()) body.fail("prompts", "is missing, or no list");
  std::vector<std::string> texts = body.texts("prompts");
  if (texts.empty() || texts.size() > kMostPrompts) {
    body.fail("prompts", concat(texts.size(), " prompts; 1 to ", kMostPrompts, " may be given"));
  }
  const bool special = body.flag("add_BOS", false);
  for (const std::string& text : texts) {
    ask.prompts.push_back({encode_text(tokenizer, text, special), text});
    if (ask.prompts.back().ids.empty()) {
      body.fail("prompts", "a prompt is empty; add_BOS: true begins it");
    }
  }
  limit_lengths(model, body, wanted, ask);
  return ask;
}

HttpResponse megatron_error(const ApiError& error) {
  HttpResponse out = error.response();
  JsonText text;
  text.begin_object().add("message", error.what()).add_json("error", error.object());
  out.body = text.end_object().take();
  return out;
}

std::shared_ptr<Answer> make_megatron_answer(const Answer::Server& server,
                                             std::shared_ptr<ApiCall> call, Ask ask) {
  return std::make_shared<MegatronAnswer>(server, std::move(call), std::move(ask));
}

}  // namespace bev
