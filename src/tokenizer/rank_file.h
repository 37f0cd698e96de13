// Rank files of tiktoken with what is said about them elsewhere: in flags, in tokenizer_config.json
// and in their names.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tokenizer/tokenizer.h"

namespace bev {

struct RankFile {
  std::string path;
  std::string pattern;  // that of "FILE:PATTERN", or ""
};

// Rank files have lines of base64; a SentencePiece model is binary.
bool is_rank_file(const std::string& path);

// The rank file that a --tokenizer means: a file, "FILE:PATTERN", or the first one of a folder.
std::optional<RankFile> find_rank_file(const std::string& tokenizer);

std::unique_ptr<Tokenizer> open_rank_file(const RankFile& file, const TiktokenOptions& tiktoken);

}  // namespace bev
