// The answer to a call that generates: collects what the engine gives for each choice, and sends it
// whole or as a stream of events. What differs between the APIs is in the derived classes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/answer_text.h"
#include "serve/api_call.h"
#include "serve/api_error.h"
#include "serve/ask.h"
#include "serve/engine_loop.h"
#include "serve/metrics.h"
#include "serve/reasoning.h"

namespace bev {

struct TokenScore {
  std::int32_t token = -1;
  std::int32_t before = -1;  // the token before it, the context of its text; -1: none
  double logprob = 0;
  std::vector<TopLogprob> top;  // the likeliest, then those that were asked for
};

// What a choice has said since its last event, or in all.
struct ChoicePart {
  std::string content, reasoning;
  std::vector<std::int32_t> tokens;
  std::vector<TokenScore> scores;  // with Ask::logprobs
};

struct Choice {
  std::int64_t index = 0;   // in the answer
  std::int64_t prompt = 0;  // in Ask::prompts
  std::optional<AnswerText> text;
  std::optional<ReasoningSplitter> splitter;
  ChoicePart part;
  std::int64_t tokens = 0;
  std::int32_t last_token = -1;
  std::int64_t text_offset = 0;  // characters before the next token, for log-probabilities
  bool began = false, prompt_told = false;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;         // that ended it
  std::int32_t stop_token = -1;  // the same; -1: none
  double score = 0;              // mean log-probability
};

class Answer : public EngineClient {
 public:
  // What the server is, for all answers.
  struct Server {
    const ServedModel& model;
    Metrics& metrics;
    std::string fingerprint;
  };

  Answer(const Server& server, std::shared_ptr<ApiCall> call, Ask ask);

  const Ask& ask() const { return ask_; }

  void on_started(std::int64_t part) override;
  void on_token(std::int64_t part, NewToken token) override;
  void on_finished(std::int64_t part, RequestResult result) override;
  void on_failed(std::int64_t part, const Error& error) override;

 protected:
  // Events of a stream, each the JSON of one; "" for none.
  virtual std::string begin_event(Choice& choice) = 0;
  virtual std::string part_event(Choice& choice, const ChoicePart& part) = 0;
  // The last one of a choice, with why it ended.
  virtual std::string end_event(Choice& choice, const ChoicePart& part) = 0;
  virtual std::string usage_event() = 0;
  // The body of an answer that is no stream.
  virtual std::string whole() = 0;
  virtual HttpResponse failure(const ApiError& error) const { return error.response(); }

  const ServedModel& model() const { return server_.model; }
  const std::string& fingerprint() const { return server_.fingerprint; }
  std::int64_t created() const { return created_; }
  // The choices that the answer has, in order.
  std::vector<Choice*> chosen();
  const RequestResult& result(std::int64_t prompt) const {
    return results_[static_cast<std::size_t>(prompt)];
  }
  // {"prompt_tokens", ...}
  std::string usage() const;
  // "stop", "length", ...
  static std::string_view reason_of(const Choice& choice);
  // Whether texts have this token.
  bool shows(std::int32_t token) const;
  // The text that ended it, the token, or null.
  static std::string stop_reason(const Choice& choice);
  // How a token is written where tokens are listed.
  std::string token_label(std::int32_t token, std::int32_t before) const;
  // Its bytes; "" without a tokenizer.
  std::string token_bytes(std::int32_t token, std::int32_t before) const;
  // -9999 for -infinity.
  static double finite(double logprob);
  // vLLM's prompt_logprobs.
  std::string prompt_logprobs(std::int64_t prompt) const;

 private:
  Choice& choice_of(std::int64_t part, std::int64_t index);
  CallTimes& times_of(std::int64_t part) { return times_[static_cast<std::size_t>(part)]; }
  void add_text(Choice& choice, const std::string& text, ChoicePart& part) const;
  bool due(const Choice& choice) const;
  void send(const std::string& json);
  void send_part(Choice& choice);
  void end_choice(Choice& choice, const SequenceResult& result);
  void finish();
  void fail(int status, const std::string& message);

  Server server_;
  std::shared_ptr<ApiCall> call_;
  Ask ask_;
  std::int64_t created_ = 0;
  std::vector<Choice> choices_;
  std::vector<RequestResult> results_;  // of each prompt, without sequences
  std::int64_t unfinished_ = 0;         // prompts
  std::int64_t completion_tokens_ = 0, reasoning_tokens_ = 0;
  bool streaming_ = false, failed_ = false;
  std::vector<CallTimes> times_;  // of each prompt
};

std::shared_ptr<Answer> make_completion_answer(const Answer::Server& server,
                                               std::shared_ptr<ApiCall> call, Ask ask);
std::shared_ptr<Answer> make_chat_answer(const Answer::Server& server,
                                         std::shared_ptr<ApiCall> call, Ask ask);
std::shared_ptr<Answer> make_megatron_answer(const Answer::Server& server,
                                             std::shared_ptr<ApiCall> call, Ask ask);
// An error as Megatron's command-line client reads it.
HttpResponse megatron_error(const ApiError& error);

}  // namespace bev
