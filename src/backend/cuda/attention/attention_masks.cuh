// Attention masks (causal, sliding or chunked window) and the random numbers of dropout.
#pragma once

#include "backend/cuda/attention/attention_params.cuh"
#include "backend/cuda/device/random.cuh"

namespace bev::cuda_attention {

// Keys [begin, end) of a run that some query in [first, last] may see; {0, 0} if there are none.
struct Range {
  int begin, end;
};
__device__ inline Range visible_keys(const Shape& shape, const AttentionRun& run, int first,
                                     int last) {
  const int begin = max(0, run.offset + first - shape.upper);
  const int end = min(run.k_count, run.offset + last - shape.lower + 1);
  return begin < end ? Range{begin, end} : Range{0, 0};
}
// Queries [begin, end) of a run that may see some key in [first, last].
__device__ inline Range visible_queries(const Shape& shape, const AttentionRun& run, int first,
                                        int last) {
  return {max(0, first + shape.lower - run.offset),
          min(run.q_count, last + shape.upper - run.offset + 1)};
}
// True if the keys at two indices, or a query there, lie in one chunk.
__device__ inline bool same_chunk(const Shape& shape, const AttentionRun& run, int a, int b) {
  return shape.chunk == 0 ||
         (run.key_position + a) / shape.chunk == (run.key_position + b) / shape.chunk;
}
__device__ inline bool sees(const Shape& shape, const AttentionRun& run, int query, int key) {
  const int distance = run.offset + query - key;
  return distance >= shape.lower && distance <= shape.upper && key < run.k_count &&
         query < run.q_count && same_chunk(shape, run, run.offset + query, key);
}
// True if all queries in [query, query + queries) exist and see all keys in [key, key + keys): no
// mask needed.
__device__ inline bool sees_all(const Shape& shape, const AttentionRun& run, int query, int queries,
                                int key, int keys) {
  const int distance = run.offset + query - key;
  return distance - (keys - 1) >= shape.lower && distance + (queries - 1) <= shape.upper &&
         key + keys <= run.k_count && query + queries <= run.q_count &&
         same_chunk(shape, run, run.offset + query + queries - 1, key);
}

// Philox counter words of one query and head.
struct QueryDraws {
  std::uint32_t position, sample, stream;
};
__device__ inline QueryDraws query_draws(const Shape& shape, std::int64_t row, int head) {
  return {static_cast<std::uint32_t>(shape.random.position[row]),
          static_cast<std::uint32_t>(shape.random.sample[row]),
          shape.random.stream + static_cast<std::uint32_t>(head)};
}
// 0 or 1 / (1 - p) for the key at this position of the sequence.
__device__ inline float dropout_factor(const Shape& shape, std::uint64_t random_key,
                                       const QueryDraws& draws, int key_position) {
  const auto column = static_cast<std::uint32_t>(key_position);
  const uint4 words =
      cuda::philox({column / 4, draws.position, draws.sample, draws.stream}, random_key);
  const std::uint32_t word = cuda::word_of(words, static_cast<int>(column % 4));
  return (word >> 9) >= shape.keep_threshold ? shape.keep_factor : 0.0f;
}

}  // namespace bev::cuda_attention
