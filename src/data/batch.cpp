#include "data/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/device.h"

namespace bev {

std::vector<std::int32_t> positions_of(const TokenSample& sample) {
  if (!sample.positions.empty()) return sample.positions;
  std::vector<std::int32_t> positions(sample.tokens.size());
  auto at = positions.begin();
  for (std::int32_t length : sample.documents) {
    std::iota(at, at + length, 0);
    at += length;
  }
  return positions;
}

TokenSample window_sample(std::span<const std::int32_t> tokens) {
  BEV_CHECK(tokens.size() >= 2, ErrorKind::kInput, "a sample needs at least 2 tokens, got ",
            tokens.size());
  TokenSample sample;
  sample.tokens.assign(tokens.begin(), tokens.end() - 1);
  sample.targets.assign(tokens.begin() + 1, tokens.end());
  sample.weights.assign(sample.tokens.size(), 1.0f);
  sample.documents = {static_cast<std::int32_t>(sample.tokens.size())};
  return sample;
}

TokenSample labelled_sample(std::span<const std::int32_t> tokens,
                            std::span<const std::int32_t> labels) {
  BEV_CHECK(tokens.size() == labels.size(), ErrorKind::kInput, "a row of ", tokens.size(),
            " tokens has ", labels.size(), " labels");
  TokenSample sample;
  sample.tokens.assign(tokens.begin(), tokens.end());
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::int32_t label = t + 1 < labels.size() ? labels[t + 1] : -1;
    sample.targets.push_back(label < 0 ? -1 : label);
    sample.weights.push_back(label < 0 ? 0.0f : 1.0f);
  }
  sample.documents = {static_cast<std::int32_t>(tokens.size())};
  return sample;
}

FutureSpec future_spec(const ModelConfig& model) {
  if (model.mtp_num_layers == 0) return {};
  return {model.mtp_num_layers,
          model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers)};
}

namespace {

// A sample as a depth of multi-token prediction sees it: everything `distance` tokens earlier.
TokenSample shifted(const TokenSample& sample, std::int64_t distance, double weight) {
  TokenSample out;
  out.tokens.assign(sample.tokens.size(), 0);
  out.targets.assign(sample.tokens.size(), -1);
  out.weights.assign(sample.tokens.size(), 0.0f);
  std::int64_t begin = 0;
  for (std::int32_t length : sample.documents) {
    for (std::int64_t i = begin; i + distance < begin + length; ++i) {
      auto to = static_cast<std::size_t>(i), from = static_cast<std::size_t>(i + distance);
      out.tokens[to] = sample.tokens[from];
      out.targets[to] = sample.targets[from];
      out.weights[to] = static_cast<float>(weight * sample.weights[from]);
    }
    begin += length;
  }
  return out;
}

// This rank's rows of the shifted samples.
FutureTokens future_tokens(Context& ctx, std::span<const TokenSample> samples,
                           const SequenceLayout& layout, std::int64_t distance, double weight) {
  auto rows = static_cast<std::size_t>(layout.tokens);
  std::vector<std::int32_t> tokens(rows), targets(rows);
  std::vector<float> weights(rows);
  std::vector<TokenSample> later;
  for (const TokenSample& sample : samples) later.push_back(shifted(sample, distance, weight));
  for (const DocumentPiece& piece : layout.own.pieces()) {
    const TokenSample& sample = later[static_cast<std::size_t>(piece.sample)];
    auto copy = [&](const auto& from, auto& to) {
      std::copy_n(from.begin() + piece.sample_begin, piece.count, to.begin() + piece.row);
    };
    copy(sample.tokens, tokens);
    copy(sample.targets, targets);
    copy(sample.weights, weights);
  }
  FutureTokens out;
  out.tokens = ctx.upload<std::int32_t>(tokens, "batch");
  out.targets.targets = ctx.upload<std::int32_t>(targets, "batch");
  out.targets.weights = ctx.upload<float>(weights, "batch");
  out.targets.weight_sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  return out;
}

}  // namespace

MicroBatch make_micro_batch(Context& ctx, std::span<const TokenSample> samples,
                            std::int64_t first_sample, const FutureSpec& future) {
  std::vector<SampleShape> shapes;
  for (const TokenSample& sample : samples) {
    shapes.push_back({sample.documents});
    auto tokens =
        std::accumulate(sample.documents.begin(), sample.documents.end(), std::int64_t{0});
    BEV_CHECK(tokens == static_cast<std::int64_t>(sample.tokens.size()), ErrorKind::kInternal,
              "batch: documents add up to ", tokens, " tokens of ", sample.tokens.size());
  }
  MicroBatch batch;
  batch.layout = SequenceLayout::make(ctx, shapes, first_sample);
  std::int64_t tokens = batch.layout.tokens;
  auto rows = static_cast<std::size_t>(tokens);
  std::vector<std::int32_t> own_tokens(rows), targets(rows), positions(rows);
  bool own_positions = false;
  std::vector<float> weights(rows);
  for (const DocumentPiece& piece : batch.layout.own.pieces()) {
    const TokenSample& sample = samples[static_cast<std::size_t>(piece.sample)];
    auto copy = [&](const auto& from, auto& to) {
      std::copy_n(from.begin() + piece.sample_begin, piece.count, to.begin() + piece.row);
    };
    copy(sample.tokens, own_tokens);
    copy(sample.targets, targets);
    copy(sample.weights, weights);
    if (sample.positions.empty()) {
      auto at = positions.begin() + piece.row;
      std::iota(at, at + piece.count, piece.begin);
    } else {
      copy(sample.positions, positions);
      own_positions = true;
    }
  }
  batch.tokens = ctx.upload<std::int32_t>(own_tokens, "batch");
  batch.targets.targets = ctx.upload<std::int32_t>(targets, "batch");
  batch.targets.weights = ctx.upload<float>(weights, "batch");
  if (own_positions) {
    ctx.kernels.device.upload(ctx.stream, positions.data(), batch.layout.positions);
  }
  batch.targets.weight_sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::int64_t depth = 0; depth < future.depths; ++depth) {
    batch.future.push_back(future_tokens(ctx, samples, batch.layout, depth + 1, future.weight));
  }
  return batch;
}

std::vector<MicroBatch> rank_micro_batches(Context& ctx, std::span<const TokenSample> global,
                                           std::int64_t micro_batch_size,
                                           const FutureSpec& future) {
  const MeshShape& shape = ctx.mesh.shape();
  auto total = static_cast<std::int64_t>(global.size());
  std::int64_t block = micro_batch_size * shape.dp;
  std::vector<MicroBatch> batches;
  for (std::int64_t begin = 0; begin < total; begin += block) {
    std::int64_t first = std::min(begin + ctx.mesh.at().dp * micro_batch_size, total);
    std::int64_t last = std::min(first + micro_batch_size, total);
    batches.push_back(make_micro_batch(
        ctx,
        global.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)),
        first, future));
  }
  return batches;
}

}  // namespace bev
