#include "data/gpt/gpt_epochs.h"

#include <algorithm>
#include <cmath>

#include "base/divide.h"
#include "base/error.h"

namespace bev {

namespace {

std::int64_t count_samples(std::int64_t tokens, const GptIndexSpec& spec) {
  std::int64_t usable = std::max<std::int64_t>(tokens - (spec.extra_token ? 1 : 0), 0);
  if (!spec.keep_partial) return usable / spec.seq_length;
  // In single precision as in Megatron: above 2^24 tokens the count may be slightly off.
  return static_cast<std::int64_t>(
      std::ceil(static_cast<float>(usable) / static_cast<float>(spec.seq_length)));
}

}  // namespace

GptEpochs gpt_epochs(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec) {
  constexpr double kMostTokens = 4e18;
  BEV_CHECK(spec.seq_length > 0, ErrorKind::kConfig, "--seq-length: ", spec.seq_length,
            " must be above 0");
  GptEpochs out;
  for (std::int64_t i = spec.first_sequence; i < spec.end_sequence; ++i) {
    out.tokens += lengths[static_cast<std::size_t>(i)];
  }
  std::int64_t wanted = spec.num_samples.value_or(0);
  BEV_CHECK(out.tokens > 0 || wanted == 0, ErrorKind::kInput, wanted,
            " samples are asked of a part without tokens");
  BEV_CHECK(static_cast<double>(wanted) * static_cast<double>(spec.seq_length) < kMostTokens,
            ErrorKind::kConfig, wanted, " samples of ", spec.seq_length, " tokens are too many");
  std::int64_t extra = spec.extra_token ? 1 : 0;
  if (wanted > 0) {
    std::int64_t tokens = wanted * spec.seq_length + extra;
    out.epochs = std::max<std::int64_t>(ceil_div(tokens, out.tokens), 1);
  }
  out.num_samples = count_samples(out.epochs * out.tokens, spec);
  out.shuffled_together = out.num_samples;
  if (out.epochs > 1) {
    std::int64_t before = ((out.epochs - 1) * out.tokens - extra) / spec.seq_length;
    std::int64_t each = (out.tokens - extra) / spec.seq_length;
    out.separate_last =
        wanted - before < static_cast<std::int64_t>(0.80 * static_cast<double>(each));
    if (out.separate_last) out.shuffled_together = std::min(before, out.num_samples);
  }
  return out;
}

}  // namespace bev
