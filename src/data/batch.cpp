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

std::vector<std::int32_t> columns_of(const TokenSample& sample) {
  return sample.columns.empty() ? positions_of(sample) : sample.columns;
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

TokenSample masked_sample(std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> labels,
                          std::span<const std::int32_t> mask) {
  std::vector<std::int32_t> kept_labels(labels.begin(), labels.end());
  for (std::size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) kept_labels[t] = kIgnoredLabel;
  }
  TokenSample whole = labelled_sample(tokens, kept_labels), sample;
  for (std::size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) continue;
    sample.tokens.push_back(whole.tokens[t]);
    sample.targets.push_back(whole.targets[t]);
    sample.weights.push_back(whole.weights[t]);
    sample.positions.push_back(static_cast<std::int32_t>(t));
  }
  sample.documents = {static_cast<std::int32_t>(sample.tokens.size())};
  // If nothing is masked before the last token, the positions are the default ones.
  if (sample.positions.back() + 1 == sample.documents[0]) sample.positions.clear();
  return sample;
}

namespace {

// Sample shifted by `distance` tokens within each document, for one depth of multi-token
// prediction.
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

// Gathers the values of this rank's tokens; values(sample) has one per token of the sample.
template <class T, class Values>
std::vector<T> own_rows(const SequenceLayout& layout, const Values& values) {
  std::vector<T> rows(static_cast<std::size_t>(layout.tokens));
  for (const DocumentPiece& piece : layout.own.pieces()) {
    const std::vector<T>& from = values(static_cast<std::size_t>(piece.sample));
    std::copy_n(from.begin() + piece.sample_begin, piece.count, rows.begin() + piece.row);
  }
  return rows;
}

LossTargets upload_targets(Context& ctx, std::span<const TokenSample> samples,
                           const SequenceLayout& layout) {
  auto targets = own_rows<std::int32_t>(
      layout, [&](std::size_t sample) -> const auto& { return samples[sample].targets; });
  auto weights = own_rows<float>(
      layout, [&](std::size_t sample) -> const auto& { return samples[sample].weights; });
  return {ctx.upload<std::int32_t>(targets, "batch"), ctx.upload<float>(weights, "batch"),
          std::accumulate(weights.begin(), weights.end(), 0.0)};
}

Tensor upload_tokens(Context& ctx, std::span<const TokenSample> samples,
                     const SequenceLayout& layout) {
  return ctx.upload<std::int32_t>(
      own_rows<std::int32_t>(
          layout, [&](std::size_t sample) -> const auto& { return samples[sample].tokens; }),
      "batch");
}

// This rank's rows of the shifted samples.
MtpTokens mtp_tokens(Context& ctx, std::span<const TokenSample> samples,
                     const SequenceLayout& layout, std::int64_t distance, double weight) {
  std::vector<TokenSample> later;
  for (const TokenSample& sample : samples) later.push_back(shifted(sample, distance, weight));
  return {upload_tokens(ctx, later, layout), upload_targets(ctx, later, layout)};
}

std::int64_t length_of(const SampleField& field) {
  return std::visit([](const auto& values) { return std::ssize(values); }, field.values);
}

// Explicit position ids override those within documents. A sequence's length then covers the
// largest position; samples with packed documents keep their length.
void upload_positions(Context& ctx, std::span<const TokenSample> samples, SequenceLayout& layout) {
  bool given = std::ranges::any_of(
      samples, [](const TokenSample& sample) { return !sample.positions.empty(); });
  if (!given) return;
  std::vector<std::vector<std::int32_t>> all;
  for (const TokenSample& sample : samples) all.push_back(positions_of(sample));
  auto positions = own_rows<std::int32_t>(
      layout, [&](std::size_t sample) -> const auto& { return all[sample]; });
  ctx.kernels.device.upload(ctx.stream, positions.data(), layout.positions);
  for (std::size_t i = 0; i < layout.sequences.size(); ++i) {
    const DocumentPiece& piece = layout.own.pieces()[i];
    if (samples[static_cast<std::size_t>(piece.sample)].documents.size() > 1) continue;
    const std::vector<std::int32_t>& of_sample = all[static_cast<std::size_t>(piece.sample)];
    auto begin = of_sample.begin() + (piece.sample_begin - piece.begin);
    std::int64_t reach = *std::max_element(begin, begin + piece.length) + 1;
    layout.sequences[i].length = std::max(layout.sequences[i].length, reach);
    layout.max_length = std::max(layout.max_length, reach);
  }
}

// Uploads field number `index` of all samples; its id and type are those of `first`.
BatchField upload_field(Context& ctx, std::span<const TokenSample> samples, std::size_t index,
                        const SampleField& first, const SequenceLayout& layout,
                        std::int64_t first_sample) {
  BatchField out{first.id, first.rows, {}, {}};
  std::vector<SampleShape> shapes;
  for (const TokenSample& sample : samples) {
    const SampleField& field = sample.fields.at(index);
    std::int64_t count = length_of(field);
    std::int64_t wanted = first.rows == FieldRows::kSamples  ? 1
                          : first.rows == FieldRows::kTokens ? std::ssize(sample.tokens)
                                                             : count;
    bool alike = field.id == first.id && field.rows == first.rows &&
                 field.values.index() == first.values.index();
    BEV_CHECK(alike && count == wanted, ErrorKind::kInternal, "batch: field '", first.id.name,
              "' of a sample has ", count, " values of ", wanted, ", or another type or name (",
              field.id.name, ")");
    shapes.push_back({{static_cast<std::int32_t>(count)}});
  }
  if (first.rows == FieldRows::kOwn) out.layout = SequenceLayout::make(ctx, shapes, first_sample);
  std::visit(
      [&](const auto& typed) {
        using T = typename std::decay_t<decltype(typed)>::value_type;
        auto values = [&](std::size_t sample) -> const std::vector<T>& {
          return std::get<std::vector<T>>(samples[sample].fields[index].values);
        };
        std::vector<T> rows;
        if (first.rows == FieldRows::kSamples) {
          for (std::size_t i = 0; i < samples.size(); ++i) rows.push_back(values(i).front());
        } else {
          rows = own_rows<T>(first.rows == FieldRows::kOwn ? out.layout : layout, values);
        }
        out.tensor = ctx.upload<T>(rows, "batch");
      },
      first.values);
  return out;
}

// `like` has the fields of the batch, because a rank may have no samples at all.
MicroBatch make_batch_like(Context& ctx, std::span<const SampleField> like,
                           std::span<const TokenSample> samples, std::int64_t first_sample,
                           const MtpSpec& mtp) {
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
  batch.tokens = upload_tokens(ctx, samples, batch.layout);
  batch.targets = upload_targets(ctx, samples, batch.layout);
  upload_positions(ctx, samples, batch.layout);
  for (std::int64_t depth = 0; depth < mtp.depths; ++depth) {
    batch.mtp.push_back(mtp_tokens(ctx, samples, batch.layout, depth + 1, mtp.weight));
  }
  for (std::size_t i = 0; i < like.size(); ++i) {
    batch.fields.push_back(upload_field(ctx, samples, i, like[i], batch.layout, first_sample));
  }
  return batch;
}

}  // namespace

MicroBatch make_micro_batch(Context& ctx, std::span<const TokenSample> samples,
                            std::int64_t first_sample, const MtpSpec& mtp) {
  std::span<const SampleField> fields;
  if (!samples.empty()) fields = samples.front().fields;
  return make_batch_like(ctx, fields, samples, first_sample, mtp);
}

std::vector<MicroBatch> rank_micro_batches(Context& ctx, std::span<const TokenSample> global,
                                           std::int64_t micro_batch_size, const MtpSpec& mtp) {
  const MeshShape& shape = ctx.mesh.shape();
  auto total = static_cast<std::int64_t>(global.size());
  std::int64_t block = micro_batch_size * shape.dp;
  std::vector<MicroBatch> batches;
  for (std::int64_t begin = 0; begin < total; begin += block) {
    std::int64_t first = std::min(begin + ctx.mesh.at().dp * micro_batch_size, total);
    std::int64_t last = std::min(first + micro_batch_size, total);
    batches.push_back(make_batch_like(
        ctx, global.front().fields,
        global.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)),
        first, mtp));
  }
  return batches;
}

}  // namespace bev
