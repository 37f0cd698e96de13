// Search of a block in a set of tokens: sums of weights, and the token at which a running sum, in
// order of probability or of ids, passes a target (radix select over the order).
#pragma once

#include <cstdint>

#include "backend/cuda/sampling/row_scale.cuh"

namespace bev::cuda {

constexpr int kSearchThreads = 1024, kSearchWarps = kSearchThreads / kWarp;
constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits;
constexpr int kFew = 256;    // tokens that are ranked by comparing all pairs
constexpr int kHeld = 2816;  // entries held in shared memory

struct SearchMemory {
  std::uint32_t low[kDigits], high[kDigits], counts[kDigits];  // sums in two words
  Word few[kFew], few_weights[kFew];
  Word held[kHeld];
  Word scan[kSearchWarps], reduced[kSearchWarps];
  int few_count;
  int digit;
  Word above, found;
};

// The members of a set that a search considers.
struct TokenFilter {
  int first_bin = 0, last_bin = kPastBin;
  Word least = 0;                // smallest entry
  float far = __builtin_inff();  // largest distance from the largest logit
};

enum class TokenOrder { kByWeight, kById };

struct MinWord {
  __device__ static Word join(Word a, Word b) { return a < b ? a : b; }
};
struct MaxWord {
  __device__ static Word join(Word a, Word b) { return a > b ? a : b; }
};

// The threads of a block and their set of tokens: entries in memory, or the columns [begin, end) of
// a row.
struct TokenSearch {
  SearchMemory& shared;
  RowScale scale;
  const float* logits;
  int begin, end;
  const Word* entries = nullptr;  // if set, `end` of them

  // Calls body(entry, logit) for tokens that pass the filter.
  template <class Body>
  __device__ void each(const TokenFilter& filter, const Body& body) const {
#pragma unroll 4
    for (int i = (entries != nullptr ? 0 : begin) + static_cast<int>(threadIdx.x); i < end;
         i += kSearchThreads) {
      const Word entry = entries != nullptr ? entries[i] : entry_of(logits[i], i);
      const float x = logit_of(entry);
      if (entry < filter.least || scale.distance(x) > filter.far) continue;
      const int bin = scale.bin(x);
      if (bin >= filter.first_bin && bin <= filter.last_bin) body(entry, x);
    }
  }

  // Copies the entries to shared memory if they fit.
  __device__ void hold_entries() {
    if (end > kHeld) return;
    for (int i = threadIdx.x; i < end; i += kSearchThreads) shared.held[i] = entries[i];
    __syncthreads();
    entries = shared.held;
  }

  template <class Join>
  __device__ Word reduce(Word own) {
    own = reduce_warp<Join>(own);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) shared.reduced[warp] = own;
    __syncthreads();
    static_assert(kSearchWarps == kWarp);
    own = reduce_warp<Join>(shared.reduced[lane]);
    __syncthreads();
    return own;
  }
  // Exclusive prefix sum over the threads.
  __device__ Word sum_before(Word own) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Word in_warp = sum_up_to_lane(own);
    if (lane == kWarp - 1) shared.scan[warp] = in_warp;
    __syncthreads();
    const Word of_warps = sum_up_to_lane(shared.scan[lane]);
    const Word before = __shfl_sync(0xffffffffu, of_warps, warp == 0 ? 0 : warp - 1);
    __syncthreads();
    return in_warp - own + (warp == 0 ? 0 : before);
  }
  __device__ static Word sum_up_to_lane(Word sum) {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const Word other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (threadIdx.x % kWarp >= distance) sum += other;
    }
    return sum;
  }

  __device__ Word sum(const TokenFilter& filter) {
    Word own = 0;
    each(filter, [&](Word, float x) { own += scale.weight(x); });
    return reduce<Sum>(own);
  }

  // Sums count weights, or tokens if `counting`. Tokens in order, largest first; `above` is the sum
  // before the set, and the result the value (an entry, or for kById its low word) of the token
  // with before <= target < before + its own. There must be one.
  __device__ Word find(const TokenFilter& filter, TokenOrder order, bool counting, Word above,
                       Word target) {
    const auto value_of = [&](Word entry) {
      return order == TokenOrder::kByWeight ? entry : entry & 0xffffffffu;
    };
    const auto term_of = [&](float x) { return counting ? Word{1} : scale.weight(x); };
    Word lowest = ~Word{0}, highest = 0, count = 0;
    each(filter, [&](Word entry, float) {
      lowest = MinWord::join(lowest, value_of(entry));
      highest = MaxWord::join(highest, value_of(entry));
      ++count;
    });
    lowest = reduce<MinWord>(lowest);
    highest = reduce<MaxWord>(highest);
    count = reduce<Sum>(count);
    while (count > kFew && lowest < highest) {
      const int shift = max(0, 64 - __clzll(static_cast<long long>(highest - lowest)) - kDigitBits);
      clear_digits();
      each(filter, [&](Word entry, float x) {
        const Word value = value_of(entry);
        if (value < lowest || value > highest) return;
        add(static_cast<int>((highest - value) >> shift), term_of(x));
      });
      find_digit(above, target);
      const auto digit = static_cast<Word>(shared.digit);
      above = shared.above;
      count = shared.counts[digit];
      __syncthreads();
      highest -= digit << shift;
      const Word width = (Word{1} << shift) - 1;
      lowest = MaxWord::join(lowest, highest > width ? highest - width : 0);
    }
    if (threadIdx.x == 0) {
      shared.few_count = 0;
      shared.found = lowest;
    }
    __syncthreads();
    each(filter, [&](Word entry, float x) {
      const Word value = value_of(entry);
      if (value < lowest || value > highest) return;
      const int place = atomicAdd(&shared.few_count, 1);
      if (place >= kFew) return;
      shared.few[place] = value;
      shared.few_weights[place] = term_of(x);
    });
    __syncthreads();
    return rank(above, target);
  }

 private:
  __device__ Word rank(Word above, Word target) {
    const int i = threadIdx.x, count = min(shared.few_count, kFew);
    if (i < count) {
      const Word own = shared.few[i];
      Word before = above;
      for (int j = 0; j < count; ++j) before += shared.few[j] > own ? shared.few_weights[j] : 0;
      if (before <= target && target < before + shared.few_weights[i]) shared.found = own;
    }
    __syncthreads();
    const Word found = shared.found;
    __syncthreads();
    return found;
  }

  __device__ void clear_digits() {
    static_assert(kDigits == kSearchThreads);
    shared.low[threadIdx.x] = 0;
    shared.high[threadIdx.x] = 0;
    shared.counts[threadIdx.x] = 0;
    __syncthreads();
  }
  // 64-bit atomics on shared memory are loops, two of 32 bits are not.
  __device__ void add(int digit, Word term) {
    const auto low = static_cast<std::uint32_t>(term);
    const std::uint32_t old = atomicAdd(&shared.low[digit], low);
    const std::uint32_t high = static_cast<std::uint32_t>(term >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(&shared.high[digit], high);
    atomicAdd(&shared.counts[digit], 1u);
  }
  // The digit in which the sum passes the target, and the sum above it.
  __device__ void find_digit(Word above, Word target) {
    __syncthreads();
    const int digit = threadIdx.x;
    const Word own = Word{shared.high[digit]} << 32 | shared.low[digit];
    if (digit == 0) {
      shared.digit = 0;
      shared.above = above;
    }
    const Word before = above + sum_before(own);  // has barriers
    if (before <= target && target < before + own) {
      shared.digit = digit;
      shared.above = before;
    }
    __syncthreads();
  }
};

}  // namespace bev::cuda
