// Training, validation and test splits of blended datasets by Megatron's rules, for any kind of
// sample.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/gpt/blend.h"
#include "data/gpt/gpt_blend.h"
#include "data/gpt/split.h"

namespace bev {

// The part of its files that a split uses.
struct SplitPart {
  DataSplit split;
  std::string weights;  // weights of all splits: "969,30,1"

  // Half-open range of `total` sequences or documents.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t total) const;
};

struct SplitPlan {
  Blend blend;  // with normalized weights
  SplitPart part;
  bool plain = false;                // a single dataset without blending
  std::int64_t samples = 0;          // number of samples, or kOneEpoch
  std::vector<std::int64_t> wanted;  // samples per dataset, or kOneEpoch
};

// nullopt if the split is not needed, or has no data and no samples are requested. Throws Error
// naming the split if samples are requested that it cannot provide.
std::optional<SplitPlan> plan_split(const GptSources& sources, const SplitSizes& sizes,
                                    DataSplit split);

// Builds the blend; `sizes` are the sample counts of the datasets.
BlendIndex blend_datasets(const SplitPlan& plan, std::span<const std::int64_t> sizes,
                          const std::string& cache_folder);

// How many samples the blend takes from each dataset.
std::vector<std::int64_t> blend_counts(const BlendIndex& blend, std::size_t datasets);

// Throws Error(kInput) if the blend takes more samples from a dataset than it has.
template <class Member>
void check_blend(const BlendIndex& blend, std::span<const std::shared_ptr<const Member>> members) {
  std::vector<std::int64_t> used = blend_counts(blend, members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    BEV_CHECK(used[i] <= members[i]->num_samples(), ErrorKind::kInput, members[i]->name(),
              ": the blend takes ", used[i], " samples of the ", members[i]->num_samples(),
              " that are ready; change the weights or the number of samples a little");
  }
}

// Opens the three splits; null if not needed. library.member(prefix, part, samples) opens a
// dataset, library.why_empty(dataset) explains why it has no samples. Blended is constructed from
// one dataset, or from several and a BlendIndex.
template <class Blended, class Library>
std::array<std::shared_ptr<const Blended>, 3> open_blended_splits(const GptSources& sources,
                                                                  const SplitSizes& sizes,
                                                                  const std::string& cache_folder,
                                                                  Library& library) {
  std::array<std::shared_ptr<const Blended>, 3> out;
  for (std::size_t split = 0; split < out.size(); ++split) {
    std::optional<SplitPlan> plan = plan_split(sources, sizes, static_cast<DataSplit>(split));
    if (!plan) continue;
    const std::vector<std::string>& prefixes = plan->blend.prefixes;
    if (plan->plain) {
      out[split] =
          std::make_shared<Blended>(library.member(prefixes[0], plan->part, plan->samples));
      continue;
    }
    std::vector<decltype(library.member(prefixes[0], plan->part, plan->samples))> members;
    std::vector<std::int64_t> member_sizes;
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
      members.push_back(library.member(prefixes[i], plan->part, plan->wanted[i]));
      member_sizes.push_back(members[i]->num_samples());
      BEV_CHECK(member_sizes[i] > 0 || !plan->blend.weights.empty(), ErrorKind::kInput,
                members[i]->name(), ": ", library.why_empty(*members[i]),
                ", so it has no weight in the blend; leave it out");
    }
    out[split] = std::make_shared<Blended>(std::move(members),
                                           blend_datasets(*plan, member_sizes, cache_folder));
  }
  return out;
}

}  // namespace bev
