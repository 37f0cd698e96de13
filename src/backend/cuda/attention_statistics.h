// Softmax statistics between cuDNN's layout [batch, heads, queries] and our rows [T, heads].
#pragma once

#include <cstdint>

namespace bev {

class CudaQueue;

struct StatisticsLayout {
  std::int64_t batch = 0, heads = 0, queries = 0;
  std::int64_t step = 0;  // rows from one sequence's first to the next one's
  std::int64_t numel() const { return batch * heads * queries; }
};

void statistics_to_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* from,
                        float* rows);
void statistics_from_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* rows,
                          float* to);

}  // namespace bev
