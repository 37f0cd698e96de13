#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/sampling.h"

namespace bev {

void check_rules(const SequenceRules& rules, std::int64_t vocabulary) {
  BEV_CHECK(rules.no_repeat_ngram_size >= 0, ErrorKind::kConfig,
            "--no-repeat-ngram-size: ", rules.no_repeat_ngram_size,
            " is negative; 0 blocks nothing");
  auto check_forced = [&](const char* flag, std::int32_t token) {
    BEV_CHECK(token >= -1 && token < vocabulary, ErrorKind::kConfig, flag, ": token ", token,
              " is outside of the vocabulary of ", vocabulary, "; -1 is none");
  };
  check_forced("--forced-bos-token-id", rules.forced_bos_token);
  check_forced("--forced-eos-token-id", rules.forced_eos_token);
  for (const std::vector<std::int32_t>& sequence : rules.banned) {
    BEV_CHECK(!sequence.empty(), ErrorKind::kConfig, "banned tokens: a sequence is empty");
    for (std::int32_t token : sequence) {
      BEV_CHECK(token >= 0 && token < vocabulary, ErrorKind::kInput, "banned tokens: token ", token,
                " is outside of the vocabulary of ", vocabulary);
    }
  }
}

bool SequenceRules::follow_tokens() const {
  return no_repeat_ngram_size > 0 ||
         std::ranges::any_of(banned, [](const auto& sequence) { return sequence.size() > 1; });
}

std::vector<std::int32_t> banned_after(std::span<const std::int32_t> tokens,
                                       const SequenceRules& rules) {
  std::vector<std::int32_t> last;
  for (const std::vector<std::int32_t>& sequence : rules.banned) {
    const std::span<const std::int32_t> before = std::span(sequence).first(sequence.size() - 1);
    const bool follows =
        before.size() <= tokens.size() && std::ranges::equal(before, tokens.last(before.size()));
    if (follows) last.push_back(sequence.back());
  }
  return last;
}

void check_sampling(const SamplingOptions& options, std::int64_t vocabulary) {
  BEV_CHECK(options.temperature >= 0 && std::isfinite(options.temperature), ErrorKind::kConfig,
            "--temperature: ", options.temperature, " is not a number from 0 on");
  BEV_CHECK(options.top_k >= 0, ErrorKind::kConfig, "--top-k: ", options.top_k,
            " is negative; 0 keeps all tokens");
  BEV_CHECK(options.top_p > 0 && options.top_p <= 1, ErrorKind::kConfig, "--top-p: ", options.top_p,
            " is not in (0, 1]; 1 keeps all tokens");
  BEV_CHECK(options.min_p >= 0 && options.min_p <= 1, ErrorKind::kConfig,
            "--min-p: ", options.min_p, " is not in [0, 1]; 0 keeps all tokens");
  BEV_CHECK(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
            ErrorKind::kConfig, "--repetition-penalty: ", options.repetition_penalty,
            " is not above 0; 1 is none");
  BEV_CHECK(std::isfinite(options.presence_penalty), ErrorKind::kConfig,
            "--presence-penalty: is not a finite number");
  BEV_CHECK(std::isfinite(options.frequency_penalty), ErrorKind::kConfig,
            "--frequency-penalty: is not a finite number");
  for (const LogitEdit& edit : options.logit_bias) {
    BEV_CHECK(edit.token >= 0 && edit.token < vocabulary, ErrorKind::kInput, "--logit-bias: token ",
              edit.token, " is outside of the vocabulary of ", vocabulary);
    bool usable = !std::isnan(edit.bias) && edit.bias < INFINITY;
    BEV_CHECK(usable, ErrorKind::kInput, "--logit-bias: token ", edit.token, " has the bias ",
              edit.bias, ", which is not a number");
  }
  for (std::int32_t token : options.allowed_tokens) {
    BEV_CHECK(token >= 0 && token < vocabulary, ErrorKind::kInput, "allowed tokens: token ", token,
              " is outside of the vocabulary of ", vocabulary);
  }
}

std::vector<LogitEdit> allowed_biases(const SamplingOptions& options) {
  if (options.allowed_tokens.empty()) return options.logit_bias;
  std::vector<std::int32_t> allowed = options.allowed_tokens;
  std::ranges::sort(allowed);
  std::vector<LogitEdit> biases;
  std::ranges::copy_if(options.logit_bias, std::back_inserter(biases), [&](const LogitEdit& edit) {
    return std::ranges::binary_search(allowed, edit.token);
  });
  return biases;
}

double random_fraction(std::uint64_t seed, const TokenPlace& place) {
  auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  auto high = [](std::int64_t x) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) >> 32);
  };
  PhiloxCounter words =
      philox({low(place.position), high(place.position), low(place.sequence), high(place.sequence)},
             mix_bits(seed, hash_name("sampling")));
  std::uint64_t bits = (std::uint64_t{words[0]} << 20) | (words[1] >> 12);
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

SamplingRule sampling_rule(const SamplingOptions& options, const TokenPlace& place) {
  SamplingRule rule;
  rule.temperature = options.temperature;
  rule.top_p = options.top_p;
  rule.min_p = options.min_p;
  rule.repetition_penalty = options.repetition_penalty;
  rule.presence_penalty = options.presence_penalty;
  rule.frequency_penalty = options.frequency_penalty;
  rule.top_k = static_cast<std::int32_t>(options.top_k);
  rule.fraction = options.temperature > 0 ? random_fraction(options.seed, place) : 0.5;
  return rule;
}

}  // namespace bev
