// How training, validation and test data are put together from token files by Megatron's rules,
// whatever their samples are.
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
#include "data/blend.h"
#include "data/gpt_blend.h"
#include "data/split.h"

namespace bev {

// The share of its files that a split has.
struct SplitPart {
  DataSplit split;
  std::string weights;  // of all splits: "969,30,1"

  // First and end of `total` sequences or documents.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t total) const;
};

struct SplitPlan {
  Blend blend;  // its weights normalized
  SplitPart part;
  bool plain = false;                // a single dataset as it is
  std::int64_t samples = 0;          // or kOneEpoch
  std::vector<std::int64_t> wanted;  // of each dataset, or kOneEpoch
};

// Nothing where the split is not needed, or has no data and is asked for no samples. Error naming
// the split when it is asked for samples that it cannot have.
std::optional<SplitPlan> plan_split(const GptSources& sources, const SplitSizes& sizes,
                                    DataSplit split);

// Which dataset gives which sample; `sizes` are the samples that the datasets have.
BlendIndex blend_datasets(const SplitPlan& plan, std::span<const std::int64_t> sizes,
                          const std::string& cache_folder);

// How often the blend takes each of so many datasets.
std::vector<std::int64_t> blend_counts(const BlendIndex& blend, std::size_t datasets);

// Error(kInput) when the blend asks a dataset for more samples than it has.
template <class Member>
void check_blend(const BlendIndex& blend, std::span<const std::shared_ptr<const Member>> members) {
  std::vector<std::int64_t> used = blend_counts(blend, members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    BEV_CHECK(used[i] <= members[i]->num_samples(), ErrorKind::kInput, members[i]->name(),
              ": the blend takes ", used[i], " samples of the ", members[i]->num_samples(),
              " that are ready; change the weights or the number of samples a little");
  }
}

// library.member(prefix, part, samples) opens a dataset, library.why_empty(dataset) says why it has
// no samples. Blended is made of one dataset, or of several and the order of their samples.
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
