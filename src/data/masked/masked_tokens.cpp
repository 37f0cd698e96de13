#include "data/masked/masked_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "data/gpt/blend.h"

namespace bev {

namespace {

// Probabilities of n-grams of 1, 2, ... words; normalized twice for Megatron's rounding.
std::vector<double> run_probabilities(const MaskingConfig& config) {
  std::vector<double> weights;
  for (std::int64_t n = 1; n <= config.max_ngram; ++n)
    weights.push_back(1.0 / static_cast<double>(n));
  weights = normalize(weights);
  if (config.longer_ngrams) std::ranges::reverse(weights);
  return normalize(weights);
}

}  // namespace

std::vector<std::string> MaskingConfig::problems() const {
  std::vector<std::string> out;
  if (geometric && permutation) {
    out.emplace_back(
        "--masking-permutation: excludes --masking-geometric; take one of them, the other off");
  }
  return out;
}

TokenMasker::TokenMasker(std::shared_ptr<const MaskedVocabulary> vocabulary,
                         const MaskingConfig& config, MaskRule rule)
    : vocabulary_(std::move(vocabulary)),
      config_(config),
      rule_(rule),
      lengths_(run_probabilities(config)) {}

std::span<const std::size_t> TokenMasker::Words::run(std::size_t word, std::size_t length) const {
  std::size_t end = std::min(word + length, count());
  return std::span(places).subspan(starts[word], starts[end] - starts[word]);
}

// A continuation belongs to the word before it, even across a separator.
TokenMasker::Words TokenMasker::find_words(std::span<const std::int32_t> tokens) const {
  Words words;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == vocabulary_->cls || tokens[i] == vocabulary_->sep) continue;
    bool continues = config_.whole_words && !words.starts.empty() &&
                     vocabulary_->piece(tokens[i]) == PieceKind::kContinuation;
    if (!continues) words.starts.push_back(words.places.size());
    words.places.push_back(i);
  }
  words.starts.push_back(words.places.size());
  return words;
}

std::span<const std::size_t> TokenMasker::choose_run(const Words& words, std::size_t word,
                                                     double room, RandomState& random) const {
  constexpr double kStop = 0.2;  // as in SpanBERT
  auto longest = static_cast<std::size_t>(config_.max_ngram);
  std::size_t length = config_.geometric
                           ? std::clamp(static_cast<std::size_t>(random_geometric(random, kStop)),
                                        std::size_t{1}, longest)
                           : lengths_.draw(random) + 1;
  for (; length > 0; --length) {
    std::span<const std::size_t> run = words.run(word, length);
    if (static_cast<double>(run.size()) <= room) return run;
  }
  return {};
}

std::int32_t TokenMasker::replacement(std::int32_t token, RandomState& random) const {
  if (rule_ == MaskRule::kMask || random_double(random) < 0.8) return vocabulary_->mask;
  if (random_double(random) < 0.5) return token;
  const std::vector<std::int32_t>& all = vocabulary_->tokens;
  return all[static_cast<std::size_t>(
      random_integer(random, 0, static_cast<std::int64_t>(all.size())))];
}

MaskedTokens TokenMasker::mask(std::span<const std::int32_t> tokens, std::int64_t target_length,
                               RandomState& random) const {
  Words words = find_words(tokens);
  double share = std::nearbyint(static_cast<double>(tokens.size()) * config_.probability);
  double most =
      std::min(config_.probability * static_cast<double>(target_length), std::max(share, 1.0));
  std::vector<std::size_t> order(words.count());
  std::iota(order.begin(), order.end(), std::size_t{0});
  random.shuffle(std::span(order));

  MaskedTokens out;
  out.tokens.assign(tokens.begin(), tokens.end());
  out.labels.assign(tokens.size(), kNoLabel);
  double masked = 0;
  for (std::size_t word : order) {
    if (masked >= most) break;
    std::span<const std::size_t> run = choose_run(words, word, most - masked, random);
    auto is_masked = [&](std::size_t place) { return out.labels[place] != kNoLabel; };
    if (run.empty() || std::ranges::any_of(run, is_masked)) continue;
    MaskedSpan span{run.front(), run.back(), {}};
    for (std::size_t place : run) {
      out.tokens[place] = replacement(tokens[place], random);
      out.labels[place] = tokens[place];
      span.labels.push_back(tokens[place]);
    }
    out.spans.push_back(std::move(span));
    masked += static_cast<double>(run.size());
  }
  std::ranges::sort(out.spans, {}, &MaskedSpan::first);
  if (config_.permutation) permute(words, order, most, random, out);
  return out;
}

// Megatron draws these lengths from the process-wide generator, so they depend on the reading
// order; here they come from the sample's stream like everything else.
void TokenMasker::permute(const Words& words, std::vector<std::size_t>& order, double most,
                          RandomState& random, MaskedTokens& out) const {
  random.shuffle(std::span(order));
  std::vector<std::size_t> chosen;
  std::vector<bool> taken(out.tokens.size());
  for (std::size_t place = 0; place < taken.size(); ++place) {
    taken[place] = out.labels[place] != kNoLabel;
  }
  for (std::size_t word : order) {
    auto count = static_cast<double>(chosen.size());
    if (count >= most) break;
    std::span<const std::size_t> run = choose_run(words, word, most - count, random);
    if (std::ranges::any_of(run, [&](std::size_t place) { return taken[place]; })) continue;
    chosen.insert(chosen.end(), run.begin(), run.end());
    for (std::size_t place : run) taken[place] = true;
  }
  std::ranges::sort(chosen);
  std::vector<std::size_t> sources = chosen;
  random.shuffle(std::span(sources));
  const std::vector<std::int32_t> before = out.tokens;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    out.tokens[chosen[i]] = before[sources[i]];
    out.labels[chosen[i]] = before[chosen[i]];
  }
}

}  // namespace bev
