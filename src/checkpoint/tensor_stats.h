// Statistics of checkpoint tensors and their differences. Tensors are read in bounded chunks,
// several in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/reader.h"

namespace bev {

struct TensorStats {
  std::string name;
  std::int64_t nans = 0, infinities = 0, zeros = 0;
  // Extrema of the finite elements; nullopt if there are none.
  std::optional<double> min = {}, max = {};
  double norm = 0;
  std::string problem = {};  // non-empty: why it cannot be read
};

// One entry per tensor, in the order of the manifest.
std::vector<TensorStats> tensor_stats(CheckpointReader& reader, ThreadPool& pool);

struct TensorDifference {
  std::string name;
  std::int64_t differing = 0;  // number of elements; two NaNs are equal
  double max_difference = 0;   // over elements that are finite in both
  double relative_norm = 0;    // norm(a - b) / max(norm(a), norm(b)), likewise
  std::string problem = {};    // non-empty: why they cannot be compared
};

// One entry per tensor that is in either checkpoint, by name, unless it is equal in both.
std::vector<TensorDifference> tensor_differences(CheckpointReader& a, CheckpointReader& b,
                                                 ThreadPool& pool);

}  // namespace bev
