// Reads tokenizer.json.
#pragma once

#include <memory>
#include <string_view>

#include "tokenizer/json_value.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace bev {

// Error(kInput) naming the file when something in it is broken or not known.
PipelineParts read_tokenizer_json(const JsonValue& root);
// The same with the normalizer, pre_tokenizer and decoder of another object.
PipelineParts read_tokenizer_json(const JsonValue& root, const JsonValue& pipeline);

}  // namespace bev
