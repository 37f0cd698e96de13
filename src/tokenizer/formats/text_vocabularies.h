// Vocabularies of older models in text files: GPT-2's vocab.json with merges.txt, BERT's vocab.txt.
#pragma once

#include <optional>
#include <string>

#include "tokenizer/pipeline_tokenizer.h"

namespace bev {

// The two files of a path "VOCAB+MERGES"; nullopt if it is not one of two files that exist.
struct Gpt2Files {
  std::string vocab, merges;
};
std::optional<Gpt2Files> find_gpt2_files(const std::string& path);

// Byte-level BPE with GPT-2's pre-tokenizer. Throws Error(kInput) naming the file.
PipelineParts read_gpt2_files(const std::string& vocab, const std::string& merges);

// WordPiece with BERT's normalizer; one token per line.
PipelineParts read_bert_vocabulary(const std::string& path, bool lower_case);

}  // namespace bev
