#include "data/masked/bert_dataset.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "data/random/numpy_random.h"

namespace bev {

namespace {

using Tokens = std::span<const std::int32_t>;

// Removes tokens from the longer segment, at a random end, until both fit. Returns true if any were
// removed.
bool trim_pair(Tokens& a, Tokens& b, std::int64_t target_length, RandomState& random) {
  auto most = static_cast<std::size_t>(target_length);
  bool too_long = a.size() + b.size() > most;
  while (a.size() + b.size() > most) {
    Tokens& longer = a.size() > b.size() ? a : b;
    bool front = random_double(random) < 0.5;
    longer = longer.subspan(front ? 1 : 0, longer.size() - 1);
  }
  return too_long;
}

}  // namespace

void BertDataset::describe(const BertConfig& config, SentenceIndexSpec& spec) {
  constexpr std::int64_t kSpecialTokens = 3;  // [CLS] and two [SEP]
  spec.target_length = config.seq_length - kSpecialTokens;
  spec.least_sentences = config.classification_head ? 2 : 1;
}

BertDataset::BertDataset(MaskedSentences sentences, const BertConfig& config)
    : sentences_(std::move(sentences)),
      config_(config),
      masker_(sentences_.vocabulary(), config.masking, MaskRule::kBert) {
  check_bert_vocabulary(*sentences_.vocabulary());
}

BertSample BertDataset::sample(std::int64_t index) const {
  SentenceSample place = sentences_.at(index);
  RandomState random = sentences_.random(index);
  std::int64_t pivot = place.sentences;
  bool swapped = false;
  if (config_.classification_head) {
    pivot = place.sentences >= 3 ? random_integer(random, 1, place.sentences) : 1;
    swapped = random_double(random) < 0.5;
  }
  std::vector<std::int32_t> before = sentences_.read(place.first, pivot);
  std::vector<std::int32_t> after = sentences_.read(place.first + pivot, place.sentences - pivot);
  if (swapped) std::swap(before, after);
  Tokens a = before, b = after;
  bool truncated = trim_pair(a, b, place.target_length, random);

  const MaskedVocabulary& vocabulary = *sentences_.vocabulary();
  std::vector<std::int32_t> tokens{vocabulary.cls};
  tokens.insert(tokens.end(), a.begin(), a.end());
  tokens.push_back(vocabulary.sep);
  if (!b.empty()) {
    tokens.insert(tokens.end(), b.begin(), b.end());
    tokens.push_back(vocabulary.sep);
  }
  BertSample out = layout(masker_.mask(tokens, place.target_length, random), a.size());
  out.is_random = swapped;
  out.truncated = truncated;
  return out;
}

BertSample BertDataset::layout(const MaskedTokens& masked, std::size_t length_a) const {
  auto length = static_cast<std::size_t>(config_.seq_length);
  BEV_CHECK(masked.tokens.size() <= length, ErrorKind::kInput, sentences_.name(),
            ": the index gives a sample ", masked.tokens.size(), " tokens, more than --seq-length ",
            length);
  std::int32_t pad = sentences_.vocabulary()->pad;
  BertSample out;
  out.tokens = masked.tokens;
  out.tokens.resize(length, pad);
  out.types.assign(masked.tokens.size(), 1);
  std::fill_n(out.types.begin(), length_a + 2, 0);  // including [CLS] and [SEP]
  out.types.resize(length, 0);
  out.labels = masked.labels;
  out.labels.resize(length, kNoLabel);
  for (std::size_t i = 0; i < length; ++i) {
    out.loss_mask.push_back(out.labels[i] == kNoLabel ? 0 : 1);
    out.padding_mask.push_back(out.tokens[i] == pad ? 0 : 1);
  }
  // Padding is not in the embedding; replace it by a valid id.
  std::ranges::replace(out.tokens, pad, 0);
  std::ranges::replace(out.labels, pad, 0);
  return out;
}

}  // namespace bev
