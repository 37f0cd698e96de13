// Converts softmax statistics (lse) between the cuDNN layout [batch, heads, queries] and our [T,
// heads].
#pragma once

#include <cstdint>

namespace bev {

class CudaQueue;

struct StatisticsLayout {
  std::int64_t batch = 0, heads = 0, queries = 0;
  std::int64_t step = 0;  // rows from the start of one sequence to the next
  std::int64_t numel() const { return batch * heads * queries; }
};

void statistics_to_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* from,
                        float* rows);
void statistics_from_rows(const CudaQueue& queue, const StatisticsLayout& layout, const float* rows,
                          float* to);

}  // namespace bev
