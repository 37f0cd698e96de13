// Assignment of layers to pipeline stages, and of stages to pipeline ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "parallel/config.h"
#include "parallel/pipeline/schedule.h"

namespace bev {

struct PipelineLayout {
  PipelineShape shape;
  std::vector<StageRange> stages;  // in the model's order

  const StageRange& stage_at(std::int64_t rank, std::int64_t chunk) const {
    return stages[static_cast<std::size_t>(shape.stage_at(rank, chunk))];
  }
  // Pipeline ranks that hold the word embeddings, in ascending order.
  std::vector<std::int64_t> embedding_ranks(const ModelConfig& model) const;
  bool holds_head(std::int64_t rank) const {
    return shape.place_of(shape.stages() - 1).rank == rank;
  }
};

// Throws Error(kConfig) with all problems if the settings contradict each other.
PipelineLayout pipeline_layout(std::int64_t layers, const ParallelConfig& config);

// Problems of the pipeline settings for a model of `layers` layers; each names a flag and a value
// that works. `micro_batches`: the counts of the training iterations, if known.
std::vector<std::string> pipeline_problems(std::int64_t layers, const ParallelConfig& config,
                                           std::span<const std::int64_t> micro_batches = {});

// The layout for generation: the same ranks with one stage each; context-parallel ranks become
// data-parallel ranks, and sequence parallelism is off because there may be fewer tokens than
// ranks. `config` may be resolved or not.
ParallelConfig inference_layout(ParallelConfig config);

}  // namespace bev
