// Softmax statistics (lse) between the layout of cuDNN and ours.
#include "backend/cuda/attention/attention_statistics.h"
#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"

namespace bev {

namespace {

constexpr int kThreads = 256;

// Memory bound: 8 bytes of traffic per element, and one element per query and head.
template <bool kToRows>
__global__ void statistics_kernel(StatisticsLayout layout, const float* from, float* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= layout.batch * layout.heads * layout.queries) return;
  const std::int64_t head = i % layout.heads, query = i / layout.heads % layout.queries;
  const std::int64_t sequence = i / (layout.heads * layout.queries);
  const std::int64_t row = (sequence * layout.step + query) * layout.heads + head;
  const std::int64_t packed = (sequence * layout.heads + head) * layout.queries + query;
  to[kToRows ? row : packed] = from[kToRows ? packed : row];
}

template <bool kToRows>
void launch(const CudaQueue& queue, const StatisticsLayout& layout, const float* from, float* to) {
  const auto blocks = static_cast<unsigned>(ceil_div(layout.numel(), kThreads));
  statistics_kernel<kToRows><<<blocks, kThreads, 0, queue.stream()>>>(layout, from, to);
  check_launch("attention's statistics");
}

}  // namespace

void statistics_to_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* from,
                        float* rows) {
  launch<true>(queue, layout, from, rows);
}

void statistics_from_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* rows,
                          float* to) {
  launch<false>(queue, layout, rows, to);
}

}  // namespace bev
