// Parser of Megatron's --pipeline-model-parallel-layout: "Et*3|(tt|)*29,L".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace bev {

// E embedding, t transformer layer, m MTP layer, L head and loss,
// next stage; x*n and (..)*n repeat, commas are ignored. Stages may be empty. Appends errors in the
// text to `problems`.
std::vector<StageRange> parse_pipeline_text(std::string_view text, std::int64_t layers,
                                            std::vector<std::string>& problems);

// Number of transformer layers in the text; 0 if it cannot be parsed.
std::int64_t layers_of_text(std::string_view text);

// Problems if the MTP layers of the text are not those of the model; a text may omit them.
std::vector<std::string> mtp_problems(std::string_view text, std::int64_t depths);

}  // namespace bev
