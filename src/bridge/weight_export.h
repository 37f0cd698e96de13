// Weights into a model folder: parameters are read ahead by several threads, tensors are written in
// order by the caller's. At any time only a few parameters are in memory.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "bridge/weight_files.h"
#include "bridge/weight_map.h"

namespace bev {

// Where the values of whole parameters are. Several threads ask at once.
class ParamSource {
 public:
  virtual ~ParamSource() = default;
  // What one tensor of a parameter is kept in.
  virtual Dtype dtype(const ParamMapping& mapping, std::size_t part) const = 0;
  // A tensor where it lies, mapped, if it lies in one piece and in `dtype`; otherwise empty.
  virtual std::span<const std::byte> stored(const ParamMapping& mapping, std::size_t part,
                                            Dtype dtype) = 0;
  // Elements of the flattened parameter, in `dtype`.
  virtual void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) = 0;
};

// A Hugging Face folder as such a source; both must outlive it.
class WeightFilesSource final : public ParamSource {
 public:
  explicit WeightFilesSource(const WeightFiles& files) : files_(files) {}
  Dtype dtype(const ParamMapping& mapping, std::size_t part) const override;
  std::span<const std::byte> stored(const ParamMapping& mapping, std::size_t part,
                                    Dtype dtype) override;
  void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) override;

 private:
  const WeightFiles& files_;
};

// What to write for a model; without a dtype each tensor keeps that of the source.
std::vector<ExportTensor> export_tensors(const WeightMap& map, const ParamSource& source,
                                         std::optional<Dtype> dtype);

// Writes the tensors, which are those that `writer` was made for; so many threads read ahead.
void export_weights(const WeightMap& map, ParamSource& source,
                    std::span<const ExportTensor> tensors, WeightFilesWriter& writer,
                    std::size_t threads);

}  // namespace bev
