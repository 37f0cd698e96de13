#include "data/masked/t5_dataset.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

void append_tokens(std::vector<std::int32_t>& out, std::span<const std::int32_t> tokens) {
  out.insert(out.end(), tokens.begin(), tokens.end());
}

// Mask without the padding, which is replaced by an id that the embedding has.
std::vector<std::int32_t> hide_padding(std::vector<std::int32_t>& tokens, std::int32_t pad) {
  std::vector<std::int32_t> mask;
  for (std::int32_t token : tokens) mask.push_back(token == pad ? 0 : 1);
  std::ranges::replace(tokens, pad, 0);
  return mask;
}

}  // namespace

void T5Dataset::describe(const T5Config& config, SentenceIndexSpec& spec) {
  constexpr std::int64_t kSpecialTokens = 2;  // Megatron reserves space for <bos> and <eos>
  spec.target_length = config.seq_length - kSpecialTokens;
  spec.least_sentences = 1;
}

T5Dataset::T5Dataset(MaskedSentences sentences, const T5Config& config)
    : sentences_(std::move(sentences)),
      config_(config),
      masker_(sentences_.vocabulary(), config.masking, MaskRule::kMask) {
  check_t5_vocabulary(*sentences_.vocabulary());
}

T5Sample T5Dataset::sample(std::int64_t index) const {
  SentenceSample place = sentences_.at(index);
  RandomState random = sentences_.random(index);
  std::vector<std::int32_t> tokens = sentences_.read(place.first, place.sentences);
  auto most = static_cast<std::size_t>(place.target_length);
  bool truncated = tokens.size() > most;
  if (truncated) tokens.resize(most);
  T5Sample out = cut_out(masker_.mask(tokens, place.target_length, random), index);
  out.truncated = truncated;
  pad(out);
  return out;
}

T5Sample T5Dataset::cut_out(const MaskedTokens& masked, std::int64_t index) const {
  const MaskedVocabulary& vocabulary = *sentences_.vocabulary();
  BEV_CHECK(masked.spans.size() <= vocabulary.sentinels.size(), ErrorKind::kInput,
            sentences_.name(), ": sample ", index, " has ", masked.spans.size(),
            " masked runs, but there are ", vocabulary.sentinels.size(),
            " sentinels; give --vocab-extra-ids ", masked.spans.size(),
            " or more, or a shorter --seq-length");
  T5Sample out;
  std::span<const std::int32_t> tokens = masked.tokens;
  std::size_t done = 0;
  for (std::size_t i = 0; i < masked.spans.size(); ++i) {
    const MaskedSpan& span = masked.spans[i];
    append_tokens(out.encoder_tokens, tokens.subspan(done, span.first - done));
    out.encoder_tokens.push_back(vocabulary.sentinels[i]);
    out.labels.push_back(vocabulary.sentinels[i]);
    append_tokens(out.labels, span.labels);
    done = span.last + 1;
  }
  append_tokens(out.encoder_tokens, tokens.subspan(done));
  out.decoder_tokens.push_back(vocabulary.bos);
  append_tokens(out.decoder_tokens, out.labels);
  out.labels.push_back(vocabulary.eos);
  out.encoder_length = static_cast<std::int64_t>(out.encoder_tokens.size());
  out.decoder_length = static_cast<std::int64_t>(out.decoder_tokens.size());
  BEV_CHECK(out.encoder_length <= config_.seq_length, ErrorKind::kInput, sentences_.name(),
            ": the encoder's input of sample ", index, " has ", out.encoder_length,
            " tokens; --seq-length is ", config_.seq_length);
  BEV_CHECK(out.decoder_length <= config_.decoder_seq_length, ErrorKind::kInput, sentences_.name(),
            ": the decoder's input of sample ", index, " has ", out.decoder_length,
            " tokens; --decoder-seq-length is ", config_.decoder_seq_length, ", make it longer");
  return out;
}

void T5Dataset::pad(T5Sample& sample) const {
  auto encoder_length = static_cast<std::size_t>(config_.seq_length);
  auto decoder_length = static_cast<std::size_t>(config_.decoder_seq_length);
  std::int32_t padding = sentences_.vocabulary()->pad;
  sample.loss_mask.assign(sample.labels.size(), 1);
  sample.loss_mask.resize(decoder_length, 0);
  sample.labels.resize(decoder_length, kNoLabel);
  std::ranges::replace(sample.labels, padding, 0);
  sample.encoder_tokens.resize(encoder_length, padding);
  sample.decoder_tokens.resize(decoder_length, padding);
  sample.encoder_mask = hide_padding(sample.encoder_tokens, padding);
  sample.decoder_mask = hide_padding(sample.decoder_tokens, padding);
}

}  // namespace bev
