// Keys of the Philox random numbers of a tensor's rows (dropout, router noise).
#pragma once

#include <cstdint>

namespace bev {

// Row r of the tensor is token r; its random numbers depend only on the token's place in the global
// batch, so they are the same under every layout. Philox counter: {column / 4, position, sample,
// stream}; the key is read from *random_key.
struct RandomRows {
  const std::uint64_t* random_key = nullptr;  // device address of StepState::random_key
  const std::int32_t* sample = nullptr;       // [T] index of the sample in the global batch
  const std::int32_t* position = nullptr;     // [T] position within the sample
  std::uint32_t stream = 0;                   // random_stream(layer, use[, head])
  std::int64_t first_column = 0;              // the tensor's first column in the whole one
};

enum class RandomUse : std::uint32_t {
  kEmbeddingDropout = 0,
  kAttentionDropout,
  kProjDropout,
  kMlpDropout,
  kRouterJitter,
  kRouterLogits,
  kAdapterDropout
};
// Requires layer < 4096 and head < 65536.
constexpr std::uint32_t random_stream(std::int64_t layer, RandomUse use, std::int64_t head = 0) {
  return (static_cast<std::uint32_t>(use) << 28) |
         (static_cast<std::uint32_t>(layer & 0xfff) << 16) |
         static_cast<std::uint32_t>(head & 0xffff);
}

}  // namespace bev
