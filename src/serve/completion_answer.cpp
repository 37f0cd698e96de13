// Answers of /v1/completions.
#include <algorithm>
#include <utility>

#include "serve/answer.h"
#include "serve/json_text.h"

namespace bev {

namespace {

std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// OpenAI's lists of log-probabilities, one entry for each token in each.
class LogprobLists {
 public:
  LogprobLists() {
    for (JsonText* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->begin_list();
  }

  // shown: the text of the choice has the token.
  void add(const std::string& label, bool shown, double logprob, const std::string& top) {
    logprobs_.number(logprob);
    tops_.json(top);
    add_label(label, shown);
  }
  // The first token of a text has none.
  void add_first(const std::string& label, bool shown) {
    logprobs_.null();
    tops_.null();
    add_label(label, shown);
  }

  std::string take() {
    for (JsonText* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->end_list();
    JsonText out;
    out.begin_object()
        .add_json("tokens", tokens_.str())
        .add_json("token_logprobs", logprobs_.str());
    out.add_json("top_logprobs", tops_.str()).add_json("text_offset", offsets_.str());
    return out.end_object().take();
  }

  std::int64_t offset = 0;  // characters before the next token

 private:
  void add_label(const std::string& label, bool shown) {
    tokens_.text(label);
    offsets_.integer(offset);
    if (shown) offset += count_characters(label);
  }

  JsonText tokens_, logprobs_, tops_, offsets_;
};

class CompletionAnswer : public Answer {
 public:
  using Answer::Answer;

 protected:
  std::string begin_event(Choice& choice) override {
    if (!ask().echo) return {};
    return event(choice, prompt_of(choice).text, nullptr, false);
  }
  std::string part_event(Choice& choice, const ChoicePart& part) override {
    return event(choice, part.content, &part, false);
  }
  std::string end_event(Choice& choice, const ChoicePart& part) override {
    return event(choice, part.content, &part, true);
  }

  std::string usage_event() override {
    JsonText out;
    begin(out);
    out.key("choices").begin_list().end_list().add_json("usage", usage());
    return out.end_object().take();
  }

  std::string whole() override {
    JsonText out;
    begin(out);
    out.key("choices").begin_list();
    for (Choice* each : chosen()) {
      Choice& choice = *each;
      const std::string echoed = ask().echo ? prompt_of(choice).text : "";
      write(out, choice, echoed + choice.part.content, &choice.part, true);
    }
    out.end_list().add_json("usage", usage());
    return out.end_object().take();
  }

 private:
  const AskPrompt& prompt_of(const Choice& choice) const {
    return ask().prompts[static_cast<std::size_t>(choice.prompt)];
  }

  void begin(JsonText& out) const {
    out.begin_object().add("id", ask().id).add("object", "text_completion");
    out.add("created", created()).add("model", model().name(ask().request.cache_key.adapter));
    out.add("system_fingerprint", fingerprint());
  }

  std::string event(Choice& choice, const std::string& text, const ChoicePart* part, bool last) {
    JsonText out;
    begin(out);
    out.key("choices").begin_list();
    write(out, choice, text, part, last);
    out.end_list();
    if (ask().include_usage) {
      ask().continuous_usage ? out.add_json("usage", usage()) : out.add_null("usage");
    }
    return out.end_object().take();
  }

  // part: null for the prompt of a stream.
  void write(JsonText& out, Choice& choice, const std::string& text, const ChoicePart* part,
             bool last) {
    out.begin_object().add("index", choice.index).add("text", text);
    bool scored = ask().logprobs && part != nullptr;
    scored ? out.add_json("logprobs", logprobs(choice, *part)) : out.add_null("logprobs");
    last ? out.add("finish_reason", reason_of(choice)) : out.add_null("finish_reason");
    out.add_json("stop_reason", last ? stop_reason(choice) : "null");
    if (last && ask().prompt_logprobs >= 0) {
      out.add_json("prompt_logprobs", prompt_logprobs(choice.prompt));
    }
    if (ask().return_token_ids) {
      bool first = !std::exchange(choice.prompt_told, true);
      if (first) out.add_json("prompt_token_ids", json_integers(prompt_of(choice).ids));
      if (part != nullptr) out.add_json("token_ids", json_integers(part->tokens));
    }
    out.end_object();
  }

  std::string logprobs(Choice& choice, const ChoicePart& part) {
    LogprobLists lists;
    lists.offset = choice.text_offset;
    if (ask().echo) add_prompt(lists, choice);
    for (const TokenScore& score : part.scores) {
      lists.add(token_label(score.token, score.before), shows(score.token), finite(score.logprob),
                tops(score.top, score.token, score.logprob, score.before));
    }
    choice.text_offset = lists.offset;
    return lists.take();
  }

  void add_prompt(LogprobLists& lists, const Choice& choice) const {
    const std::vector<std::int32_t>& ids = prompt_of(choice).ids;
    const RequestResult& scores = result(choice.prompt);
    lists.add_first(token_label(ids.front(), -1), shows(ids.front()));
    for (std::size_t i = 0; i + 1 < ids.size() && i < scores.prompt_logprobs.size(); ++i) {
      static const std::vector<TopLogprob> kNone;
      const auto& top =
          i < scores.prompt_top_logprobs.size() ? scores.prompt_top_logprobs[i] : kNone;
      double logprob = scores.prompt_logprobs[i];
      lists.add(token_label(ids[i + 1], ids[i]), shows(ids[i + 1]), finite(logprob),
                tops(top, ids[i + 1], logprob, ids[i]));
    }
  }

  // {"token": log-probability} of these and of the token itself.
  // The likeliest counts where tokens are written alike.
  std::string tops(const std::vector<TopLogprob>& top, std::int32_t token, double logprob,
                   std::int32_t before) const {
    std::vector<std::string> seen;
    JsonText out;
    out.begin_object();
    auto add = [&](std::int32_t id, double value) {
      std::string label = token_label(id, before);
      if (std::ranges::find(seen, label) != seen.end()) return;
      out.add(label, finite(value));
      seen.push_back(std::move(label));
    };
    for (const TopLogprob& each : top) add(each.token, each.logprob);
    add(token, logprob);
    return out.end_object().take();
  }
};

}  // namespace

std::shared_ptr<Answer> make_completion_answer(const Answer::Server& server,
                                               std::shared_ptr<ApiCall> call, Ask ask) {
  return std::make_shared<CompletionAnswer>(server, std::move(call), std::move(ask));
}

}  // namespace bev
