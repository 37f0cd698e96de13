#include "infer/request.h"

#include <limits>

#include "base/error.h"
#include "models/config.h"

namespace bev {

namespace {

void check_ids(const ModelConfig& model, std::span<const std::int32_t> ids,
               const std::string& what) {
  for (std::int32_t token : ids) {
    BEV_CHECK(token >= 0 && token < model.vocab_size, ErrorKind::kInput, "generate: ", what,
              " holds token ", token, ", outside of the vocabulary of ", model.vocab_size);
  }
}

void check_length(const ModelConfig& model, const Request& request, const std::string& what) {
  auto length = std::ssize(request.prompt);
  bool limited = model.longest_sequence() > 0;
  std::int64_t most = limited ? model.longest_sequence() : std::numeric_limits<std::int32_t>::max();
  if (length + request.max_new_tokens <= most) return;
  std::string cure = length < most
                         ? concat("--max-new-tokens may be at most ", most - length, " with it")
                         : concat("shorten it below ", most, " tokens");
  BEV_FAIL(ErrorKind::kConfig, "--max-new-tokens: ", what, " of ", length, " tokens and ",
           request.max_new_tokens, " new ones exceed the ", most,
           limited ? concat(" ", model.longest_sequence_reason(), "; ") : " possible; ", cure);
}

}  // namespace

void check_request(const ModelConfig& model, const Request& request, const std::string& what) {
  BEV_CHECK(model.causal, ErrorKind::kConfig,
            "generate: the model is bidirectional; a decoder is needed");
  BEV_CHECK(!request.prompt.empty(), ErrorKind::kInput, "generate: ", what, " is empty");
  BEV_CHECK(request.max_new_tokens >= 0, ErrorKind::kConfig,
            "--max-new-tokens: ", request.max_new_tokens, " is negative");
  BEV_CHECK(request.min_new_tokens >= 0 && request.min_new_tokens <= request.max_new_tokens,
            ErrorKind::kConfig, "--min-new-tokens: ", request.min_new_tokens,
            " is not between 0 and --max-new-tokens ", request.max_new_tokens);
  BEV_CHECK(request.n >= 1, ErrorKind::kConfig, "--n: ", request.n, " is below 1");
  BEV_CHECK(request.top_logprobs >= 0 && request.top_logprobs <= kMostTopLogprobs,
            ErrorKind::kConfig, "top logprobs: ", request.top_logprobs, " is not between 0 and ",
            kMostTopLogprobs);
  BEV_CHECK(request.prompt_top_logprobs >= 0 && request.prompt_top_logprobs <= kMostTopLogprobs,
            ErrorKind::kConfig, "prompt top logprobs: ", request.prompt_top_logprobs,
            " is not between 0 and ", kMostTopLogprobs);
  BEV_CHECK(request.prompt_logprobs || request.prompt_top_logprobs == 0, ErrorKind::kConfig,
            "prompt top logprobs: need prompt_logprobs");
  BEV_CHECK(std::ssize(request.logprob_tokens) <= kMostLogprobTokens, ErrorKind::kConfig,
            "logprob tokens: ", request.logprob_tokens.size(), " are more than ",
            kMostLogprobTokens);
  for (const std::string& text : request.stop) {
    BEV_CHECK(!text.empty(), ErrorKind::kConfig, "--stop: a stop text is empty");
  }
  check_sampling(request.sampling, model.vocab_size);
  check_ids(model, request.prompt, what);
  check_ids(model, request.stop_tokens, "--stop-token-ids");
  check_ids(model, request.logprob_tokens, "the list of logprob tokens");
  check_rules(request.rules, model.vocab_size);
  check_length(model, request, what);
  if (!request.beams) return;
  check_beams(*request.beams);
  BEV_CHECK(request.max_new_tokens >= 1, ErrorKind::kConfig,
            "--max-new-tokens: ", request.max_new_tokens,
            " is not a number from 1 on, which beams need");
  BEV_CHECK(request.n == 1, ErrorKind::kConfig,
            "--n: is for sampling; --num-return-sequences says "
            "how many of the beams are returned");
  BEV_CHECK(request.sampling.temperature == 0, ErrorKind::kConfig,
            "--num-beams: beam search is greedy; leave out --temperature");
  BEV_CHECK(request.stop.empty(), ErrorKind::kConfig,
            "--num-beams: beam search knows no stop texts; give --stop-token-ids");
}

BeamSearchArgs beam_search_of(const Request& request) {
  BeamSearchArgs args;
  args.options = *request.beams;
  args.rules = request.rules;
  args.prompt = request.prompt;
  if (!request.ignore_end) args.end_tokens = request.end_tokens;
  args.end_tokens.insert(args.end_tokens.end(), request.stop_tokens.begin(),
                         request.stop_tokens.end());
  args.max_new_tokens = request.max_new_tokens;
  args.min_new_tokens = request.min_new_tokens;
  args.logit_bias = request.sampling.logit_bias;
  args.allowed_tokens = request.sampling.allowed_tokens;
  args.repetition_penalty = request.sampling.repetition_penalty;
  return args;
}

}  // namespace bev
