// What a folder of sentence-transformers says about the vectors of its model.
#pragma once

#include <string>

#include "infer/embedding.h"
#include "models/config.h"

namespace bev {

// The pooling of 1_Pooling/config.json; without the file that of the model: the first token of
// encoders, else the last. Throws Error(kInput) naming a kind of pooling that is not supported.
// folder: "" for none.
Pooling default_pooling(const std::string& folder, const ModelConfig& model);

}  // namespace bev
