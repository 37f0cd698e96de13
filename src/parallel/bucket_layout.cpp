#include "parallel/bucket_layout.h"

#include <numeric>

namespace bev {

std::int64_t padded_start(std::int64_t offset) { return (offset + 63) / 64 * 64; }

BucketLayout layout_buckets(std::span<const std::int64_t> sizes, const BucketRules& rules) {
  BucketLayout layout;
  std::int64_t multiple = std::lcm<std::int64_t>(rules.parts, 128);
  auto close = [&](BucketLayout::Bucket& bucket) {
    bucket.size = (bucket.size + multiple - 1) / multiple * multiple;
    layout.total = bucket.begin + bucket.size;
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<BucketLayout::Bucket>& buckets = layout.buckets;
    if (buckets.empty() || rules.one_param || buckets.back().size >= rules.elements) {
      if (!buckets.empty()) close(buckets.back());
      buckets.push_back({layout.total, 0, {}});
    }
    BucketLayout::Bucket& bucket = buckets.back();
    std::int64_t offset = padded_start(bucket.size);
    layout.places.push_back({static_cast<int>(buckets.size()) - 1, offset});
    bucket.params.push_back(static_cast<int>(i));
    bucket.size = offset + sizes[i];
  }
  if (!layout.buckets.empty()) close(layout.buckets.back());
  return layout;
}

Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts,
                        std::int64_t index) {
  std::int64_t part = bucket.size / parts;
  return {part * index, part * (index + 1)};
}

}  // namespace bev
