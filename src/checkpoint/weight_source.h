// Weights of a checkpoint as whole parameters, for export, and in a model that does not train.
#pragma once

#include "bridge/weight_export.h"
#include "checkpoint/reader.h"
#include "parallel/engine.h"

namespace bev {

class CheckpointWeights final : public ParamSource {
 public:
  explicit CheckpointWeights(CheckpointReader& reader) : reader_(reader) {}

  // Throws Error(kInput) that lists weights missing on either side or of another shape.
  void check(std::span<const ParamMapping> params) const;
  Dtype dtype(const ParamMapping& mapping, std::size_t part) const override;
  std::span<const std::byte> stored(const ParamMapping& mapping, std::size_t part,
                                    Dtype dtype) override;
  // In another dtype than the model's, reads the master weights, which were never rounded.
  void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) override;

 private:
  CheckpointReader& reader_;
};

// Loads the weights into a model of the same configuration; every rank reads only its shard.
void load_checkpoint_weights(RankModel& model, CheckpointReader& reader);

}  // namespace bev
