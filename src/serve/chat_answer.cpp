// Answers of /v1/chat/completions.
#include <utility>

#include "serve/answer.h"
#include "serve/json_text.h"

namespace bev {

namespace {

class ChatAnswer : public Answer {
 public:
  using Answer::Answer;

 protected:
  std::string begin_event(Choice& choice) override {
    JsonText delta;
    delta.begin_object().add("role", "assistant").add("content", ask().echoed).end_object();
    return event(choice, delta.str(), nullptr, false);
  }
  std::string part_event(Choice& choice, const ChoicePart& part) override {
    return event(choice, delta_of(part), &part, false);
  }
  std::string end_event(Choice& choice, const ChoicePart& part) override {
    return event(choice, delta_of(part), &part, true);
  }

  std::string usage_event() override {
    JsonText out;
    begin(out, "chat.completion.chunk");
    out.key("choices").begin_list().end_list().add_json("usage", usage());
    return out.end_object().take();
  }

  std::string whole() override {
    JsonText out;
    begin(out, "chat.completion");
    out.key("choices").begin_list();
    for (Choice* each : chosen()) {
      Choice& choice = *each;
      out.begin_object().add("index", choice.index).key("message");
      write_message(out, choice.part);
      finish_choice(out, choice, &choice.part, true);
    }
    out.end_list().add_json("usage", usage());
    if (ask().prompt_logprobs >= 0) out.add_json("prompt_logprobs", prompt_logprobs(0));
    if (ask().return_token_ids) out.add_json("prompt_token_ids", prompt_ids());
    return out.end_object().take();
  }

 private:
  std::string prompt_ids() const { return json_integers(ask().prompts.front().ids); }

  void begin(JsonText& out, const char* object) const {
    out.begin_object().add("id", ask().id).add("object", object).add("created", created());
    out.add("model", model().name(ask().request.cache_key.adapter))
        .add("system_fingerprint", fingerprint());
  }

  // Under both names that clients read.
  static void add_reasoning(JsonText& out, const std::string& reasoning) {
    if (reasoning.empty()) return;
    out.add("reasoning", reasoning).add("reasoning_content", reasoning);
  }

  static std::string delta_of(const ChoicePart& part) {
    JsonText out;
    out.begin_object();
    add_reasoning(out, part.reasoning);
    if (!part.content.empty()) out.add("content", part.content);
    return out.end_object().take();
  }

  void write_message(JsonText& out, const ChoicePart& part) const {
    out.begin_object().add("role", "assistant").add("content", ask().echoed + part.content);
    add_reasoning(out, part.reasoning);
    out.add_null("refusal").end_object();
  }

  std::string event(Choice& choice, const std::string& delta, const ChoicePart* part, bool last) {
    JsonText out;
    begin(out, "chat.completion.chunk");
    bool first = !std::exchange(choice.prompt_told, true);
    if (first && ask().return_token_ids) out.add_json("prompt_token_ids", prompt_ids());
    out.key("choices").begin_list().begin_object();
    out.add("index", choice.index).add_json("delta", delta);
    finish_choice(out, choice, part, last);
    out.end_list();
    if (ask().include_usage) {
      ask().continuous_usage ? out.add_json("usage", usage()) : out.add_null("usage");
    }
    return out.end_object().take();
  }

  // What follows the message or its part in a choice. part: null for the role.
  void finish_choice(JsonText& out, const Choice& choice, const ChoicePart* part, bool last) const {
    bool scored = ask().logprobs && part != nullptr;
    scored ? out.add_json("logprobs", logprobs(*part)) : out.add_null("logprobs");
    last ? out.add("finish_reason", reason_of(choice)) : out.add_null("finish_reason");
    out.add_json("stop_reason", last ? stop_reason(choice) : "null");
    if (ask().return_token_ids && part != nullptr) {
      out.add_json("token_ids", json_integers(part->tokens));
    }
    out.end_object();
  }

  std::string logprobs(const ChoicePart& part) const {
    JsonText out;
    out.begin_object().key("content").begin_list();
    for (const TokenScore& score : part.scores) {
      write_token(out.begin_object(), score.token, score.before, score.logprob);
      out.key("top_logprobs").begin_list();
      for (const TopLogprob& each : score.top) {
        write_token(out.begin_object(), each.token, score.before, each.logprob);
        out.end_object();
      }
      out.end_list().end_object();
    }
    return out.end_list().add_null("refusal").end_object().take();
  }

  void write_token(JsonText& out, std::int32_t token, std::int32_t before, double logprob) const {
    out.add("token", token_label(token, before)).add("logprob", finite(logprob));
    out.key("bytes").begin_list();
    for (char byte : token_bytes(token, before)) out.integer(static_cast<unsigned char>(byte));
    out.end_list();
  }
};

}  // namespace

std::shared_ptr<Answer> make_chat_answer(const Answer::Server& server,
                                         std::shared_ptr<ApiCall> call, Ask ask) {
  return std::make_shared<ChatAnswer>(server, std::move(call), std::move(ask));
}

}  // namespace bev
