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

Tensor batch_samples_of(Context& ctx, const TokenSet& set) {
  return piece_values(ctx, set,
                      [](const DocumentPiece& piece, std::int32_t) { return piece.sample; });
}
Tensor sample_indices(Context& ctx, const TokenSet& set, std::span<const SampleOrigin> origins) {
  return piece_values(ctx, set, [&](const DocumentPiece& piece, std::int32_t) {
    return static_cast<std::int32_t>(origins[static_cast<std::size_t>(piece.sample)].sample);
  });
}
Tensor sample_positions_of(Context& ctx, const TokenSet& set,
                           std::span<const SampleOrigin> origins) {
  return piece_values(ctx, set, [&](const DocumentPiece& piece, std::int32_t i) {
    const std::int64_t begin = origins[static_cast<std::size_t>(piece.sample)].begin;
    return static_cast<std::int32_t>(begin) + piece.sample_begin + i;
  });
}

Tensor first_rows_of(Context& ctx, const TokenSet& set, std::size_t samples) {
  std::vector<std::int32_t> rows(samples, -1);
  for (const DocumentPiece& piece : set.pieces()) {
    if (piece.sample_begin == 0) rows[static_cast<std::size_t>(piece.sample)] = piece.row;
  }
  return ctx.upload<std::int32_t>(rows, "batch");
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

// The ranks that share the samples of a micro-batch, of which this is number `rank`.
struct SequenceLayout::Sharing {
  std::int64_t ranks = 1, rank = 0;
  std::int64_t inner = 1;  // neighbours that exchange heads
  int block_power = -1;

  ContextRows rows(Context& ctx, std::span<const SampleShape> samples,
                   std::span<const SampleOrigin> origins, std::int64_t together) const {
    ContextRows out;
    for (std::int64_t first = 0; first < ranks; first += together) {
      out.sets.emplace_back(samples, ranks, first, first + together);
    }
    const TokenSet& mine = out.sets[static_cast<std::size_t>(rank / together)];
    out.samples = sample_indices(ctx, mine, origins);
    out.sample_positions = sample_positions_of(ctx, mine, origins);
    return out;
  }
};

SequenceLayout SequenceLayout::make(Context& ctx, std::span<const SampleShape> samples,
                                    std::int64_t first_sample) {
  std::vector<SampleOrigin> origins;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    origins.push_back({first_sample + static_cast<std::int64_t>(i), 0});
  }
  const MeshShape& mesh = ctx.mesh.shape();
  return make(ctx, samples, origins,
              {.ranks = mesh.cp, .rank = ctx.mesh.at().cp, .inner = mesh.cp_inner});
}

SequenceLayout SequenceLayout::make_shared(Context& ctx, std::span<const SampleShape> samples,
                                           std::span<const SampleOrigin> origins, int power) {
  const Group& block = ctx.mesh.sequence_block(power);
  return make(ctx, samples, origins,
              {.ranks = block.size(), .rank = block.rank(), .block_power = power});
}

SequenceLayout SequenceLayout::make(Context& ctx, std::span<const SampleShape> samples,
                                    std::span<const SampleOrigin> origins, const Sharing& sharing) {
  const std::int64_t ranks = sharing.ranks;
  SequenceLayout layout;
  layout.block_power = sharing.block_power;
  layout.own = TokenSet(samples, ranks, sharing.rank, sharing.rank + 1);
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
  layout.samples = sample_indices(ctx, mine, origins);
  layout.sample_positions = sample_positions_of(ctx, mine, origins);
  layout.batch_samples = batch_samples_of(ctx, mine);
  layout.sample_count = static_cast<std::int64_t>(samples.size());
  layout.first_rows = first_rows_of(ctx, mine, samples.size());
  if (ranks > 1) {
    layout.ring = sharing.rows(ctx, samples, origins, 1);
    layout.heads = sharing.rows(ctx, samples, origins, ranks);
  }
  for (const DocumentPiece& piece : (ranks > 1 ? layout.all_tokens() : mine).pieces()) {
    layout.runs.push_back({piece.row, piece.count, piece.row, piece.count});
  }
  layout.expert_tokens = expert_token_counts(ctx, layout.tokens);
  const std::int64_t inner = sharing.inner;
  if (inner > 1 && inner < ranks) layout.mixed = sharing.rows(ctx, samples, origins, inner);
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
