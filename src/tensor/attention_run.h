// Which queries attend to which keys.
#pragma once

#include <cstdint>

namespace bev {

// A contiguous run of queries and the run of keys they may attend to, as rows of q and of k, v.
// Query i is aligned with key index (offset + i): offset 0 for a whole sequence, keys - queries
// with a KV cache. Under context parallelism the keys may lie entirely before or after the queries.
struct AttentionRun {
  std::int32_t q_begin = 0, q_count = 0;
  std::int64_t k_begin = 0;
  std::int32_t k_count = 0;
  std::int32_t offset = 0;
  std::int32_t key_position = 0;  // of the first key in its sequence, for dropout
};

}  // namespace bev
