// Weights that are kept in NF4: from a folder that has them so, or quantised while they are read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bridge/nf4_tensor.h"
#include "bridge/weight_export.h"
#include "bridge/weight_map.h"
#include "parallel/rank_model.h"

namespace bev {

// One tensor of a parameter, quantised. Weights of Conv1D modules, and experts in the layout of
// bridge/expert_columns.h, are quantised in our order.
Nf4Tensor quantize_part(const ParamMapping& mapping, ParamSource& source, std::size_t part,
                        const Nf4Format& format);

// Reads a parameter in NF4: the codes and scales of the files if they are in its format, other
// values quantised.
void load_nf4(RankModel& model, const Param& param, const ParamMapping& mapping,
              const WeightFiles& files);

// Whether config.json of the folder says that bitsandbytes quantised it.
bool stores_nf4(const std::string& folder);
// Format of the linear layers' weights in NF4 of a folder; nullopt if it has none. Throws
// Error(kInput) if they are of several formats.
std::optional<Nf4Format> folder_nf4_format(const ModelConfig& config, const std::string& folder);
// Dtype that the weights of a folder's linear layers have, or stand for.
Dtype folder_linear_dtype(const ModelConfig& config, const std::string& folder);

}  // namespace bev
