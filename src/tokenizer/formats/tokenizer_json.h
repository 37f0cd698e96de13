// Loader of tokenizer.json.
#pragma once

#include <memory>
#include <string_view>

#include "tokenizer/formats/json_value.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace bev {

// Throws Error(kInput) naming the file if something in it is invalid or unknown.
PipelineParts read_tokenizer_json(const JsonValue& root);
// The same with the normalizer, pre_tokenizer and decoder of `pipeline`.
PipelineParts read_tokenizer_json(const JsonValue& root, const JsonValue& pipeline);

}  // namespace bev
