// Export of a trained byte-level BPE as a Hugging Face folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/training/bpe_trainer.h"

namespace bev {

// pre_tokenizer member of tokenizer.json for a name (llama3, gpt2, cl100k, o200k, qwen2) or a
// regular expression, whose matches and the text between them are the words. Throws Error(kConfig)
// if it is neither.
std::string byte_level_pre_tokenizer(std::string_view pattern);

// Content of tokenizer.json. Special tokens have the first ids.
std::string trained_tokenizer_json(const TrainedBpe& trained, std::string_view pre_tokenizer,
                                   const std::vector<std::string>& special_tokens);

// Writes tokenizer.json and tokenizer_config.json; the first special token is the end-of-document
// token.
void write_trained_tokenizer(const std::string& folder, const TrainedBpe& trained,
                             const std::string& pre_tokenizer,
                             const std::vector<std::string>& special_tokens);

}  // namespace bev
