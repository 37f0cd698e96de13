// Export pipeline: several threads read parameters ahead, the caller's thread writes tensors in
// order. Only a few parameters are in memory at any time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "models/families/hf_config.h"

namespace bev {

// Source of whole parameter values. Must be thread safe.
class ParamSource {
 public:
  virtual ~ParamSource() = default;
  // Stored dtype of one tensor of a parameter.
  virtual Dtype dtype(const ParamMapping& mapping, std::size_t part) const = 0;
  // Memory-mapped bytes of a tensor, if it is stored contiguously and in `dtype`; otherwise empty.
  virtual std::span<const std::byte> stored(const ParamMapping& mapping, std::size_t part,
                                            Dtype dtype) = 0;
  // Reads elements of the flattened parameter, converted to `dtype`.
  virtual void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) = 0;
};

// Source from a Hugging Face folder; the files must outlive it.
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

// Tensors to write for a model; without a dtype each one keeps the source's.
std::vector<ExportTensor> export_tensors(const WeightMap& map, const ParamSource& source,
                                         std::optional<Dtype> dtype);

// The same with the weights of linear layers as NF4 of this format, whose dtype is each tensor's.
// Experts stay as they are: transformers 5 keeps them in one parameter, which it does not quantise.
// Throws Error(kConfig) if one is f64, which bitsandbytes does not know.
std::vector<ExportTensor> nf4_export_tensors(const WeightMap& map,
                                             std::vector<ExportTensor> tensors,
                                             const Nf4Format& format);
// bitsandbytes' quantization_config of config.json for these tensors, with the names of the modules
// that stay as they are.
HfConfig nf4_config(std::span<const ExportTensor> tensors);

// Writes `tensors`, for which `writer` was created; `threads` threads read ahead.
void export_weights(const WeightMap& map, ParamSource& source,
                    std::span<const ExportTensor> tensors, WeightFilesWriter& writer,
                    std::size_t threads);

}  // namespace bev
