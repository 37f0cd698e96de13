#include "serve/answer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "serve/json_text.h"
#include "serve/sse.h"

namespace bev {

Answer::Answer(const Server& server, std::shared_ptr<ApiCall> call, Ask ask)
    : server_(server),
      call_(std::move(call)),
      ask_(std::move(ask)),
      created_(unix_microseconds() / 1'000'000),
      results_(ask_.prompts.size()),
      unfinished_(std::ssize(ask_.prompts)),
      times_(ask_.prompts.size(), CallTimes{.arrival = call_->arrival()}) {
  const Tokenizer* tokenizer = model().tokenizer.get();
  bool splits = ask_.chat && model().reasoning != nullptr;
  for (std::size_t prompt = 0; prompt < ask_.prompts.size(); ++prompt) {
    const AskPrompt& asked = ask_.prompts[prompt];
    for (std::int64_t i = 0; i < ask_.request.n; ++i) {
      Choice& choice = choices_.emplace_back();
      choice.index = std::ssize(choices_) - 1;
      choice.prompt = static_cast<std::int64_t>(prompt);
      choice.last_token = asked.ids.back();
      if (tokenizer != nullptr) choice.text.emplace(*tokenizer, asked.ids, ask_.request.stop);
      if (splits) choice.splitter.emplace(*model().reasoning, asked.text);
      // Content that goes on does not reason, and may need the blank it begins with.
      if (splits && ask_.continues && !choice.splitter->reasons()) choice.splitter.reset();
    }
  }
}

Choice& Answer::choice_of(std::int64_t part, std::int64_t index) {
  return choices_[static_cast<std::size_t>(part * ask_.request.n + index)];
}

bool Answer::shows(std::int32_t token) const {
  const std::vector<std::int32_t>& stops = ask_.request.stop_tokens;
  if (!ask_.include_stop && std::ranges::find(stops, token) != stops.end()) return false;
  if (!model().tokenizer || !ask_.skip_special_tokens) return true;
  const Tokenizer& tokenizer = *model().tokenizer;
  const std::vector<std::int32_t>& ends = ask_.request.end_tokens;
  bool special = tokenizer.is_special(token);
  if (special && ask_.chat && model().reasoning != nullptr) {
    std::optional<std::string> text = tokenizer.token_text(token);
    if (text && is_reasoning_marker(*model().reasoning, *text)) return true;
  }
  bool ends_it = !ask_.request.ignore_end && std::ranges::find(ends, token) != ends.end();
  return !special && !ends_it;
}

void Answer::add_text(Choice& choice, const std::string& text, ChoicePart& part) const {
  if (!choice.splitter) {
    part.content += text;
    return;
  }
  for (TextPiece& piece : choice.splitter->add(text)) {
    (piece.part == TextPart::kContent ? part.content : part.reasoning) += piece.text;
  }
}

void Answer::on_started(std::int64_t part) { server_.metrics.started(times_of(part)); }

void Answer::on_token(std::int64_t part, NewToken token) {
  if (failed_) return;
  server_.metrics.token(times_of(part));
  Choice& choice = choice_of(part, token.index);
  ++choice.tokens;
  ++completion_tokens_;
  choice.part.tokens.push_back(token.token);
  if (ask_.logprobs) {
    TokenScore& score = choice.part.scores.emplace_back();
    score.token = token.token;
    score.before = choice.last_token;
    score.logprob = token.logprob;
    score.top = std::move(token.top);
    score.top.resize(
        std::min(score.top.size(), static_cast<std::size_t>(ask_.request.top_logprobs)));
    score.top.insert(score.top.end(), token.asked.begin(), token.asked.end());
  }
  choice.last_token = token.token;
  if (choice.text && shows(token.token)) {
    bool may_stop = choice.tokens >= ask_.request.min_new_tokens;
    add_text(choice, choice.text->add(token.token, may_stop), choice.part);
  }
  if (choice.splitter && choice.splitter->reasons()) ++reasoning_tokens_;
  if (ask_.stream && due(choice)) send_part(choice);
}

// Tokens go out with the text that they make; without a tokenizer at once.
bool Answer::due(const Choice& choice) const {
  const ChoicePart& part = choice.part;
  bool says = !choice.text || !part.content.empty() || !part.reasoning.empty();
  return says && std::ssize(part.tokens) >= ask_.stream_interval;
}

void Answer::send(const std::string& json) {
  if (json.empty()) return;
  if (!std::exchange(streaming_, true)) {
    call_->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                         .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  }
  call_->exchange().write(sse_event(json));
}

void Answer::send_part(Choice& choice) {
  if (!std::exchange(choice.began, true)) send(begin_event(choice));
  ChoicePart part = std::exchange(choice.part, {});
  if (!ask_.include_reasoning) part.reasoning.clear();
  send(part_event(choice, part));
}

void Answer::end_choice(Choice& choice, const SequenceResult& result) {
  choice.finish = result.finish;
  choice.stop_text = result.stop_text;
  if (result.finish == FinishReason::kStop && result.stop_text.empty() && !result.tokens.empty()) {
    const std::vector<std::int32_t>& stops = ask_.request.stop_tokens;
    std::int32_t last = result.tokens.back();
    if (std::ranges::find(stops, last) != stops.end()) choice.stop_token = last;
  }
  choice.score = result.score / static_cast<double>(std::max<std::int64_t>(choice.tokens, 1));
  if (choice.text) {
    std::string rest = choice.text->finish(result.stop_text);
    if (ask_.include_stop) rest += result.stop_text;
    add_text(choice, rest, choice.part);
  }
  if (choice.splitter) {
    for (TextPiece& piece : choice.splitter->finish()) {
      (piece.part == TextPart::kContent ? choice.part.content : choice.part.reasoning) +=
          piece.text;
    }
  }
  if (!ask_.include_reasoning) choice.part.reasoning.clear();
  if (!ask_.stream) return;
  // The last event of a chat says nothing but why it ended.
  bool says = !choice.part.content.empty() || !choice.part.reasoning.empty();
  if (ask_.chat && says) send_part(choice);
  if (!std::exchange(choice.began, true)) send(begin_event(choice));
  ChoicePart part = std::exchange(choice.part, {});
  send(end_event(choice, part));
}

void Answer::on_finished(std::int64_t part, RequestResult result) {
  const auto prompt = static_cast<std::size_t>(part);
  server_.metrics.ended(times_of(part).started > 0);
  std::int64_t tokens = 0;
  FinishReason reason = FinishReason::kNone;
  for (const SequenceResult& sequence : result.sequences) {
    tokens += std::ssize(sequence.tokens);
    reason = sequence.finish;
  }
  server_.metrics.finished(times_of(part), reason, std::ssize(ask_.prompts[prompt].ids),
                           result.cached_tokens, tokens);
  if (failed_) return;
  for (const SequenceResult& sequence : result.sequences) {
    if (sequence.finish == FinishReason::kError) return fail(500, sequence.error);
  }
  std::vector<SequenceResult> sequences = std::exchange(result.sequences, {});
  results_[prompt] = std::move(result);
  for (const SequenceResult& sequence : sequences) {
    end_choice(choice_of(part, sequence.index), sequence);
  }
  if (--unfinished_ == 0) finish();
}

void Answer::on_failed(std::int64_t part, const Error& error) {
  server_.metrics.ended(times_of(part).started > 0);
  if (failed_) return;
  bool theirs = error.kind() == ErrorKind::kInput || error.kind() == ErrorKind::kConfig;
  fail(theirs ? 400 : 500, error.what());
}

// The n likeliest of each prompt's best_of choices.
std::vector<Choice*> Answer::chosen() {
  std::vector<Choice*> out;
  for (std::size_t prompt = 0; prompt < ask_.prompts.size(); ++prompt) {
    std::vector<Choice*> all;
    for (std::int64_t i = 0; i < ask_.request.n; ++i) {
      all.push_back(&choice_of(static_cast<std::int64_t>(prompt), i));
    }
    if (ask_.n < ask_.request.n) std::ranges::stable_sort(all, std::greater(), &Choice::score);
    out.insert(out.end(), all.begin(), all.begin() + ask_.n);
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i]->index = static_cast<std::int64_t>(i);
  return out;
}

void Answer::finish() {
  if (!ask_.stream) return call_->respond({.body = whole()});
  if (ask_.include_usage) send(usage_event());
  call_->exchange().write(sse_event("[DONE]"));
  call_->exchange().end_stream();
}

void Answer::fail(int status, const std::string& message) {
  failed_ = true;
  log_warning(concat("request ", call_->id(), ": ", message));
  ApiError error(status, message);
  if (!streaming_) return call_->respond(failure(error));
  send(error.body());
  call_->exchange().write(sse_event("[DONE]"));
  call_->exchange().end_stream();
}

std::string Answer::usage() const {
  std::int64_t prompt = 0, cached = 0;
  for (std::size_t i = 0; i < ask_.prompts.size(); ++i) {
    prompt += std::ssize(ask_.prompts[i].ids);
    cached += results_[i].cached_tokens;
  }
  JsonText out;
  out.begin_object().add("prompt_tokens", prompt).add("completion_tokens", completion_tokens_);
  out.add("total_tokens", prompt + completion_tokens_);
  out.key("prompt_tokens_details").begin_object().add("cached_tokens", cached).end_object();
  out.key("completion_tokens_details").begin_object();
  out.add("reasoning_tokens", reasoning_tokens_).end_object();
  return out.end_object().take();
}

std::string_view Answer::reason_of(const Choice& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "abort";
    default:
      return "length";
  }
}

std::string Answer::stop_reason(const Choice& choice) {
  JsonText out;
  if (!choice.stop_text.empty()) {
    out.text(choice.stop_text);
  } else if (choice.stop_token >= 0) {
    out.integer(choice.stop_token);
  } else {
    out.null();
  }
  return out.take();
}

// Some tokenizers write a token differently at the beginning of a text: what it adds to the one
// before it.
std::string Answer::token_bytes(std::int32_t token, std::int32_t before) const {
  if (!model().tokenizer) return {};
  const Tokenizer& tokenizer = *model().tokenizer;
  std::string alone = tokenizer.decode(std::array{token});
  if (before < 0) return alone;
  std::string context = tokenizer.decode(std::array{before});
  std::string both = tokenizer.decode(std::array{before, token});
  return both.starts_with(context) ? both.substr(context.size()) : alone;
}

std::string Answer::token_label(std::int32_t token, std::int32_t before) const {
  if (ask_.tokens_as_ids || !model().tokenizer) return concat("token_id:", token);
  return replace_invalid_utf8(token_bytes(token, before));
}

double Answer::finite(double logprob) {
  constexpr double kImpossible = -9999;
  return std::max(logprob, kImpossible);
}

std::string Answer::prompt_logprobs(std::int64_t prompt) const {
  const std::vector<std::int32_t>& ids = ask_.prompts[static_cast<std::size_t>(prompt)].ids;
  const RequestResult& of = result(prompt);
  JsonText out;
  out.begin_list().null();
  for (std::size_t i = 0; i + 1 < ids.size() && i < of.prompt_logprobs.size(); ++i) {
    std::int32_t own = ids[i + 1], before = ids[i];
    bool listed = false;
    out.begin_object();
    auto add = [&](std::int32_t token, double logprob, std::int64_t rank) {
      out.key(concat(token)).begin_object().add("logprob", finite(logprob));
      rank > 0 ? out.add("rank", rank) : out.add_null("rank");
      out.add("decoded_token", replace_invalid_utf8(token_bytes(token, before))).end_object();
    };
    if (i < of.prompt_top_logprobs.size()) {
      const std::vector<TopLogprob>& top = of.prompt_top_logprobs[i];
      auto count = std::min(top.size(), static_cast<std::size_t>(ask_.prompt_logprobs));
      for (std::size_t k = 0; k < count; ++k) {
        add(top[k].token, top[k].logprob, static_cast<std::int64_t>(k) + 1);
        listed = listed || top[k].token == own;
      }
    }
    if (!listed) add(own, of.prompt_logprobs[i], 0);
    out.end_object();
  }
  return out.end_list().take();
}

}  // namespace bev
