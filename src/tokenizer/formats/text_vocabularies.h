// Vocabularies of older models in text files: GPT-2's vocab.json with merges.txt, BERT's vocab.txt.
#pragma once

#include <string>

#include "tokenizer/pipeline_tokenizer.h"

namespace bev {

// Byte-level BPE with GPT-2's pre-tokenizer. Throws Error(kInput) naming the file.
PipelineParts read_gpt2_files(const std::string& vocab, const std::string& merges);

// WordPiece with BERT's normalizer; one token per line.
PipelineParts read_bert_vocabulary(const std::string& path, bool lower_case);

}  // namespace bev
