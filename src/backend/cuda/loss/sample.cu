// Token sampling with temperature, top-k and top-p. Probabilities are converted to integers first,
// the largest being 2^kWeightBits, so that sums do not depend on their order. A block then handles
// a row and selects by the digits of the weights (radix select) until few candidates are left.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "base/divide.h"
#include "kernels/loss.h"

namespace bev {

namespace cuda {
namespace {

using Weight = unsigned long long;  // the type that atomicAdd takes

constexpr int kRowThreads = 1024, kRowWarps = kRowThreads / kWarp;
constexpr int kWeightBits = 43;
constexpr std::int64_t kMostColumns = std::int64_t{1} << 20;  // weights sum in 64 bits
// At higher temperatures different tokens get equal weights, and their order would differ from the
// host.
constexpr double kMostTemperature = 100;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kKeyBits = 4 * kDigitBits;
constexpr int kMostListed = kRowThreads;

// A key with the order of positive weights: the position of the highest bit, then the bits below
// it.
__device__ Weight key_of(Weight weight) {
  constexpr int kMantissa = kKeyBits - 6;
  const int top = 63 - __clzll(static_cast<long long>(weight));
  const Weight below = weight ^ (Weight{1} << top);
  const Weight mantissa = top > kMantissa ? below >> (top - kMantissa) : below << (kMantissa - top);
  return static_cast<Weight>(top) << kMantissa | mantissa;
}

__global__ void __launch_bounds__(kThreads)
    weights_kernel(const float* logits, const RowSummary* rows, int columns, double temperature,
                   Weight* weights) {
  const int column = static_cast<int>(own_pack());
  if (column >= columns) return;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * columns + column;
  const double exponent =
      (static_cast<double>(logits[at]) - rows[blockIdx.y].largest) / temperature;
  weights[at] = static_cast<Weight>(__double2ll_rn(ldexp(exp(exponent), kWeightBits)));
}

struct Found {
  Weight weight, up_to;  // its own; the sum up to and including it
  int token;             // or one of the constants below
};
constexpr int kNobody = -1, kTooMany = -2;

struct RowMemory {
  Weight sums[kBins];
  int counts[kBins];
  Weight listed[kMostListed];
  int listed_tokens[kMostListed];
  int listed_count;
  Weight scan[kRowWarps];
  int bin;
  Weight above;
  Found found;
};

enum class Order { kByWeight, kByToken };

// The threads of a block and their row.
struct Row {
  RowMemory& shared;
  const Weight* weights;
  int columns;
  Weight least = 1;  // smaller weights are excluded

  // Calls body(token, weight) for tokens that are not excluded.
  template <class Body>
  __device__ void for_weights(const Body& body) const {
#pragma unroll 4
    for (int token = threadIdx.x; token < columns; token += kRowThreads) {
      const Weight weight = weights[token];
      if (weight >= least) body(token, weight);
    }
  }

  // Exclusive prefix sum over the threads. All threads must call.
  __device__ Weight sum_before(Weight own) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Weight in_warp = sum_up_to_lane(own);
    if (lane == kWarp - 1) shared.scan[warp] = in_warp;
    __syncthreads();
    const Weight of_warps = sum_up_to_lane(shared.scan[lane]);
    const Weight before = __shfl_sync(0xffffffffu, of_warps, warp == 0 ? 0 : warp - 1);
    __syncthreads();
    return in_warp - own + (warp == 0 ? 0 : before);
  }
  __device__ static Weight sum_up_to_lane(Weight sum) {
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const Weight other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (threadIdx.x % kWarp >= distance) sum += other;
    }
    return sum;
  }
  __device__ Weight sum_all(Weight own) {
    const Weight before = sum_before(own);
    if (threadIdx.x == kRowThreads - 1) shared.above = before + own;
    __syncthreads();
    const Weight all = shared.above;
    __syncthreads();
    return all;
  }

  // Lists the tokens that are `wanted`; returns false if there are too many.
  template <class Wanted>
  __device__ bool list(const Wanted& wanted) {
    if (threadIdx.x == 0) shared.listed_count = 0;
    __syncthreads();
    for_weights([&](int token, Weight weight) {
      if (!wanted(weight)) return;
      const int place = atomicAdd(&shared.listed_count, 1);
      if (place >= kMostListed) return;
      shared.listed[place] = weight;
      shared.listed_tokens[place] = token;
    });
    __syncthreads();
    return shared.listed_count <= kMostListed;
  }
  __device__ Weight own_listed() const {
    return threadIdx.x < shared.listed_count ? shared.listed[threadIdx.x] : 0;
  }

  // The listed token at which the sum, starting from `above`, exceeds the target; each token counts
  // its weight, or 1 if `counting`.
  __device__ Found find_listed(Order order, bool counting, Weight above, Weight target) {
    const int i = threadIdx.x, count = shared.listed_count;
    if (i == 0) shared.found = {0, 0, kNobody};
    __syncthreads();
    if (i < count) {
      const Weight weight = shared.listed[i];
      const int token = shared.listed_tokens[i];
      Weight before = above;
      for (int j = 0; j < count; ++j) {
        const Weight other = shared.listed[j];
        const bool lower = shared.listed_tokens[j] < token;
        const bool first = order == Order::kByToken || other == weight ? lower : other > weight;
        if (first) before += counting ? 1 : other;
      }
      const Weight up_to = before + (counting ? 1 : weight);
      if (before <= target && target < up_to) shared.found = {weight, up_to, token};
    }
    __syncthreads();
    const Found found = shared.found;
    __syncthreads();
    return found;
  }

  // Histogram of a digit over the tokens whose higher digits equal `prefix`.
  __device__ void fill_bins(Weight prefix, int shift, bool counting) {
    for (int bin = threadIdx.x; bin < kBins; bin += kRowThreads) {
      shared.sums[bin] = 0;
      shared.counts[bin] = 0;
    }
    __syncthreads();
    for_weights([&](int, Weight weight) {
      const Weight key = key_of(weight);
      if (key >> (shift + kDigitBits) != prefix) return;
      const int bin = static_cast<int>(key >> shift) % kBins;
      atomicAdd(&shared.sums[bin], counting ? Weight{1} : weight);
      atomicAdd(&shared.counts[bin], 1);
    });
    __syncthreads();
  }
  // The bin that contains the target, counting from the highest, and the sum above it; kNobody if
  // the total does not reach the target.
  __device__ void find_bin(Weight above, Weight target) {
    static_assert(kBins == 2 * kRowThreads);
    const int upper = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const Weight first = shared.sums[upper], second = shared.sums[upper - 1];
    if (threadIdx.x == 0) shared.bin = kNobody;
    const Weight before = above + sum_before(first + second);
    if (before <= target && target < before + first + second) {
      const bool in_first = target < before + first;
      shared.bin = in_first ? upper : upper - 1;
      shared.above = in_first ? before : before + first;
    }
    __syncthreads();
  }

  // Like find_listed, over all tokens by weight.
  __device__ Found find(bool counting, Weight target) {
    Weight above = 0, prefix = 0;
    for (int shift = kKeyBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
      fill_bins(prefix, shift, counting);
      find_bin(above, target);
      const int bin = shared.bin;
      if (bin == kNobody) return {0, 0, kNobody};
      above = shared.above;
      prefix = prefix << kDigitBits | static_cast<Weight>(bin);
      const bool few = shared.counts[bin] <= kMostListed;
      __syncthreads();
      if (!few) continue;
      list([&](Weight weight) { return key_of(weight) >> shift == prefix; });
      return find_listed(Order::kByWeight, counting, above, target);
    }
    return {0, 0, kTooMany};
  }

  // Like find_listed, over all tokens in order of their ids. Each warp has a contiguous range.
  __device__ int find_by_token(Weight target) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int each = ceil_div(columns, kRowWarps);
    const int begin = min(columns, warp * each), end = min(columns, begin + each);
    const auto weight_at = [&](int token) {
      const Weight weight = token < end ? weights[token] : 0;
      return weight >= least ? weight : 0;
    };
    Weight sum = 0;
    for (int token = begin + lane; token < end; token += kWarp) sum += weight_at(token);
    const Weight own = __shfl_sync(0xffffffffu, sum_up_to_lane(sum), kWarp - 1);
    if (threadIdx.x == 0) shared.bin = kNobody;
    // Only one lane of each warp contributes the sum.
    Weight before = __shfl_sync(0xffffffffu, sum_before(lane == 0 ? own : 0), 0);
    if (before <= target && target < before + own) {
      for (int first = begin; first < end; first += kWarp) {
        const Weight weight = weight_at(first + lane), up_to = before + sum_up_to_lane(weight);
        if (up_to - weight <= target && target < up_to) shared.bin = first + lane;
        before = __shfl_sync(0xffffffffu, up_to, kWarp - 1);
      }
    }
    __syncthreads();
    return shared.bin;
  }
};

__device__ Weight share_of(Weight sum, double share) {
  const Weight part = static_cast<Weight>(share * static_cast<double>(sum));
  return part < sum ? part : sum - 1;
}

struct Sample {
  const Weight* weights;
  const float* logits;
  const double* fractions;
  SampledToken* tokens;
  int columns;
  int top_k;     // 0: all
  double top_p;  // 1: all
};

// Returns the token, or kTooMany.
__device__ int sample_row(Row& row, const Sample& args, double fraction) {
  bool listed = false;
  if (args.top_k > 0) {
    const Found last = row.find(true, static_cast<Weight>(args.top_k - 1));
    if (last.token == kTooMany) return kTooMany;
    if (last.token != kNobody) row.least = last.weight;
    listed = row.list([](Weight) { return true; });
    if (!listed) return kTooMany;
  }
  Weight own = 0;
  if (listed) {
    own = row.own_listed();
  } else {
    row.for_weights([&](int, Weight weight) { own += weight; });
  }
  const Weight all = row.sum_all(own);
  const auto find = [&](Weight target) {
    return listed ? row.find_listed(Order::kByWeight, false, 0, target) : row.find(false, target);
  };
  if (args.top_p < 1) {
    const Found last = find(share_of(all, args.top_p));
    return last.token < 0 ? kTooMany : find(share_of(last.up_to, fraction)).token;
  }
  const Weight target = share_of(all, fraction);
  return listed ? row.find_listed(Order::kByToken, false, 0, target).token
                : row.find_by_token(target);
}

// Grid: rows.
__global__ void __launch_bounds__(kRowThreads) sample_kernel(Sample args) {
  __shared__ RowMemory memory;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * args.columns;
  Row row{memory, args.weights + first, args.columns};
  const int token = sample_row(row, args, args.fractions[blockIdx.x]);
  if (threadIdx.x != 0) return;
  args.tokens[blockIdx.x] = {token < 0 ? -1 : token,
                             token < 0 ? 0.0 : static_cast<double>(args.logits[first + token])};
}

}  // namespace
}  // namespace cuda

bool cuda_sample(const Stream& stream, const SampleArgs& args) {
  using namespace cuda;
  const std::int64_t rows = args.logits.shape[0], columns = args.logits.shape[1];
  const SampleRule& rule = args.rule;
  const bool limited = rule.top_k > 0 && rule.top_k < columns;
  if (columns > kMostColumns || rule.temperature > kMostTemperature ||
      (limited && rule.top_k > kMostListed)) {
    return false;
  }
  if (rows == 0) return true;
  CudaQueue& queue = queue_of(stream);
  auto* weights = static_cast<Weight*>(
      queue.scratch(static_cast<std::size_t>(rows * columns) * sizeof(Weight)));
  const float* logits = address<float>(args.logits);
  const dim3 blocks(static_cast<unsigned>(ceil_div(columns, kThreads)),
                    static_cast<unsigned>(rows));
  weights_kernel<<<blocks, kThreads, 0, queue.stream()>>>(
      logits, args.rows, static_cast<int>(columns), rule.temperature, weights);
  sample_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, queue.stream()>>>(
      {weights, logits, args.fractions, args.tokens, static_cast<int>(columns),
       limited ? static_cast<int>(rule.top_k) : 0, rule.top_p});
  check_launch("sample");
  return true;
}

}  // namespace bev
