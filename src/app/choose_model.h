// Chooses the model of a run from a Hugging Face folder, a preset, a family, a checkpoint and
// flags.
#pragma once

#include "app/run_config.h"

namespace bev {

// The model configuration comes from --hf-model, --preset, --family (its smallest preset) or flags,
// without these from the checkpoint of --load. Flags may override a preset, whose other sizes
// follow (models/families/follow_sizes.h), but not a folder.
void choose_model(RunConfig& run, const FieldList& fields, Options& options);

// A new model has the vocabulary of the tokenizer unless --vocab-size is given, and positions for
// --seq-length unless --max-position-embeddings is given; the vocabulary of a checkpoint to load
// goes before. Returns a line for each number of a preset that did not fit.
std::vector<std::string> fit_new_model(RunConfig& run, const Options& options);

// Chooses the pad token of a model that scores sequences, which end before it: that of a Hugging
// Face folder, or its end token if there is none.
void choose_pad_token(const std::string& folder, ModelConfig& model);

}  // namespace bev
