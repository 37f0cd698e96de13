#include "parallel/bucket_layout.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"

namespace bev {

std::string_view unit_of(const Param& param) {
  std::string_view name = param.name;
  return !param.unit.empty() ? param.unit : name.substr(0, name.rfind('.'));
}

BucketItem bucket_item(const Param& param, const ParamPart& part) {
  // The first ranks have the larger parts.
  ParamPart most = part;
  most.index = most.expert_index = 0;
  return {unit_of(param),
          param.split.local_shape(param.shape, part).numel(),
          param.shared,
          param.split.local_shape(param.shape, most).numel(),
          param.split.of_experts(),
          param.wide};
}

std::int64_t padded_start(std::int64_t offset) { return round_up(offset, 64); }

BucketLayout layout_buckets(std::span<const BucketItem> items, const BucketRules& rules) {
  BucketLayout layout;
  std::vector<BucketLayout::Bucket>& buckets = layout.buckets;
  auto close = [&](BucketLayout::Bucket& bucket) {
    std::int64_t ranks = bucket.of_experts ? rules.expert_ranks : rules.ranks;
    std::int64_t multiple = std::lcm<std::int64_t>(ranks * rules.part_multiple, 128);
    bucket.size = round_up(bucket.size, multiple);
  };
  std::int64_t filled = 0;  // of the last bucket, on the rank that has most
  auto joins = [&](const BucketItem& item, const BucketItem& previous) {
    bool alike = item.of_experts == previous.of_experts && item.wide == previous.wide;
    if (item.alone || previous.alone || !alike) return false;
    return rules.by_unit ? item.unit == previous.unit : filled < rules.elements;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i == 0 || !joins(items[i], items[i - 1])) {
      if (i > 0) close(buckets.back());
      buckets.push_back({0, {}, items[i].of_experts, items[i].wide});
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

Dtype bucket_dtype(const BucketLayout::Bucket& bucket, Dtype dtype) {
  return bucket.wide ? wide_of(dtype) : dtype;
}

std::vector<std::int64_t> bucket_begins(const BucketLayout& layout, Dtype dtype,
                                        const BucketParts& parts) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::int64_t> begins = {0};
  for (const BucketLayout::Bucket& bucket : layout.buckets) {
    auto item = static_cast<std::int64_t>(size_of(bucket_dtype(bucket, dtype)));
    std::int64_t end = begins.back() + bucket.size / parts.of(bucket) * item;
    begins.push_back(round_up(end, kAlignment));
  }
  return begins;
}

Range owned_range(const BucketLayout::Place& place, std::int64_t elements, Range part) {
  auto within = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at - place.offset, 0, elements);
  };
  return {within(part.begin), within(part.end)};
}

}  // namespace bev
