#include "data/gpt/epoch_samples.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "base/error.h"
#include "data/gpt/blended_splits.h"
#include "data/gpt/gpt_epochs.h"
#include "data/indexed/indexed_dataset.h"

namespace bev {

std::int64_t EpochSamples::after(double epochs) const {
  // The last token of a stream is a target only, so a pass without remainder ends a sample early.
  double tolerance = members.size() == 1 ? 1e-9 : -1e-9;
  return static_cast<std::int64_t>(std::floor(epochs * samples - tolerance));
}

EpochSamples epoch_samples(const GptSources& sources, DataSplit split, std::int64_t seq_length) {
  std::optional<SplitPlan> plan = plan_split(sources, {0, 0, 0}, split);
  BEV_CHECK(plan, ErrorKind::kInput, "there is no ", name_of(split), " data");
  EpochSamples out;
  for (const std::string& prefix : plan->blend.prefixes) {
    IndexedDataset files(prefix);
    PackedArray<std::int32_t> lengths = files.lengths();
    GptIndexSpec spec;
    std::tie(spec.first_sequence, spec.end_sequence) =
        plan->part.range(static_cast<std::int64_t>(lengths.size()));
    spec.seq_length = seq_length;
    GptEpochs pass = gpt_epochs(lengths, spec);
    out.members.push_back(pass.num_samples);
    out.samples = static_cast<double>(pass.tokens) / static_cast<double>(seq_length);
  }
  if (out.members.size() > 1) {
    out.samples = static_cast<double>(
        std::accumulate(out.members.begin(), out.members.end(), std::int64_t{0}));
    out.repeats = !plan->blend.weights.empty();
  }
  return out;
}

}  // namespace bev
