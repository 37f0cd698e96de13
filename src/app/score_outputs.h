// score --outputs: outputs of a model in a safetensors file, padded with zeros.
#pragma once

#include <string>
#include <vector>

#include "data/batch.h"
#include "models/config.h"
#include "parallel/rank_model.h"

namespace bev {

// What is wrong with the names of outputs, or with the file for them; empty if nothing is.
std::vector<std::string> output_problems(const ModelConfig& model,
                                         const std::vector<std::string>& names,
                                         const std::string& file);

// Computes the outputs and writes them in fp32, or in fp64 if the model is. Collective.
void write_outputs(RankModel& model, const std::vector<std::string>& names, const std::string& file,
                   const GlobalBatch& batch, std::int64_t micro_batch_size);

}  // namespace bev
