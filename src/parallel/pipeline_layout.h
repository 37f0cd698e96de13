// Which layers each pipeline stage holds, and on which rank it lies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "parallel/config.h"
#include "parallel/schedule.h"

namespace bev {

struct PipelineLayout {
  PipelineShape shape;
  std::vector<StageRange> stages;  // in the model's order

  const StageRange& stage_at(std::int64_t rank, std::int64_t chunk) const {
    return stages[static_cast<std::size_t>(shape.stage_at(rank, chunk))];
  }
  // Pipeline ranks that hold the word embeddings, in their order.
  std::vector<std::int64_t> embedding_ranks(const ModelConfig& model) const;
  bool holds_head(std::int64_t rank) const {
    return shape.place_of(shape.stages() - 1).rank == rank;
  }
};

// Error(kConfig) with all problems where the settings do not fit together.
PipelineLayout pipeline_layout(std::int64_t layers, const ParallelConfig& config);

// What is wrong with the pipeline's settings for a model of so many layers, each naming a flag and
// what would work. `micro_batches`: the counts that training iterations will have, where known.
std::vector<std::string> pipeline_problems(std::int64_t layers, const ParallelConfig& config,
                                           std::span<const std::int64_t> micro_batches = {});

// The layout to generate with: the same ranks with one plain stage each; context-parallel ranks
// become data-parallel ones, and tokens, which may be fewer than ranks, are not cut. Resolved or
// not.
ParallelConfig inference_layout(ParallelConfig config);

}  // namespace bev
