// What a client asks of the inference engine, and what it gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/beam_search.h"
#include "infer/block_pool.h"
#include "infer/sampler.h"

namespace bev {

struct ModelConfig;

inline constexpr std::int64_t kMostTopLogprobs = 20, kMostLogprobTokens = 128;

struct Request {
  std::vector<std::int32_t> prompt;
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 64;
  std::int64_t min_new_tokens = 0;        // before that, end tokens are not selected
  std::vector<std::int32_t> end_tokens;   // any of them ends its sequence, as its last token
  bool ignore_end = false;                // end tokens are ordinary tokens
  std::vector<std::int32_t> stop_tokens;  // the same, whatever ignore_end says
  std::vector<std::string> stop;          // texts that end a sequence; needs the engine's tokenizer
  std::int64_t n = 1;                     // sequences
  std::optional<BeamOptions> beams;       // beam search instead of sampling; n is 1
  SequenceRules rules;
  bool prompt_logprobs = false;
  std::int64_t prompt_top_logprobs = 0;  // with them: likeliest tokens at each place of the prompt
  std::int64_t top_logprobs = 0;         // likeliest tokens reported with each new one
  std::vector<std::int32_t> logprob_tokens;  // also reported with each new one
  std::int64_t priority = 0;  // the lowest goes first; equal ones in order of arrival
  double deadline = 0;        // on monotonic_seconds(); 0: none
  CacheKey cache_key;
  std::int64_t stream = 0;  // names the random numbers, with the seed and the index in n

  // The rule of a token follows from the one before it, so that the host must know that one first.
  bool needs_last_token() const { return beams.has_value() || rules.follow_tokens(); }
  // The host receives all logits and selects.
  bool wants_logits() const { return beams.has_value(); }
  // Sequences that run at a time.
  std::int64_t width() const { return beams ? beams->num_beams : n; }
};

enum class FinishReason : std::uint8_t {
  kNone,       // not finished
  kStop,       // an end token, stop token or stop text
  kLength,     // max_new_tokens
  kCancelled,  // by the client
  kDeadline,
  kError,  // its logits were not finite
};
std::string_view name_of(FinishReason reason);

using RequestId = std::int64_t;

// In lists of the likeliest tokens the first has the largest log-probability. A token that is
// reported more than once at a place has one number everywhere.
struct TopLogprob {
  std::int32_t token = -1;
  double logprob = 0;
};

// A new token of a sequence.
struct TokenEvent {
  RequestId request = 0;
  std::int64_t index = 0;  // of the sequence, below n
  std::int32_t token = -1;
  double logprob = 0;
  std::int64_t weights_version = 0;  // of the weights that computed it
  std::span<const TopLogprob> top = {};
  std::span<const TopLogprob> asked = {};  // of Request::logprob_tokens, in their order
};

struct SequenceResult {
  std::int64_t index = 0;
  std::vector<std::int32_t> tokens;  // without the prompt
  std::vector<double> logprobs;      // log-softmax of the unmodified logits
  std::vector<std::vector<TopLogprob>> top_logprobs, asked_logprobs;
  std::vector<std::int64_t> weights_versions;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;  // of Request::stop, if one ended it
  double score = 0;       // of a beam; else the sum of the log-probabilities
  std::string error;      // for FinishReason::kError
};

struct RequestResult {
  RequestId id = 0;
  std::vector<SequenceResult> sequences;  // by index
  std::vector<double> prompt_logprobs;    // of prompt tokens from the second on, if asked for
  std::vector<std::vector<TopLogprob>> prompt_top_logprobs;  // at the same places
  std::int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
};

// Receives tokens and results as they come. Calls come from within InferenceEngine::step. The
// tokens of beams are known only when they are finished, and come with the result alone.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The first sequence of a request no longer waits; never called for one that ends before.
  virtual void on_started(RequestId) {}
  virtual void on_token(const TokenEvent&) {}
  virtual void on_finished(RequestResult) {}
};

// Everything about a request that can be refused before the model is there: Error of kind config or
// input. `what` names it in messages ("prompt 3").
void check_request(const ModelConfig& model, const Request& request, const std::string& what);
// The search of a request with beams.
BeamSearchArgs beam_search_of(const Request& request);

}  // namespace bev
