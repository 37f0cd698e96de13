#include "data/mock_dataset.h"

#include "base/error.h"
#include "base/philox.h"

namespace bev {

MockDataset::MockDataset(const MockConfig& config) : config_(config) {
  BEV_CHECK(config.vocab_size > 0 && config.vocab_size <= (std::int64_t{1} << 31) &&
                config.seq_length > 0 && config.num_samples > 0,
            ErrorKind::kConfig, "mock data: vocabulary ", config.vocab_size, ", sequence length ",
            config.seq_length, " and samples ", config.num_samples, " must be above 0");
}

void MockDataset::window(std::int64_t index, std::span<std::int32_t> tokens) const {
  BEV_CHECK(index >= 0 && static_cast<std::int64_t>(tokens.size()) == config_.seq_length + 1,
            ErrorKind::kInternal, "mock data: sample ", index, " into ", tokens.size(), " tokens");
  auto vocab_size = static_cast<std::uint64_t>(config_.vocab_size);
  std::uint64_t key =
      mix_bits(config_.seed, static_cast<std::uint64_t>(index % config_.num_samples));
  std::uint64_t token = 0;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    std::uint64_t bits = mix_bits(key, position);
    bool noise = position == 0 || (bits & 3) == 0;
    token = noise ? (bits >> 32) * vocab_size >> 32 : (5 * token + 3) % vocab_size;
    tokens[position] = static_cast<std::int32_t>(token);
  }
}

}  // namespace bev
