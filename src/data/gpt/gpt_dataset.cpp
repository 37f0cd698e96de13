#include "data/gpt/gpt_dataset.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

// True if all tokens are in [0, size): a negative token and a negative distance to the last id both
// set the sign bit, which is OR-ed in lanes that vectorise.
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
  // Padding with the end-of-document id is indistinguishable from it.
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

// The index may come from a file, so every entry is checked before use. Returns the number of
// tokens before the padding.
std::size_t GptDataset::read_text(std::int64_t index, std::span<std::int32_t> text) const {
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
  return done;
}

TokenSample GptDataset::sample(std::int64_t index) const {
  constexpr std::uint64_t kSeeds = std::uint64_t{1} << 32;
  if (!config_.fim) return make_sample(index, nullptr);
  RandomState stream((config_.fim_seed + static_cast<std::uint64_t>(index)) % kSeeds);
  return make_sample(index, &stream);
}

TokenSample GptDataset::sample(std::int64_t index, RandomState& fim_stream) const {
  return make_sample(index, &fim_stream);
}

TokenSample GptDataset::make_sample(std::int64_t index, RandomState* fim_stream) const {
  auto length = static_cast<std::size_t>(config_.seq_length);
  TokenSample out;
  out.tokens.resize(length + 1);
  out.tokens.back() = config_.pad_id;
  auto text = std::span(out.tokens).first(length + (config_.extra_token ? 1 : 0));
  std::size_t count = read_text(index, text);
  bool padded = count < text.size();
  if (config_.fim) config_.fim->apply(text.first(count), *fim_stream);
  out.targets.assign(out.tokens.begin() + 1, out.tokens.end());
  out.tokens.pop_back();
  out.weights.assign(length, 1.0f);
  if (config_.eod_mask_loss) {
    for (std::size_t t = 0; t < length; ++t) {
      if (out.tokens[t] == config_.eod_id) out.weights[t] = 0;
    }
  }
  cut_documents(out);
  // Otherwise there is no padding: ids of a vocabulary are never -1.
  if (padded || !config_.extra_token || config_.pad_id >= 0 || config_.vocab_size == 0) {
    mask_padding(out);
  }
  return out;
}

// After every end-of-document token the attention, the position ids, both or neither restart.
// Explicit position ids are needed only if exactly one of them does.
void GptDataset::cut_documents(TokenSample& sample) const {
  auto length = static_cast<std::int32_t>(sample.tokens.size());
  std::vector<std::int32_t> lengths;
  std::int32_t begin = 0;
  for (std::int32_t t = 0;
       (config_.reset_attention_mask || config_.reset_position_ids) && t + 1 < length; ++t) {
    if (sample.tokens[static_cast<std::size_t>(t)] != config_.eod_id) continue;
    lengths.push_back(t + 1 - begin);
    begin = t + 1;
  }
  lengths.push_back(length - begin);
  if (config_.reset_attention_mask != config_.reset_position_ids) {
    sample.positions.resize(sample.tokens.size());
    auto at = sample.positions.begin();
    for (std::int32_t part : config_.reset_position_ids ? lengths : std::vector{length}) {
      std::iota(at, at + part, 0);
      at += part;
    }
  }
  sample.documents = config_.reset_attention_mask ? std::move(lengths) : std::vector{length};
}

// Excludes padding from the loss and replaces it by an id that the embedding has.
void GptDataset::mask_padding(TokenSample& sample) const {
  for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
    sample.weights[t] = sample.targets[t] == config_.pad_id ? 0.0f : sample.weights[t];
    sample.tokens[t] = sample.tokens[t] == config_.pad_id ? 0 : sample.tokens[t];
    sample.targets[t] = sample.targets[t] == config_.pad_id ? 0 : sample.targets[t];
  }
}

}  // namespace bev
