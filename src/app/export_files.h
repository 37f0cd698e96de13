// The files other than weights in an exported Hugging Face folder.
#pragma once

#include <string>
#include <vector>

#include "app/run_config.h"
#include "bridge/hf_model.h"

namespace bev {

// Returns config.json for weights in `dtype`, the tokenizer, and generation_config.json with the
// EOS token; for a run on conversations also their chat template and the token that ends a turn.
std::vector<ExportFile> export_files(const RunConfig& run, Dtype dtype);

// Makes `chosen` (see ChatTemplate::load; "": the tokenizer's own) the default template of the
// files, and adds the token that ends its turns to eos_token_id of config.json and
// generation_config.json, after `eod_id` (-1: none) where neither has one.
void set_chat_template(std::vector<ExportFile>& files, const std::string& tokenizer,
                       const std::string& chosen, std::int64_t eod_id);

// Warns if generation has no token to stop at when an answer ends.
void warn_of_endless_turns(const std::string& tokenizer, const std::string& chosen);

}  // namespace bev
