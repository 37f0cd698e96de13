// Weights of a checkpoint as whole parameters, for export.
#pragma once

#include "bridge/weight_export.h"
#include "checkpoint/reader.h"

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

}  // namespace bev
