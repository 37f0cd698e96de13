#include "parallel/store/bucket_layout.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"
#include "parallel/store/nf4_weights.h"

namespace bev {

std::string_view unit_of(const Param& param) {
  std::string_view name = param.name;
  return !param.unit.empty() ? param.unit : name.substr(0, name.rfind('.'));
}

BucketItem bucket_item(const Param& param, const ParamPart& part) {
  // The first ranks have the larger parts of a dimension that does not divide evenly.
  ParamPart most = part;
  most.index = most.expert_index = 0;
  auto elements = [&](const ParamPart& of) {
    if (param.format == ParamFormat::kNf4) return nf4_layout(param, of).bytes();
    return param.split.local_shape(param.shape, of).numel();
  };
  return {unit_of(param),           elements(part), param.shared, param.trains ? elements(most) : 0,
          param.split.of_experts(), param.format,   param.trains};
}

std::int64_t padded_start(std::int64_t offset) { return round_up(offset, 64); }

namespace {

// Fills buckets with parameters in the order in which the forward uses them.
class BucketBuilder {
 public:
  BucketBuilder(std::span<const BucketItem> items, const BucketRules& rules)
      : items_(items), rules_(rules) {}

  BucketLayout build() {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (i == 0 || !joins(items_[i], items_[i - 1])) begin_group();
      add(i);
    }
    close_group();
    return std::move(layout_);
  }

 private:
  // Only trained elements close a bucket: frozen ones are neither reduced nor gathered after
  // updates.
  bool joins(const BucketItem& item, const BucketItem& previous) const {
    auto wide = [](const BucketItem& of) { return of.format == ParamFormat::kF32; };
    bool alike = item.of_experts == previous.of_experts && wide(item) == wide(previous);
    if (item.alone || previous.alone || !alike) return false;
    return rules_.by_unit ? item.unit == previous.unit : filled_ < rules_.elements;
  }

  void begin_group() {
    close_group();
    layout_.groups.emplace_back();
    filled_ = 0;
  }

  void close_group() {
    if (layout_.groups.empty()) return;
    for (int index : layout_.groups.back()) {
      BucketLayout::Bucket& bucket = layout_.buckets[static_cast<std::size_t>(index)];
      std::int64_t ranks = bucket.of_experts ? rules_.expert_ranks : rules_.ranks;
      std::int64_t multiple = std::lcm<std::int64_t>(ranks * rules_.part_multiple, 128);
      bucket.size = round_up(bucket.size, multiple);
    }
  }

  // The bucket of the last group for such parameters; creates it if needed.
  int bucket_for(const BucketItem& item) {
    std::vector<int>& group = layout_.groups.back();
    for (int index : group) {
      const BucketLayout::Bucket& bucket = layout_.buckets[static_cast<std::size_t>(index)];
      if (bucket.trains == item.trains && bucket.format == item.format) return index;
    }
    group.push_back(static_cast<int>(layout_.buckets.size()));
    layout_.buckets.push_back({.of_experts = item.of_experts,
                               .format = item.format,
                               .trains = item.trains,
                               .group = static_cast<int>(layout_.groups.size()) - 1});
    return group.back();
  }

  void add(std::size_t place) {
    const BucketItem& item = items_[place];
    int index = bucket_for(item);
    BucketLayout::Bucket& bucket = layout_.buckets[static_cast<std::size_t>(index)];
    std::int64_t offset = padded_start(bucket.size);
    layout_.places.push_back({index, offset});
    bucket.params.push_back(static_cast<int>(place));
    bucket.size = offset + item.elements;
    if (item.trains) filled_ = padded_start(filled_) + std::max(item.elements, item.most_elements);
  }

  std::span<const BucketItem> items_;
  const BucketRules& rules_;
  std::int64_t filled_ = 0;  // trained elements of the last group, on the rank with most
  BucketLayout layout_;
};

}  // namespace

BucketLayout layout_buckets(std::span<const BucketItem> items, const BucketRules& rules) {
  return BucketBuilder(items, rules).build();
}

Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts,
                        std::int64_t index) {
  std::int64_t part = bucket.size / parts;
  return {part * index, part * (index + 1)};
}

std::vector<std::int64_t> bucket_begins(const BucketLayout& layout, Dtype dtype,
                                        const BucketParts& parts, BucketChoice choice) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::int64_t> begins = {0};
  for (const BucketLayout::Bucket& bucket : layout.buckets) {
    bool chosen = choice == BucketChoice::kAll || bucket.trains;
    auto item = static_cast<std::int64_t>(size_of(stored_dtype(bucket.format, dtype)));
    std::int64_t end = begins.back() + (chosen ? bucket.size / parts.of(bucket) * item : 0);
    begins.push_back(round_up(end, kAlignment));
  }
  return begins;
}

Range owned_range(const BucketLayout::ParamSlot& place, std::int64_t elements, Range part) {
  auto within = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at - place.offset, 0, elements);
  };
  return {within(part.begin), within(part.end)};
}

}  // namespace bev
