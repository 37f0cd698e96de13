#include "ops/sequence_layout.h"

#include <algorithm>

namespace bev {

SequenceLayout SequenceLayout::make(Context& ctx, std::span<const Sample> samples,
                                    std::int64_t first_sample) {
  SequenceLayout layout;
  for (const Sample& sample : samples) {
    for (std::int32_t length : sample.documents) layout.tokens += length;
  }
  layout.positions = ctx.allocate(Dtype::kI32, {layout.tokens}, "layout");
  layout.samples = ctx.allocate(Dtype::kI32, {layout.tokens}, "layout");
  layout.sample_positions = ctx.allocate(Dtype::kI32, {layout.tokens}, "layout");
  auto* position = layout.positions.as<std::int32_t>();
  auto* sample_index = layout.samples.as<std::int32_t>();
  auto* sample_position = layout.sample_positions.as<std::int32_t>();

  std::int32_t row = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    std::int32_t in_sample = 0;
    for (std::int32_t length : samples[s].documents) {
      layout.runs.push_back({row, length, row, length});
      layout.max_length = std::max<std::int64_t>(layout.max_length, length);
      for (std::int32_t i = 0; i < length; ++i, ++row) {
        position[row] = i;
        sample_index[row] = static_cast<std::int32_t>(first_sample + static_cast<std::int64_t>(s));
        sample_position[row] = in_sample++;
      }
    }
  }
  return layout;
}

Range token_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x) {
  if (x[Axis::kTp] != PlaceState::kShard0) return {0, layout.tokens};
  return shard_range(layout.tokens, ctx.mesh.tp().size(), ctx.mesh.tp().rank());
}

RandomRows random_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x,
                       RandomUse use) {
  std::int64_t first = token_rows(ctx, layout, x).begin;
  return {&ctx.step->random_key, layout.samples.as<std::int32_t>() + first,
          layout.sample_positions.as<std::int32_t>() + first, random_stream(ctx.layer, use)};
}

}  // namespace bev
