#include "serve/shared_request.h"

namespace bev {

namespace {

void pass_sampling(SharedNumbers& numbers, SamplingOptions& sampling) {
  for (double SamplingOptions::*field :
       {&SamplingOptions::temperature, &SamplingOptions::top_p, &SamplingOptions::min_p,
        &SamplingOptions::repetition_penalty, &SamplingOptions::presence_penalty,
        &SamplingOptions::frequency_penalty}) {
    numbers.pass(sampling.*field);
  }
  numbers.pass(sampling.top_k);
  // A number holds 53 bits.
  auto low = static_cast<std::uint32_t>(sampling.seed);
  auto high = static_cast<std::uint32_t>(sampling.seed >> 32);
  numbers.pass(low);
  numbers.pass(high);
  sampling.seed = std::uint64_t{high} << 32 | low;
  numbers.pass_list(sampling.logit_bias, [&](LogitEdit& edit) {
    numbers.pass(edit.token);
    numbers.pass(edit.bias);
  });
  numbers.pass_list(sampling.allowed_tokens);
}

void pass_beams(SharedNumbers& numbers, std::optional<BeamOptions>& beams) {
  bool has = beams.has_value();
  numbers.pass(has);
  if (!has) return;
  if (!beams) beams.emplace();
  numbers.pass(beams->num_beams);
  numbers.pass(beams->num_return_sequences);
  numbers.pass(beams->length_penalty);
  auto early = static_cast<std::int32_t>(beams->early_stopping);
  numbers.pass(early);
  beams->early_stopping = static_cast<EarlyStopping>(early);
}

}  // namespace

void pass_request(SharedNumbers& numbers, Request& request) {
  numbers.pass_list(request.prompt);
  pass_sampling(numbers, request.sampling);
  numbers.pass(request.max_new_tokens);
  numbers.pass(request.min_new_tokens);
  numbers.pass_list(request.end_tokens);
  numbers.pass(request.ignore_end);
  numbers.pass_list(request.stop_tokens);
  numbers.pass_list(request.stop, [&](std::string& text) { numbers.pass_list(text); });
  numbers.pass(request.n);
  pass_beams(numbers, request.beams);
  numbers.pass(request.rules.no_repeat_ngram_size);
  numbers.pass(request.rules.forced_bos_token);
  numbers.pass(request.rules.forced_eos_token);
  numbers.pass_list(request.rules.banned, [&](auto& tokens) { numbers.pass_list(tokens); });
  numbers.pass(request.prompt_logprobs);
  numbers.pass(request.prompt_top_logprobs);
  numbers.pass(request.top_logprobs);
  numbers.pass_list(request.logprob_tokens);
  numbers.pass(request.priority);
  numbers.pass(request.deadline);
  numbers.pass_list(request.cache_key.salt);
  numbers.pass(request.cache_key.adapter);
  numbers.pass(request.stream);
}

}  // namespace bev
