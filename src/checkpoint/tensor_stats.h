// What is in the tensors of checkpoints: statistics of one, and how two differ. Tensors are read a
// bounded part at a time, several at once.
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
  // Of what is finite; absent where nothing is.
  std::optional<double> min = {}, max = {};
  double norm = 0;
  std::string problem = {};  // not empty: why it cannot be read
};

// Of every tensor, in the order of the manifest.
std::vector<TensorStats> tensor_stats(CheckpointReader& reader, ThreadPool& pool);

struct TensorDifference {
  std::string name;
  std::int64_t differing = 0;  // elements; two NaNs are equal
  double max_difference = 0;   // of those that are finite on both sides
  double relative_norm = 0;    // norm(a - b) / max(norm(a), norm(b)), likewise
  std::string problem = {};    // not empty: what keeps them from being compared
};

// Of every tensor that is in one of the two, by name, unless they are equal.
std::vector<TensorDifference> tensor_differences(CheckpointReader& a, CheckpointReader& b,
                                                 ThreadPool& pool);

}  // namespace bev
