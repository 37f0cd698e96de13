#include "data/gpt_dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

// Whether all tokens are in [0, size): a negative token and a negative distance to the last one
// show in the sign, which is gathered in lanes that fit vector instructions.
bool all_within(std::span<const std::int32_t> tokens, std::int64_t size) {
  constexpr std::size_t kLanes = 16;
  auto last = static_cast<std::uint32_t>(size - 1);
  std::array<std::uint32_t, kLanes> signs{};
  auto gather = [&](std::size_t lane, std::int32_t token) {
    auto bits = static_cast<std::uint32_t>(token);
    signs[lane] |= bits | (last - bits);
  };
  std::size_t i = 0;
  for (; i + kLanes <= tokens.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) gather(lane, tokens[i + lane]);
  }
  for (; i < tokens.size(); ++i) gather(0, tokens[i]);
  return std::ranges::all_of(signs, [](std::uint32_t bits) { return bits >> 31 == 0; });
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const TokenSequences> sequences, GptIndex index,
                       const GptSampleConfig& config)
    : sequences_(std::move(sequences)), index_(std::move(index)), config_(config) {
  bool needs_eod = config.reset_position_ids || config.reset_attention_mask || config.eod_mask_loss;
  BEV_CHECK(config.eod_id >= 0 || !needs_eod, ErrorKind::kConfig,
            "--eod-id: is missing; resets and masks at ends of documents need the token");
  // Padding that looks like an end of document cannot be told from it.
  if (config_.pad_id == config_.eod_id) config_.pad_id = -1;
}

void GptDataset::read_piece(std::int64_t sequence, std::int64_t offset,
                            std::span<std::int32_t> piece) const {
  sequences_->read(sequence, offset, piece);
  if (config_.vocab_size == 0 || all_within(piece, config_.vocab_size)) return;
  auto bad = std::ranges::find_if(
      piece, [&](std::int32_t token) { return token < 0 || token >= config_.vocab_size; });
  BEV_FAIL(ErrorKind::kInput, sequences_->name(), ": token ", offset + (bad - piece.begin()),
           " of sequence ", sequence, " is ", *bad, ", outside of a vocabulary of ",
           config_.vocab_size);
}

// The index may come from a file: every number is checked before it is used.
// Returns whether it ends in padding.
bool GptDataset::read_text(std::int64_t index, std::span<std::int32_t> text) const {
  BEV_CHECK(index >= 0 && index < num_samples(), ErrorKind::kInternal, sequences_->name(),
            ": sample ", index, " of ", num_samples());
  std::int64_t sample = index_.shuffled(index);
  BEV_CHECK(sample >= 0 && sample < num_samples(), ErrorKind::kInput, sequences_->name(),
            ": the shuffle index has sample ", sample, " of ", num_samples());
  SampleStart at = index_.sample_start(sample), end = index_.sample_start(sample + 1);
  PackedArray<std::int32_t> lengths = sequences_->lengths();
  std::int64_t extra = config_.extra_token ? 1 : 0;
  std::size_t done = 0;
  for (; at.position <= end.position; ++at.position, at.offset = 0) {
    BEV_CHECK(at.position >= 0 && at.position < index_.num_documents(), ErrorKind::kInput,
              sequences_->name(), ": the sample index has document ", at.position, " of ",
              index_.num_documents());
    std::int64_t sequence = index_.document(at.position);
    BEV_CHECK(sequence >= 0 && sequence < static_cast<std::int64_t>(lengths.size()),
              ErrorKind::kInput, sequences_->name(), ": the document index has sequence ", sequence,
              " of ", lengths.size());
    std::int64_t stop = lengths[static_cast<std::size_t>(sequence)];
    if (at.position == end.position) stop = std::min(stop, end.offset + extra);
    std::int64_t count = stop - at.offset;
    BEV_CHECK(at.offset >= 0 && count >= 0 && done + static_cast<std::size_t>(count) <= text.size(),
              ErrorKind::kInput, sequences_->name(), ": the sample index gives sample ", sample,
              " tokens [", at.offset, ", ", stop, ") of sequence ", sequence);
    read_piece(sequence, at.offset, text.subspan(done, static_cast<std::size_t>(count)));
    done += static_cast<std::size_t>(count);
  }
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(done), text.end(), config_.pad_id);
  return done < text.size();
}

TokenSample GptDataset::read_sample(std::int64_t index,
                                    std::vector<std::int32_t>* positions) const {
  auto length = static_cast<std::size_t>(config_.seq_length);
  TokenSample out;
  out.tokens.resize(length + 1);
  out.tokens.back() = config_.pad_id;
  bool padded =
      read_text(index, std::span(out.tokens).first(length + (config_.extra_token ? 1 : 0)));
  out.targets.assign(out.tokens.begin() + 1, out.tokens.end());
  out.tokens.pop_back();
  out.weights.assign(length, 1.0f);
  if (config_.eod_mask_loss) {
    for (std::size_t t = 0; t < length; ++t) {
      if (out.tokens[t] == config_.eod_id) out.weights[t] = 0;
    }
  }
  std::size_t begin = 0;
  for (std::size_t t = 0; config_.reset_attention_mask && t + 1 < length; ++t) {
    if (out.tokens[t] != config_.eod_id) continue;
    out.documents.push_back(static_cast<std::int32_t>(t + 1 - begin));
    begin = t + 1;
  }
  out.documents.push_back(static_cast<std::int32_t>(length - begin));
  if (positions != nullptr) *positions = positions_of(out.tokens);
  // Otherwise there is none: tokens of a vocabulary are never -1.
  if (padded || !config_.extra_token || config_.pad_id >= 0 || config_.vocab_size == 0) {
    mask_padding(out);
  }
  return out;
}

std::vector<std::int32_t> GptDataset::positions_of(std::span<const std::int32_t> tokens) const {
  std::vector<std::int32_t> positions(tokens.size());
  std::int32_t next = 0;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    positions[t] = next++;
    if (config_.reset_position_ids && tokens[t] == config_.eod_id) next = 0;
  }
  return positions;
}

// Padding is out of the loss; its tokens become some that the embedding has.
void GptDataset::mask_padding(TokenSample& sample) const {
  for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
    sample.weights[t] = sample.targets[t] == config_.pad_id ? 0.0f : sample.weights[t];
    sample.tokens[t] = sample.tokens[t] == config_.pad_id ? 0 : sample.tokens[t];
    sample.targets[t] = sample.targets[t] == config_.pad_id ? 0 : sample.targets[t];
  }
}

TokenSample GptDataset::sample(std::int64_t index) const { return read_sample(index, nullptr); }

TokenSample GptDataset::sample(std::int64_t index, std::vector<std::int32_t>& positions) const {
  return read_sample(index, &positions);
}

}  // namespace bev
