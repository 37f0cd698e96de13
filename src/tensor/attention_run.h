// Which rows of queries see which rows of keys.
#pragma once

#include <cstdint>

namespace bev {

// One run of queries and the keys they may see: rows of q and of k, v. Query i of the run stands at
// key index (offset + i) of it: offset 0 for a whole sequence, keys - queries with a KV cache; with
// a sequence cut over ranks the keys may lie wholly before or after the queries.
struct AttentionRun {
  std::int32_t q_begin = 0, q_count = 0;
  std::int64_t k_begin = 0;
  std::int32_t k_count = 0;
  std::int32_t offset = 0;
  std::int32_t key_position = 0;  // of the first key in its sequence, for random numbers
};

}  // namespace bev
