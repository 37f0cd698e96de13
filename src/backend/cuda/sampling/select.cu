// Selection of tokens: the pass that edits logits and finds the largest, and the choice of greedy
// rows. A row is cut into slices, each of a block, by the number of rows; all sums and comparisons
// are exact, so the cut changes nothing.
#include <algorithm>
#include <bit>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/sampling/selection.cuh"
#include "base/divide.h"

namespace bev::cuda {

namespace {

constexpr int kSliceThreads = 512, kSliceWarps = kSliceThreads / kWarp;
constexpr int kInFlight = 8;  // elements of a thread that are loaded together

// Penalties of a token that is in the prompt or in the output `seen` says how often. Rounds after
// each operation, as the CPU does.
__device__ float penalise(const SamplingRule& rule, float logit, std::int32_t seen) {
  if (seen == 0) return logit;
  if (rule.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(rule.repetition_penalty);
    logit = logit > 0 ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty);
  }
  const std::int32_t times = seen & (kInPrompt - 1);
  if (times > 0) {
    const auto each = static_cast<float>(rule.frequency_penalty);
    logit = __fsub_rn(logit, __fmul_rn(each, static_cast<float>(times)));
    logit = __fsub_rn(logit, static_cast<float>(rule.presence_penalty));
  }
  return logit;
}

struct Slice {
  int begin, end;

  __device__ Slice(const Selection& work, int part)
      : begin(part * work.slice), end(min(work.columns, begin + work.slice)) {}
  __device__ bool holds(int token) const { return token >= begin && token < end; }
  // Calls load(column), then use(column, loaded) for the columns of this thread, in order.
  template <class Load, class Use>
  __device__ void each(const Load& load, const Use& use) const {
    for (int first = begin + static_cast<int>(threadIdx.x); first < end;
         first += kInFlight * kSliceThreads) {
      decltype(load(0)) loaded[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int column = first + i * kSliceThreads;
        if (column < end) loaded[i] = load(column);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int column = first + i * kSliceThreads;
        if (column < end) use(column, loaded[i]);
      }
    }
  }
};

// Adds the edits of a row to its slice of `to`, those of one token in the order of the list.
__device__ void add_edits(const SamplingRule& rule, const LogitEdit* edits, const Slice& slice,
                          float* to) {
  __shared__ std::int32_t tokens[kSliceThreads];
  __shared__ float biases[kSliceThreads];
  const int i = threadIdx.x;
  for (int first = rule.edits_begin; first < rule.edits_end; first += kSliceThreads) {
    const int count = min(kSliceThreads, rule.edits_end - first);
    __syncthreads();
    if (i < count) {
      tokens[i] = edits[first + i].token;
      biases[i] = edits[first + i].bias;
    }
    __syncthreads();
    if (i >= count || !slice.holds(tokens[i])) continue;
    const int token = tokens[i];
    bool is_first = true;
    for (int j = 0; j < i; ++j) is_first &= tokens[j] != token;
    if (!is_first) continue;
    float x = to[token];
    for (int j = i; j < count; ++j) x = tokens[j] == token ? x + biases[j] : x;
    to[token] = x;
  }
  __syncthreads();
}

// Copies the logits of the tokens that have edits.
__device__ void restore_edited(const SamplingRule& rule, const LogitEdit* edits, const Slice& slice,
                               const float* from, float* to) {
  __syncthreads();
  for (int i = rule.edits_begin + static_cast<int>(threadIdx.x); i < rule.edits_end;
       i += kSliceThreads) {
    const int token = edits[i].token;
    if (slice.holds(token)) to[token] = from[token];
  }
}

struct SeenLogit {
  float logit;
  std::int32_t seen;
};

// Writes the edited logits of a slice and returns what this thread saw of them.
__device__ Extent edit_slice(const Selection& work, const SamplingRule& rule, const float* from,
                             float* to, const Slice& slice) {
  bool touched = false;
  for (int i = rule.edits_begin + static_cast<int>(threadIdx.x); i < rule.edits_end;
       i += kSliceThreads) {
    touched |= slice.holds(work.edits[i].token);
  }
  if (__syncthreads_or(touched || rule.only_edited)) {
    // What is not finite stays, and makes the row an error.
    slice.each([&](int column) { return from[column]; },
               [&](int column, float x) {
                 to[column] = rule.only_edited && x < __builtin_inff() ? -__builtin_inff() : x;
               });
    if (rule.only_edited) restore_edited(rule, work.edits, slice, from, to);
    add_edits(rule, work.edits, slice, to);
    from = to;
  }
  const std::int32_t* counts =
      rule.counts_row < 0 ? nullptr : work.counts + rule.counts_row * work.counts_stride;
  Extent own = Extent::nothing();
  slice.each(
      [&](int column) {
        return SeenLogit{from[column], counts == nullptr ? 0 : counts[column]};
      },
      [&](int column, const SeenLogit& item) {
        const float x = penalise(rule, item.logit, item.seen);
        to[column] = x;
        own.take(x, column);
      });
  return own;
}

// Grid: slices of rows. Memory bound: reads logits once.
template <bool kByRules>
__global__ void __launch_bounds__(kSliceThreads) extent_kernel(const Selection work) {
  __shared__ Extent warps[kSliceWarps];
  const int row = static_cast<int>(blockIdx.x) / work.parts;
  const int part = static_cast<int>(blockIdx.x) % work.parts;
  const std::int64_t first = static_cast<std::int64_t>(row) * work.columns;
  const Slice slice(work, part);
  const float* logits = work.logits + first;
  Extent own = Extent::nothing();
  bool edited = false;
  if constexpr (kByRules) {
    const std::int64_t first_bin = static_cast<std::int64_t>(row) * kBins;
    for (int bin = part * kSliceThreads + static_cast<int>(threadIdx.x); bin < kBins;
         bin += work.parts * kSliceThreads) {
      work.bin_counts[first_bin + bin] = 0;
      work.bin_weights[first_bin + bin] = 0;
    }
    if (part == 0 && threadIdx.x == 0) work.listed[row] = 0;
    const SamplingRule rule = work.rules[row];
    edited = edits_logits(rule);
    if (edited) own = edit_slice(work, rule, logits, work.edited + first, slice);
  }
  if (!edited) {
    slice.each([&](int column) { return logits[column]; },
               [&](int column, float x) { own.take(x, column); });
  }
  own = reduce_extent(own);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  own = threadIdx.x < kSliceWarps ? warps[threadIdx.x] : Extent::nothing();
  own = reduce_extent(own);
  if (threadIdx.x == 0) work.extents[blockIdx.x] = own;
}

// Grid: a warp per row.
__global__ void __launch_bounds__(kThreads) greedy_kernel(const Selection work) {
  const int row = static_cast<int>(own_pack()) / kWarp;
  if (row >= work.rows) return;
  const Extent extent = row_extent(work, row);
  if (threadIdx.x % kWarp != 0) return;
  const bool finite = extent.finite();
  work.tokens[row] = finite ? extent.at : 0;
  work.status[row] =
      static_cast<std::int32_t>(finite ? SelectStatus::kSelected : SelectStatus::kNotFinite);
}

// Takes consecutive ranges of scratch memory; the first pass, with null memory, counts the bytes.
class Ranges {
 public:
  explicit Ranges(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <class T>
  void take(T*& range, std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    range = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += round_up(static_cast<std::size_t>(count) * sizeof(T), kAlignment);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

std::size_t lay_out(Selection& work, void* memory, bool by_rules, bool edits) {
  const std::int64_t rows = work.rows, slices = rows * work.parts;
  Ranges ranges(memory);
  ranges.take(work.extents, slices);
  if (by_rules) {
    ranges.take(work.slice_sums, slices);
    ranges.take(work.bin_weights, rows * kBins);
    ranges.take(work.bin_counts, rows * kBins);
    ranges.take(work.plans, rows);
    ranges.take(work.listed, rows);
    ranges.take(work.lists, rows * kMostListed);
    if (edits) ranges.take(work.edited, rows * work.columns);
  }
  return ranges.bytes();
}

// Enough slices to fill the device once, each long enough to be worth a block.
void cut_rows(Selection& work, int multiprocessors) {
  constexpr int kBlocksEach = 4, kLeastSlice = 4 * kSliceThreads, kMostParts = 64;
  const int wanted = std::clamp(kBlocksEach * multiprocessors / work.rows, 1, kMostParts);
  work.slice = round_up(std::max(ceil_div(work.columns, wanted), kLeastSlice), 4);
  work.parts = ceil_div(work.columns, work.slice);
}

// Weights of a row sum in 64 bits.
int weight_bits(int columns) {
  constexpr int kMostBits = 43;
  const int sum_bits = std::bit_width(static_cast<unsigned>(columns));
  return std::min(kMostBits, 63 - sum_bits);
}

}  // namespace

void select(const Stream& stream, const SelectArgs& args) {
  const View& logits = args.logits;
  BEV_CHECK(
      logits.dtype == Dtype::kF32 && logits.shape.ndim() == 2 && logits.shape[1] <= INT32_MAX / 2,
      ErrorKind::kInternal, "sampling: logits ", logits.shape, " of ", name_of(logits.dtype));
  if (logits.shape[0] == 0) return;
  BEV_CHECK(logits.shape[1] > 0, ErrorKind::kInternal, "sampling: logits ", logits.shape);
  const bool by_rules = !args.all_greedy;
  const bool edits = !args.counts.empty() || args.edits != nullptr;
  BEV_CHECK(args.counts.empty() ||
                (args.counts.dtype == Dtype::kI32 && args.counts.shape[1] >= logits.shape[1]),
            ErrorKind::kInternal, "sampling: counts ", args.counts.shape, " for logits ",
            logits.shape);
  CudaQueue& queue = queue_of(stream);
  Selection work{};
  work.logits = address<float>(logits);
  work.rules = args.rules;
  work.edits = args.edits;
  work.counts = static_cast<const std::int32_t*>(args.counts.data);
  work.counts_stride = args.counts.empty() ? 0 : args.counts.shape[1];
  work.tokens = args.tokens;
  work.status = args.status;
  work.rows = static_cast<int>(logits.shape[0]);
  work.columns = static_cast<int>(logits.shape[1]);
  work.bits = weight_bits(work.columns);
  cut_rows(work, queue.multiprocessors());
  lay_out(work, queue.scratch(lay_out(work, nullptr, by_rules, edits)), by_rules, edits);
  const auto slices = static_cast<unsigned>(std::int64_t{work.rows} * work.parts);
  auto* kernel = by_rules ? extent_kernel<true> : extent_kernel<false>;
  kernel<<<slices, kSliceThreads, 0, queue.stream()>>>(work);
  if (by_rules) {
    choose_by_rules(work, queue);
  } else {
    greedy_kernel<<<static_cast<unsigned>(ceil_div(work.rows, kThreads / kWarp)), kThreads, 0,
                    queue.stream()>>>(work);
  }
  check_launch("sampling");
}

}  // namespace bev::cuda
