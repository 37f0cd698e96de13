// Which keys a query sees, softcap, and dropout's random numbers.
#pragma once

#include "backend/cuda/attention_params.cuh"

namespace bev::cuda_attention {

// Keys [begin, end) of a run that some query of [first, last] may see.
struct Range {
  int begin, end;
};
__device__ inline Range visible_keys(const Shape& shape, const AttentionRun& run, int first,
                                     int last) {
  return {max(0, run.offset + first - shape.upper),
          min(run.k_count, run.offset + last - shape.lower + 1)};
}
// Queries [begin, end) of a run that may see some key of [first, last].
__device__ inline Range visible_queries(const Shape& shape, const AttentionRun& run, int first,
                                        int last) {
  return {max(0, first + shape.lower - run.offset),
          min(run.q_count, last + shape.upper - run.offset + 1)};
}
__device__ inline bool sees(const Shape& shape, const AttentionRun& run, int query, int key) {
  const int distance = run.offset + query - key;
  return distance >= shape.lower && distance <= shape.upper && key < run.k_count &&
         query < run.q_count;
}
// Every query of [query, query + queries) is there and sees every key of [key, key + keys).
__device__ inline bool sees_all(const Shape& shape, const AttentionRun& run, int query, int queries,
                                int key, int keys) {
  const int distance = run.offset + query - key;
  return distance - (keys - 1) >= shape.lower && distance + (queries - 1) <= shape.upper &&
         key + keys <= run.k_count && query + queries <= run.q_count;
}

// Four words of Philox4x32-10, as base/philox.h.
__device__ inline uint4 philox(uint4 counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.x;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The random numbers of one query and head.
struct QueryDraws {
  std::uint32_t position, sample, stream;
};
__device__ inline QueryDraws query_draws(const Shape& shape, std::int64_t row, int head) {
  return {static_cast<std::uint32_t>(shape.random.position[row]),
          static_cast<std::uint32_t>(shape.random.sample[row]),
          shape.random.stream + static_cast<std::uint32_t>(head)};
}
// 0 or 1 / (1 - p) for the key at a position of the sequence.
__device__ inline float dropout_factor(const Shape& shape, std::uint64_t random_key,
                                       const QueryDraws& draws, int key_position) {
  const auto column = static_cast<std::uint32_t>(key_position);
  const uint4 words = philox({column / 4, draws.position, draws.sample, draws.stream}, random_key);
  const std::uint32_t low = column % 2 == 0 ? words.x : words.y;
  const std::uint32_t high = column % 2 == 0 ? words.z : words.w;
  const std::uint32_t word = column % 4 < 2 ? low : high;
  return (word >> 9) >= shape.keep_threshold ? shape.keep_factor : 0.0f;
}

}  // namespace bev::cuda_attention
