#include "parallel/bucket_layout.h"

#include <algorithm>
#include <numeric>

namespace bev {

std::string_view unit_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  std::size_t layers = name.find(kLayers);
  if (layers != std::string_view::npos) {
    return name.substr(0, name.find('.', layers + kLayers.size()));
  }
  return name.substr(0, name.rfind('.'));
}

BucketItem bucket_item(const Param& param, const ParamPart& part) {
  // The first ranks have the larger parts.
  ParamPart most = part;
  most.index = most.expert_index = 0;
  return {unit_of(param.name), param.split.local_shape(param.shape, part).numel(), param.shared,
          param.split.local_shape(param.shape, most).numel(), param.split.of_experts()};
}

std::int64_t padded_start(std::int64_t offset) { return (offset + 63) / 64 * 64; }

BucketLayout layout_buckets(std::span<const BucketItem> items, const BucketRules& rules) {
  BucketLayout layout;
  std::vector<BucketLayout::Bucket>& buckets = layout.buckets;
  auto close = [&](BucketLayout::Bucket& bucket) {
    std::int64_t ranks = bucket.of_experts ? rules.expert_ranks : rules.ranks;
    std::int64_t multiple = std::lcm<std::int64_t>(ranks * rules.part_multiple, 128);
    bucket.size = (bucket.size + multiple - 1) / multiple * multiple;
    layout.total = bucket.begin + bucket.size;
  };
  std::int64_t filled = 0;  // of the last bucket, on the rank that has most
  auto joins = [&](const BucketItem& item, const BucketItem& previous) {
    if (item.alone || previous.alone || item.of_experts != previous.of_experts) return false;
    return rules.by_unit ? item.unit == previous.unit : filled < rules.elements;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || !joins(items[i], items[i - 1])) {
      if (i > 0) close(buckets.back());
      buckets.push_back({layout.total, 0, {}, items[i].of_experts});
      filled = 0;
    }
    BucketLayout::Bucket& bucket = buckets.back();
    std::int64_t offset = padded_start(bucket.size);
    layout.places.push_back({static_cast<int>(buckets.size()) - 1, offset});
    bucket.params.push_back(static_cast<int>(i));
    bucket.size = offset + items[i].elements;
    filled = padded_start(filled) + std::max(items[i].elements, items[i].most_elements);
  }
  if (!buckets.empty()) close(buckets.back());
  return layout;
}

Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts,
                        std::int64_t index) {
  std::int64_t part = bucket.size / parts;
  return {part * index, part * (index + 1)};
}

Range owned_range(const BucketLayout::Place& place, std::int64_t elements, Range part) {
  auto within = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at - place.offset, 0, elements);
  };
  return {within(part.begin), within(part.end)};
}

}  // namespace bev
