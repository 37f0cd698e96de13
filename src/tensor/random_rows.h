// Which random numbers the rows of a tensor draw.
#pragma once

#include <cstdint>

namespace bev {

// Which numbers a random kernel draws. Row r of the tensor is token r; its numbers depend on the
// token's place in the global batch only. The generator's counter is
// {column / 4, position, sample, stream}; the key is read from *random_key.
struct RandomRows {
  const std::uint64_t* random_key = nullptr;  // device address, StepState::random_key
  const std::int32_t* sample = nullptr;       // [T] sample index in the global batch
  const std::int32_t* position = nullptr;     // [T] position within the sample
  std::uint32_t stream = 0;                   // random_stream(layer, use[, head])
};

enum class RandomUse : std::uint32_t {
  kEmbeddingDropout = 0,
  kAttentionDropout,
  kProjDropout,
  kMlpDropout,
  kRouterJitter,
  kRouterLogits
};
// Layer below 4096, head below 65536.
constexpr std::uint32_t random_stream(std::int64_t layer, RandomUse use, std::int64_t head = 0) {
  return (static_cast<std::uint32_t>(use) << 28) |
         (static_cast<std::uint32_t>(layer & 0xfff) << 16) |
         static_cast<std::uint32_t>(head & 0xffff);
}

}  // namespace bev
