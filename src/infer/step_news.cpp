#include "infer/step_news.h"

#include <utility>

namespace bev {

void StepNews::tell(RequestSink& sink) {
  for (RequestId id : started) sink.on_started(id);
  for (TokenNews& token : tokens) {
    token.event.top = token.top;
    token.event.asked = token.asked;
    sink.on_token(token.event);
  }
  for (RequestResult& result : finished) sink.on_finished(std::move(result));
}

void pass_top(SharedNumbers& numbers, std::vector<TopLogprob>& list) {
  numbers.pass_list(list, [&](TopLogprob& top) {
    numbers.pass(top.token);
    numbers.pass(top.logprob);
  });
}

void pass_top_lists(SharedNumbers& numbers, std::vector<std::vector<TopLogprob>>& lists) {
  numbers.pass_list(lists, [&](std::vector<TopLogprob>& list) { pass_top(numbers, list); });
}

namespace {

void pass_token(SharedNumbers& numbers, TokenNews& token) {
  numbers.pass(token.event.request);
  numbers.pass(token.event.index);
  numbers.pass(token.event.token);
  numbers.pass(token.event.logprob);
  numbers.pass(token.event.weights_version);
  pass_top(numbers, token.top);
  pass_top(numbers, token.asked);
}

void pass_sequence(SharedNumbers& numbers, SequenceResult& result) {
  auto finish = static_cast<std::int32_t>(result.finish);
  numbers.pass(result.index);
  numbers.pass(finish);
  result.finish = static_cast<FinishReason>(finish);
  numbers.pass(result.score);
  numbers.pass_list(result.tokens);
  numbers.pass_list(result.logprobs);
  numbers.pass_list(result.weights_versions);
  pass_top_lists(numbers, result.top_logprobs);
  pass_top_lists(numbers, result.asked_logprobs);
  numbers.pass_list(result.stop_text);
  numbers.pass_list(result.error);
}

void pass_result(SharedNumbers& numbers, RequestResult& result) {
  numbers.pass(result.id);
  numbers.pass(result.cached_tokens);
  numbers.pass_list(result.prompt_logprobs);
  pass_top_lists(numbers, result.prompt_top_logprobs);
  numbers.pass_list(result.sequences,
                    [&](SequenceResult& sequence) { pass_sequence(numbers, sequence); });
}

}  // namespace

void pass_news(SharedNumbers& numbers, StepNews& news) {
  numbers.pass_list(news.started);
  numbers.pass_list(news.tokens, [&](TokenNews& token) { pass_token(numbers, token); });
  numbers.pass_list(news.finished, [&](RequestResult& result) { pass_result(numbers, result); });
}

}  // namespace bev
