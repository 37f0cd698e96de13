#include "ops/sequence_layout.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace bev {

namespace {

// Uploads [tokens] i32 with value(piece, i) for token i of each piece.
template <class Value>
Tensor piece_values(Context& ctx, const TokenSet& set, const Value& value) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(set.tokens()));
  for (const DocumentPiece& piece : set.pieces()) {
    for (std::int32_t i = 0; i < piece.count; ++i) {
      values[static_cast<std::size_t>(piece.row + i)] = value(piece, i);
    }
  }
  return ctx.upload<std::int32_t>(values, "batch");
}

Tensor sample_indices(Context& ctx, const TokenSet& set, std::int64_t first_sample) {
  return piece_values(ctx, set, [&](const DocumentPiece& piece, std::int32_t) {
    return static_cast<std::int32_t>(first_sample + piece.sample);
  });
}
Tensor sample_positions_of(Context& ctx, const TokenSet& set) {
  return piece_values(
      ctx, set, [](const DocumentPiece& piece, std::int32_t i) { return piece.sample_begin + i; });
}

Tensor first_rows_of(Context& ctx, const TokenSet& set, std::size_t samples) {
  std::vector<std::int32_t> rows(samples, -1);
  for (const DocumentPiece& piece : set.pieces()) {
    if (piece.sample_begin == 0) rows[static_cast<std::size_t>(piece.sample)] = piece.row;
  }
  return ctx.upload<std::int32_t>(rows, "batch");
}

ContextRows context_rows(Context& ctx, std::span<const SampleShape> samples,
                         std::int64_t first_sample, std::int64_t inner) {
  std::int64_t cp = ctx.mesh.shape().cp;
  ContextRows rows;
  for (std::int64_t rank = 0; rank < cp; rank += inner) {
    rows.sets.emplace_back(samples, cp, rank, rank + inner);
  }
  const TokenSet& mine = rows.sets[static_cast<std::size_t>(ctx.mesh.at().cp / inner)];
  rows.samples = sample_indices(ctx, mine, first_sample);
  rows.sample_positions = sample_positions_of(ctx, mine);
  return rows;
}

// T of each rank that shares experts. Ranks of one tp group have the same tokens; others exchange
// counts.
std::vector<std::int64_t> expert_token_counts(const Context& ctx, std::int64_t tokens) {
  const MeshShape& shape = ctx.mesh.shape();
  Group& group = ctx.mesh.group(MeshGroup::kExperts);
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()), tokens);
  if (shape.ep == 1 && shape.etp == shape.tp) return all;
  View out{all.data(), Dtype::kI64, {group.size()}};
  group.host().all_gather({&tokens, Dtype::kI64, {1}}, out, "tokens").wait();
  return all;
}

}  // namespace

SequenceLayout SequenceLayout::make(Context& ctx, std::span<const SampleShape> samples,
                                    std::int64_t first_sample) {
  std::int64_t cp = ctx.mesh.shape().cp;
  SequenceLayout layout;
  layout.own = TokenSet(samples, cp, ctx.mesh.at().cp, ctx.mesh.at().cp + 1);
  const TokenSet& mine = layout.own;
  layout.tokens = mine.tokens();
  for (const SampleShape& sample : samples) {
    for (std::int32_t length : sample.documents) {
      layout.max_length = std::max<std::int64_t>(layout.max_length, length);
    }
  }
  for (const DocumentPiece& piece : mine.pieces()) {
    layout.sequences.push_back({piece.row, piece.row + piece.count, piece.length});
  }
  layout.positions = piece_values(
      ctx, mine, [](const DocumentPiece& piece, std::int32_t i) { return piece.begin + i; });
  layout.samples = sample_indices(ctx, mine, first_sample);
  layout.sample_positions = sample_positions_of(ctx, mine);
  layout.batch_samples = sample_indices(ctx, mine, 0);
  layout.sample_count = static_cast<std::int64_t>(samples.size());
  layout.first_rows = first_rows_of(ctx, mine, samples.size());
  if (cp > 1) {
    layout.ring = context_rows(ctx, samples, first_sample, 1);
    layout.heads = context_rows(ctx, samples, first_sample, cp);
  }
  for (const DocumentPiece& piece : (cp > 1 ? layout.all_tokens() : mine).pieces()) {
    layout.runs.push_back({piece.row, piece.count, piece.row, piece.count});
  }
  layout.expert_tokens = expert_token_counts(ctx, layout.tokens);
  std::int64_t inner = ctx.mesh.shape().cp_inner;
  if (inner > 1 && inner < cp) layout.mixed = context_rows(ctx, samples, first_sample, inner);
  return layout;
}

namespace {
// Calls copy(row grouped by set, row in sample order, count) for every contiguous range.
template <class Copy>
void for_row_copies(std::span<const TokenSet> sets, const TokenSet& together, const Copy& copy) {
  std::int64_t first = 0;
  for (const TokenSet& set : sets) {
    for (const RowCopy& rows : row_copies(set, together)) {
      copy(first + rows.from, rows.to, rows.count);
    }
    first += set.tokens();
  }
}

void copy_rows(Context& ctx, const View& from, std::int64_t from_row, const View& to,
               std::int64_t to_row, std::int64_t count) {
  std::int64_t width = from.shape[1];
  ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from.address(from_row * width),
                                                 .dst = to.address(to_row * width),
                                                 .dtype = from.dtype,
                                                 .rows = count,
                                                 .columns = width,
                                                 .src_stride = width,
                                                 .dst_stride = width});
}
}  // namespace

void copy_into_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                     const Tensor& apart, const Tensor& ordered) {
  for_row_copies(sets, together, [&](std::int64_t row, std::int64_t to, std::int64_t count) {
    copy_rows(ctx, apart, row, ordered, to, count);
  });
}

void copy_out_of_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                       const Tensor& ordered, const Tensor& apart) {
  for_row_copies(sets, together, [&](std::int64_t row, std::int64_t from, std::int64_t count) {
    copy_rows(ctx, ordered, from, apart, row, count);
  });
}

Placement batch_placement() {
  return Placement().with(Axis::kDp, PlaceState::kShard0).with(Axis::kCp, PlaceState::kShard0);
}

Range token_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x) {
  if (x[Axis::kTp] != PlaceState::kShard0) return {0, layout.tokens};
  return shard_range(layout.tokens, ctx.mesh.tp().size(), ctx.mesh.tp().rank());
}

Tensor gather_micro_batch(Context& ctx, const Tensor& x, const Placement& placement,
                          const SequenceLayout& layout, const char* label) {
  Tensor rows = x;
  auto gather = [&](Group& group, std::int64_t tokens) {
    if (group.size() == 1) return;
    Tensor all = ctx.allocate(rows.dtype(), {tokens, rows.shape()[1]}, "router");
    group.all_gather(rows, all, label).wait();
    rows = std::move(all);
  };
  if (placement[Axis::kTp] == PlaceState::kShard0) gather(ctx.mesh.tp(), layout.tokens);
  if (ctx.mesh.cp().size() > 1) gather(ctx.mesh.cp(), layout.all_tokens().tokens());
  return rows;
}

RandomRows random_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x,
                       RandomUse use, std::int64_t head) {
  std::int64_t first = token_rows(ctx, layout, x).begin;
  return {&ctx.step->random_key, layout.samples.as<std::int32_t>() + first,
          layout.sample_positions.as<std::int32_t>() + first, random_stream(ctx.layer, use, head)};
}

}  // namespace bev
