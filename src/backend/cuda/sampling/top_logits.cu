// The k largest logits of each row, by a block per row: a histogram finds the bins that hold them,
// whose tokens are collected and searched for the k-th.
#include <algorithm>

#include "backend/cuda/device/values.cuh"
#include "backend/cuda/runtime/queue.h"
#include "backend/cuda/sampling/select.h"
#include "backend/cuda/sampling/token_search.cuh"
#include "kernels/sampling.h"

namespace bev::cuda {

namespace {

constexpr int kMostTop = 1024;
static_assert(kMostTop <= kSearchThreads);

struct TopLogits {
  const float* logits;
  float* values;
  std::int32_t* ids;
  int columns, k;
};

struct TopMemory {
  SearchMemory search;
  Extent warps[kSearchWarps];
  int count;
};

__device__ Extent block_extent(const float* logits, int columns, TopMemory& shared) {
  Extent own = Extent::nothing();
#pragma unroll 8
  for (int column = threadIdx.x; column < columns; column += kSearchThreads) {
    own.take(logits[column], column);
  }
  own = reduce_extent(own);
  if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  return reduce_extent(shared.warps[threadIdx.x % kWarp]);
}

// The last bin that holds one of the `most` largest, and how many tokens there are down to it.
struct LastBin {
  int bin, count;
};
__device__ LastBin find_last_bin(TokenSearch& search, std::uint32_t (&bins)[kBins], int most) {
  static_assert(kBins == 2 * kSearchThreads);
  bins[threadIdx.x] = bins[threadIdx.x + kSearchThreads] = 0;
  __syncthreads();
  search.each({}, [&](Word, float x) { atomicAdd(&bins[search.scale.bin(x)], 1u); });
  __syncthreads();
  const int first = 2 * static_cast<int>(threadIdx.x);
  const int own[2] = {static_cast<int>(bins[first]), static_cast<int>(bins[first + 1])};
  int before = static_cast<int>(search.sum_before(static_cast<Word>(own[0] + own[1])));
  for (int i = 0; i < 2; ++i) {
    if (before < most && most <= before + own[i]) {
      search.shared.digit = first + i;
      search.shared.few_count = before + own[i];
    }
    before += own[i];
  }
  __syncthreads();
  const LastBin last{search.shared.digit, search.shared.few_count};
  __syncthreads();
  return last;
}

// Grid: rows.
__global__ void __launch_bounds__(kSearchThreads) top_kernel(const TopLogits args) {
  __shared__ TopMemory shared;
  __shared__ union {
    std::uint32_t bins[kBins];
    Word chosen[kMostTop];
  } parts;
  const std::int64_t row = blockIdx.x;
  const float* logits = args.logits + row * args.columns;
  const int most = min(args.k, args.columns), i = threadIdx.x;
  const RowScale scale(block_extent(logits, args.columns, shared));
  TokenSearch search{shared.search, scale, logits, 0, args.columns};
  const LastBin last = find_last_bin(search, parts.bins, most);
  const TokenFilter filter{.last_bin = last.bin};
  if (i == 0) shared.count = 0;
  __syncthreads();
  if (last.count <= kHeld) {
    search.each(filter, [&](Word entry, float) {
      shared.search.held[atomicAdd(&shared.count, 1)] = entry;
    });
    __syncthreads();
    search.entries = shared.search.held;
    search.end = last.count;
    if (i == 0) shared.count = 0;
  }
  TokenFilter top = filter;
  top.least = search.find(filter, TokenOrder::kByWeight, true, 0, static_cast<Word>(most - 1));
  search.each(top, [&](Word entry, float) {
    const int place = atomicAdd(&shared.count, 1);
    if (place < most) parts.chosen[place] = entry;
  });
  __syncthreads();
  if (i >= args.k) return;
  int place = i;
  float value = -__builtin_inff();
  int id = -1;
  if (i < most) {
    const Word own = parts.chosen[i];
    place = 0;
    for (int j = 0; j < most; ++j) place += parts.chosen[j] > own ? 1 : 0;
    id = token_of(own);
    value = logits[id];
  }
  args.values[row * args.k + place] = value;
  args.ids[row * args.k + place] = id;
}

}  // namespace

void top_logits(const Stream& stream, const TopLogitsArgs& args) {
  const View& logits = args.logits;
  BEV_CHECK(logits.shape.ndim() == 2 && logits.shape[1] <= INT32_MAX / 2 &&
                args.values.shape == args.ids.shape && args.ids.dtype == Dtype::kI32 &&
                args.ids.shape.ndim() == 2 && args.ids.shape[0] == logits.shape[0],
            ErrorKind::kInternal, "top logits: ", args.values.shape, " and ids ", args.ids.shape,
            " from ", logits.shape);
  const std::int64_t rows = logits.shape[0], k = args.ids.shape[1];
  BEV_CHECK(k <= kMostTop, ErrorKind::kInternal, "top logits: ", k, " are more than ", kMostTop);
  if (rows == 0 || k == 0) return;
  const TopLogits work{address<float>(logits), address<float>(args.values),
                       static_cast<std::int32_t*>(args.ids.data), static_cast<int>(logits.shape[1]),
                       static_cast<int>(k)};
  top_kernel<<<static_cast<unsigned>(rows), kSearchThreads, 0, queue_of(stream).stream()>>>(work);
  check_launch("top logits");
}

}  // namespace bev::cuda
