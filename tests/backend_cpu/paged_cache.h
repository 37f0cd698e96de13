// Keys and values of a contiguous cache, copied into shuffled blocks of a paged one.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "base/divide.h"
#include "base/philox.h"
#include "kernels/attention.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev::kernel_test {

// Rows that hold no key are NaN. Blocks that no query needs point to a block of NaN.
struct PagedCache {
  Buffer k, v;
  std::vector<std::int32_t> table;
  KeyPages pages;

  // k [rows, k stride] and v alike. Blocks whose last key is before first_keys[i] are given up.
  PagedCache(const AttentionShape& shape, std::span<const AttentionRun> runs, Buffer& from_k,
             Buffer& from_v, std::int64_t block_tokens,
             const std::vector<std::int64_t>& first_keys = {})
      : k(shape.dtype, {0}), v(shape.dtype, {0}) {
    std::int64_t used = 0, stride = 1;
    for (const AttentionRun& run : runs) {
      const std::int64_t blocks = ceil_div(run.k_count, block_tokens);
      used += blocks;
      stride = std::max(stride, blocks + 2);
    }
    k = Buffer(shape.dtype, {(used + 1) * block_tokens, shape.k_stride});
    v = Buffer(shape.dtype, {(used + 1) * block_tokens, shape.v_stride});
    const std::vector<std::int32_t> ids = shuffled(used + 1);
    table.assign(static_cast<std::size_t>(stride) * std::max<std::size_t>(1, runs.size()), ids[0]);
    std::size_t next = 1;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::int64_t key = 0; key < runs[i].k_count; ++key) {
        std::int32_t& block = table[i * static_cast<std::size_t>(stride) +
                                    static_cast<std::size_t>(key / block_tokens)];
        if (key % block_tokens == 0) block = ids[next++];
        const std::int64_t row = std::int64_t{block} * block_tokens + key % block_tokens;
        copy_row(from_k, runs[i].k_begin + key, k, row);
        copy_row(from_v, runs[i].k_begin + key, v, row);
        const bool last = key % block_tokens == block_tokens - 1;
        if (last && i < first_keys.size() && key < first_keys[i]) block = ids[0];
      }
    }
    pages = {.table = table.data(), .stride = stride, .block_tokens = block_tokens};
  }
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

 private:
  static std::vector<std::int32_t> shuffled(std::int64_t count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), 0);
    for (std::size_t i = ids.size() - 1; i > 0; --i) {
      std::swap(ids[i], ids[mix_bits(11, i) % (i + 1)]);
    }
    return ids;
  }
  static void copy_row(Buffer& from, std::int64_t row, Buffer& to, std::int64_t to_row) {
    const View source = from.view().rows(row, row + 1), target = to.view().rows(to_row, to_row + 1);
    std::memcpy(target.data, source.data, source.bytes());
  }
};

}  // namespace bev::kernel_test
