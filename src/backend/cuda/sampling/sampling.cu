// Token counts and the last tokens of sequences, and the table of sampling kernels.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/sampling/select.h"
#include "backend/cuda/tables.h"
#include "base/divide.h"
#include "kernels/sampling.h"

namespace bev {

namespace cuda {
namespace {

unsigned blocks_for(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kThreads)); }

__global__ void __launch_bounds__(kThreads)
    record_kernel(RecordTokensArgs args, std::int32_t* counts, std::int64_t columns) {
  const std::int64_t i = own_pack();
  if (i >= args.n || args.slots[i] < 0) return;
  const std::int32_t token = args.tokens[i];
  args.last[args.slots[i]] = token;
  const std::int32_t row = counts == nullptr ? -1 : args.rules[i].counts_row;
  if (row >= 0 && token >= 0 && token < columns) atomicAdd(&counts[row * columns + token], 1);
}

__global__ void __launch_bounds__(kThreads) resolve_kernel(ResolveTokensArgs args) {
  const std::int64_t i = own_pack();
  if (i < args.n && args.slots[i] >= 0) args.tokens[i] = args.last[args.slots[i]];
}

// A thread per token of the prompt, then of the output. Tokens outside the vocabulary are skipped.
__global__ void __launch_bounds__(kThreads)
    count_kernel(CountTokensArgs args, std::int32_t* counts, std::int64_t columns) {
  const std::int64_t i = own_pack();
  if (i >= args.prompt_tokens + args.output_tokens) return;
  const bool in_prompt = i < args.prompt_tokens;
  const std::int32_t token = in_prompt ? args.prompt[i] : args.output[i - args.prompt_tokens];
  if (token < 0 || token >= columns) return;
  if (in_prompt) {
    atomicOr(&counts[token], kInPrompt);
  } else {
    atomicAdd(&counts[token], 1);
  }
}

void record(const Stream& stream, const RecordTokensArgs& args) {
  if (args.n == 0) return;
  const bool counted = !args.counts.empty();
  record_kernel<<<blocks_for(args.n), kThreads, 0, queue_of(stream).stream()>>>(
      args, static_cast<std::int32_t*>(args.counts.data), counted ? args.counts.shape[1] : 0);
  check_launch("record tokens");
}

void resolve(const Stream& stream, const ResolveTokensArgs& args) {
  if (args.n == 0) return;
  resolve_kernel<<<blocks_for(args.n), kThreads, 0, queue_of(stream).stream()>>>(args);
  check_launch("resolve tokens");
}

void count(const Stream& stream, const CountTokensArgs& args) {
  const std::int64_t columns = args.counts.shape[1];
  BEV_CHECK(args.counts.dtype == Dtype::kI32 && args.row >= 0 && args.row < args.counts.shape[0],
            ErrorKind::kInternal, "count tokens: row ", args.row, " of ", args.counts.shape);
  const cudaStream_t queue = queue_of(stream).stream();
  std::int32_t* counts = static_cast<std::int32_t*>(args.counts.data) + args.row * columns;
  check_cuda(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(columns) * sizeof(*counts), queue),
             "count tokens");
  const std::int64_t tokens = args.prompt_tokens + args.output_tokens;
  if (tokens == 0) return;
  count_kernel<<<blocks_for(tokens), kThreads, 0, queue>>>(args, counts, columns);
  check_launch("count tokens");
}

}  // namespace
}  // namespace cuda

SamplingKernels cuda_table(Family<SamplingKernels>) {
  return {.select = cuda::select,
          .top_logits = cuda::top_logits,
          .record = cuda::record,
          .resolve = cuda::resolve,
          .count = cuda::count};
}

}  // namespace bev
