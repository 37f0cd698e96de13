// Megatron's text for the stages of a pipeline: "Et*3|(tt|)*29,L".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace bev {

// E embedding, t layer, m layer of multi-token prediction, L head and loss, | next stage; x*n and
// (..)*n repeat, commas mean nothing. Stages may be empty. Appends what is wrong with the text to
// `problems`.
std::vector<StageRange> parse_pipeline_text(std::string_view text, std::int64_t layers,
                                            std::vector<std::string>& problems);

// Layers that the text has; 0 where it cannot be read.
std::int64_t layers_of_text(std::string_view text);

// Whether its layers of multi-token prediction are those of the model; a text may leave them out.
std::vector<std::string> future_problems(std::string_view text, std::int64_t depths);

}  // namespace bev
