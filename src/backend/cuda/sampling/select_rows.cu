// Selection of tokens by rules that are not greedy, with temperature, top-k, top-p (nucleus) and
// min-p. Blocks make a histogram of each row; its sums tell which few bins hold the tokens at which
// top-k and top-p cut and the one to be drawn, and only those are collected and searched.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/runtime/queue.h"
#include "backend/cuda/sampling/selection.cuh"
#include "backend/cuda/sampling/token_search.cuh"

namespace bev::cuda {

namespace {

constexpr int kSliceThreads = 512, kSliceWarps = kSliceThreads / kWarp;

// A row that is searched, as a block sees it.
struct RuledRow {
  SamplingRule rule;
  Extent extent;
  const float* logits;
  std::int64_t index;
  bool limited;  // by top-k

  __device__ RuledRow(const Selection& work, int row)
      : rule(work.rules[row]),
        extent(row_extent(work, row)),
        logits(row_logits(work, rule, row)),
        index(row),
        limited(is_limited(rule, work.columns)) {}
  __device__ bool is_searched() const {
    return !is_greedy(rule) && rule.forced < 0 && extent.finite();
  }
  __device__ RowScale scale(const Selection& work) const {
    return RowScale(extent, rule.temperature, rule.min_p, work.bits);
  }
};

// The slice of a block.
struct RowSlice {
  int row, part, begin, end;
  __device__ explicit RowSlice(const Selection& work)
      : row(static_cast<int>(blockIdx.x) / work.parts),
        part(static_cast<int>(blockIdx.x) % work.parts),
        begin(part * work.slice),
        end(min(work.columns, begin + work.slice)) {}
  template <class Body>
  __device__ void each(const float* logits, const Body& body) const {
#pragma unroll 4
    for (int column = begin + static_cast<int>(threadIdx.x); column < end;
         column += kSliceThreads) {
      body(column, logits[column]);
    }
  }
};

// Grid: slices of rows. Rows with top-k: counts of the bins; with top-p alone: also their weights;
// others: the weight of each slice, since they draw in the order of ids.
__global__ void __launch_bounds__(kSliceThreads) histogram_kernel(const Selection work) {
  __shared__ std::uint32_t counts[kBins], low[kBins], high[kBins];
  __shared__ Word warps[kSliceWarps];
  const RowSlice slice(work);
  const RuledRow row(work, slice.row);
  if (!row.is_searched()) return;
  const RowScale scale = row.scale(work);
  const bool nucleus = has_nucleus(row.rule);
  if (!row.limited && !nucleus) {
    Word own = 0;
    slice.each(row.logits, [&](int, float x) {
      const float distance = scale.distance(x);
      if (distance <= scale.limit && distance <= scale.far) own += scale.weight(x);
    });
    own = reduce_row<Sum>(own, warps);
    if (threadIdx.x == 0) work.slice_sums[blockIdx.x] = own;
    return;
  }
  for (int bin = threadIdx.x; bin < kBins; bin += kSliceThreads) {
    counts[bin] = low[bin] = high[bin] = 0;
  }
  __syncthreads();
  slice.each(row.logits, [&](int, float x) {
    const int bin = scale.bin(x);
    atomicAdd(&counts[bin], 1u);
    if (row.limited || bin == kPastBin) return;
    // 64-bit atomics on shared memory are loops, two of 32 bits are not.
    const Word weight = scale.weight(x);
    const auto word = static_cast<std::uint32_t>(weight);
    const std::uint32_t old = atomicAdd(&low[bin], word);
    const std::uint32_t upper =
        static_cast<std::uint32_t>(weight >> 32) + (old + word < old ? 1u : 0u);
    if (upper != 0) atomicAdd(&high[bin], upper);
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kSliceThreads) {
    if (counts[bin] == 0) continue;
    const std::int64_t to = row.index * kBins + bin;
    atomicAdd(&work.bin_counts[to], counts[bin]);
    const Word weight = Word{high[bin]} << 32 | low[bin];
    if (weight != 0) atomicAdd(&work.bin_weights[to], weight);
  }
}

// Sums over the bins of a row up to and including each.
struct BinSums {
  Word weights[kBins];
  std::uint32_t counts[kBins];

  __device__ Word weight_before(int bin) const { return bin > 0 ? weights[bin - 1] : 0; }
  __device__ std::uint32_t count_before(int bin) const { return bin > 0 ? counts[bin - 1] : 0; }
  // The first bin whose sum exceeds the target; the last one if none does.
  template <class T>
  __device__ static int find(const T (&sums)[kBins], Word target) {
    int bin = -1;
#pragma unroll
    for (int step = kBins / 2; step > 0; step /= 2) {
      if (sums[bin + step] <= target) bin += step;
    }
    return min(bin + 1, kBins - 1);
  }
  // Called by a block of kSliceThreads.
  __device__ void fill(const Selection& work, std::int64_t row, Word (&warps)[2][kSliceWarps]) {
    constexpr int kEach = kBins / kSliceThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    Word sums[2][kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t at = row * kBins + first + i;
      sums[0][i] = work.bin_weights[at] + (i > 0 ? sums[0][i - 1] : 0);
      sums[1][i] = work.bin_counts[at] + (i > 0 ? sums[1][i - 1] : 0);
    }
    Word before[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Word own = sums[k][kEach - 1], up_to = TokenSearch::sum_up_to_lane(own);
      before[k] = up_to - own;
      if (lane == kWarp - 1) warps[k][warp] = up_to;
    }
    __syncthreads();
    for (int k = 0; k < 2; ++k) {
      for (int w = 0; w < warp; ++w) before[k] += warps[k][w];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      weights[first + i] = before[0] + sums[0][i];
      counts[first + i] = static_cast<std::uint32_t>(before[1] + sums[1][i]);
    }
    __syncthreads();
  }
};

// Top-k: all bins down to that of the k-th token, since top-p and the draw follow within them.
__device__ RowPlan plan_limited(const SamplingRule& rule, const BinSums& sums) {
  RowPlan plan = {};
  const int bin = BinSums::find(sums.counts, static_cast<Word>(rule.top_k - 1));
  // Tokens past the bins have no weight, so that a cut among them changes nothing.
  plan.cuts = bin < kPastBin;
  plan.cut_bin = plan.last_bin = min(bin, kPastBin - 1);
  return plan;
}

// Top-p and min-p, which keep a number of whole bins and a part of cut_bin. How much of it is known
// only later, so that the drawn token may be in a few bins.
__device__ RowPlan plan_nucleus(const SamplingRule& rule, const RowScale& scale,
                                const BinSums& sums) {
  RowPlan plan = {};
  plan.total = sums.weights[kBins - 1];
  const int last = BinSums::find(sums.weights, share_of(plan.total, rule.top_p));
  const int kept = scale.bin_at(scale.far);
  plan.cuts = last <= kept;
  plan.cut_bin = min(min(last, kept), kPastBin - 1);
  plan.above = sums.weight_before(plan.cut_bin);
  const Word least = plan.above > 0 ? share_of(plan.above, rule.fraction) : 0;
  plan.first_bin = min(BinSums::find(sums.weights, least), plan.cut_bin);
  plan.last_bin =
      min(BinSums::find(sums.weights, share_of(sums.weights[plan.cut_bin], rule.fraction)),
          plan.cut_bin);
  plan.before_first = sums.weight_before(plan.first_bin);
  return plan;
}

// Grid: slices of rows. Plans the search of the row, the same in all its blocks, and lists the
// tokens of its bins, unless they are too many.
__global__ void __launch_bounds__(kSliceThreads) collect_kernel(const Selection work) {
  __shared__ BinSums sums;
  __shared__ Word warps[2][kSliceWarps];
  const RowSlice slice(work);
  const RuledRow row(work, slice.row);
  if (!row.is_searched() || (!row.limited && !has_nucleus(row.rule))) return;
  sums.fill(work, row.index, warps);
  const RowScale scale = row.scale(work);
  const RowPlan plan =
      row.limited ? plan_limited(row.rule, sums) : plan_nucleus(row.rule, scale, sums);
  if (slice.part == 0 && threadIdx.x == 0) work.plans[row.index] = plan;
  const std::uint32_t count = sums.counts[plan.last_bin] - sums.count_before(plan.first_bin) +
                              sums.counts[plan.cut_bin] - sums.count_before(plan.cut_bin);
  if (count > static_cast<std::uint32_t>(kMostListed)) {
    if (slice.part == 0 && threadIdx.x == 0) work.listed[row.index] = -1;
    return;
  }
  Word* list = work.lists + row.index * kMostListed;
  slice.each(row.logits, [&](int column, float x) {
    const int bin = scale.bin(x);
    if (bin != plan.cut_bin && (bin < plan.first_bin || bin > plan.last_bin)) return;
    list[atomicAdd(&work.listed[row.index], 1)] = entry_of(x, column);
  });
}

// Draws from the tokens that pass the filter; the sum of their weights, and the target in it.
struct Draw {
  TokenSearch& search;
  const RuledRow& row;

  __device__ int limited(const RowPlan& plan) const {
    TokenFilter kept{.last_bin = plan.last_bin};
    if (plan.cuts) {
      const auto rank = static_cast<Word>(row.rule.top_k - 1);
      kept.least = first_equal(search.find(kept, TokenOrder::kByWeight, true, 0, rank));
    }
    const bool nucleus = has_nucleus(row.rule);
    if (nucleus) {
      const Word target = share_of(search.sum(kept), row.rule.top_p);
      kept.least = search.find(kept, TokenOrder::kByWeight, false, 0, target);
    }
    kept.far = search.scale.far;
    const Word target = share_of(search.sum(kept), row.rule.fraction);
    const TokenOrder order = nucleus ? TokenOrder::kByWeight : TokenOrder::kById;
    return token_of(search.find(kept, order, false, 0, target));
  }

  __device__ int nucleus(const Selection& work, const RowPlan& plan) const {
    TokenFilter kept{.first_bin = plan.cut_bin, .last_bin = plan.cut_bin};
    if (plan.cuts) {
      const Word target = share_of(plan.total, row.rule.top_p);
      kept.least = search.find(kept, TokenOrder::kByWeight, false, plan.above, target);
    }
    kept.far = search.scale.far;
    const Word target = share_of(plan.above + search.sum(kept), row.rule.fraction);
    if (target >= plan.above) {
      return token_of(search.find(kept, TokenOrder::kByWeight, false, plan.above, target));
    }
    int bin = plan.first_bin;
    Word before = plan.before_first, up_to = before + work.bin_weights[row.index * kBins + bin];
    while (up_to <= target && bin < plan.last_bin) {
      before = up_to;
      up_to += work.bin_weights[row.index * kBins + ++bin];
    }
    const TokenFilter drawn{.first_bin = bin, .last_bin = bin};
    return token_of(search.find(drawn, TokenOrder::kByWeight, false, before, target));
  }

  // Draws in the order of ids from the slice in which the sum passes the target.
  __device__ int all(const Selection& work) const {
    const Word* sums = work.slice_sums + row.index * work.parts;
    Word total = 0, before = 0;
    for (int part = 0; part < work.parts; ++part) total += sums[part];
    const Word target = share_of(total, row.rule.fraction);
    int part = 0;
    while (part + 1 < work.parts && before + sums[part] <= target) before += sums[part++];
    search.begin = part * work.slice;
    search.end = min(work.columns, search.begin + work.slice);
    const TokenFilter kept{.last_bin = kPastBin - 1, .far = search.scale.far};
    return token_of(search.find(kept, TokenOrder::kById, false, before, target));
  }
};

// Grid: rows.
__global__ void __launch_bounds__(kSearchThreads) draw_kernel(const Selection work) {
  __shared__ SearchMemory shared;
  const RuledRow row(work, static_cast<int>(blockIdx.x));
  const bool finite = row.extent.finite();
  int token = finite ? row.extent.at : 0;
  if (finite && row.rule.forced >= 0) token = row.rule.forced;
  if (row.is_searched()) {
    TokenSearch search{shared, row.scale(work), row.logits, 0, work.columns};
    const Draw draw{search, row};
    if (!row.limited && !has_nucleus(row.rule)) {
      token = draw.all(work);
    } else {
      const int listed = work.listed[row.index];
      if (listed >= 0) {
        search.entries = work.lists + row.index * kMostListed;
        search.end = listed;
        search.hold_entries();
      }
      const RowPlan plan = work.plans[row.index];
      token = row.limited ? draw.limited(plan) : draw.nucleus(work, plan);
    }
  }
  if (threadIdx.x != 0) return;
  work.tokens[blockIdx.x] = token;
  work.status[blockIdx.x] =
      static_cast<std::int32_t>(finite ? SelectStatus::kSelected : SelectStatus::kNotFinite);
}

}  // namespace

void choose_by_rules(const Selection& work, CudaQueue& queue) {
  const auto slices = static_cast<unsigned>(std::int64_t{work.rows} * work.parts);
  histogram_kernel<<<slices, kSliceThreads, 0, queue.stream()>>>(work);
  collect_kernel<<<slices, kSliceThreads, 0, queue.stream()>>>(work);
  draw_kernel<<<static_cast<unsigned>(work.rows), kSearchThreads, 0, queue.stream()>>>(work);
}

}  // namespace bev::cuda
