#include "bridge/nf4_load.h"

#include <memory>

#include "base/error.h"
#include "bridge/hf_model.h"
#include "models/families/param_mapping.h"
#include "parallel/store/nf4_weights.h"

namespace bev {

namespace {

// True if a tensor of the parameter is quantised as the whole parameter in our order.
bool in_our_order(const ParamMapping& mapping) {
  return transposed(mapping) || has_columns(mapping);
}

}  // namespace

Nf4Tensor quantize_part(const ParamMapping& mapping, ParamSource& source, std::size_t part,
                        const Nf4Format& format) {
  const HfTensor& tensor = mapping.tensors[part];
  auto allocate = [&](const Shape& shape) {
    std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(format.dtype);
    return std::make_unique_for_overwrite<std::byte[]>(bytes);
  };
  const Shape& shape = in_our_order(mapping) ? mapping.shape : tensor.shape;
  auto values = allocate(shape);
  std::optional<Range> elements = elements_of_part(mapping, part);
  if (in_our_order(mapping)) elements = Range{0, shape.numel()};
  if (elements) {
    source.read(mapping, *elements, format.dtype, values.get());
  } else {
    auto whole = allocate(mapping.shape);
    source.read(mapping, {0, mapping.shape.numel()}, format.dtype, whole.get());
    split_param(mapping, part, whole.get(), format.dtype, format.dtype, values.get());
  }
  return quantize_tensor(tensor.name, shape, values.get(), format);
}

void load_nf4(RankModel& model, const Param& param, const ParamMapping& mapping,
              const WeightFiles& files) {
  Nf4Part kept(param, part_of(param.split, model.mesh()));
  WeightFilesSource source(files);
  for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
    auto add = [&](std::span<const std::uint8_t> codes, const Nf4Scales& scales) {
      for (const PartRun& run : part_runs(mapping, part)) {
        kept.add({codes, &scales, run.tensor_begin, run.param_begin, run.count});
      }
    };
    std::unique_ptr<StoredNf4> stored = open_nf4_part(mapping, part, files);
    if (stored && stored->format() == param.nf4) {
      add(stored->codes(), stored->scales());
    } else {
      Nf4Tensor made = quantize_part(mapping, source, part, param.nf4);
      add(made.codes, made.scales);
    }
  }
  model.store().set_nf4(param, kept.bytes());
}

bool stores_nf4(const std::string& folder) {
  std::optional<HfConfig> packing = read_config_json(folder).object("quantization_config");
  return packing && packing->text("quant_method", "") == "bitsandbytes";
}

std::optional<Nf4Format> folder_nf4_format(const ModelConfig& config, const std::string& folder) {
  WeightFiles files(folder);
  WeightMap map(config);
  std::optional<Nf4Format> format;
  for (const ParamMapping& mapping : map.params()) {
    for (std::size_t part = 0; mapping.linear && part < mapping.tensors.size(); ++part) {
      std::unique_ptr<StoredNf4> stored = open_nf4_part(mapping, part, files);
      if (!stored) continue;
      if (!format) format = stored->format();
      BEV_CHECK(*format == stored->format(), ErrorKind::kInput, folder, ": ",
                mapping.tensors[part].name,
                " is in another NF4 format than the tensors before it; --quantize-base none reads "
                "all of them as floats");
    }
  }
  return format;
}

Dtype folder_linear_dtype(const ModelConfig& config, const std::string& folder) {
  WeightFiles files(folder);
  WeightMap map(config);
  for (const ParamMapping& mapping : map.params()) {
    if (!mapping.linear) continue;
    Dtype dtype = dtype_of_part(mapping, 0, files);
    return dtype == Dtype::kF64 ? Dtype::kF32 : dtype;
  }
  return Dtype::kF32;
}

}  // namespace bev
