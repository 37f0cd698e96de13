// tiktoken rank files: one base64 token and its rank per line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Canonical name of a pattern ("cl100k" is "cl100k_base"), or the regular expression itself. Throws
// Error(kInput) naming `source` if it is neither a known name nor looks like an expression.
std::string canonical_pattern(std::string_view pattern, const std::string& source);

// What the file does not say.
struct RankFileSettings {
  std::string pattern;  // a name or a regular expression
  // Absent: those of the named pattern, if the file has as many ranks as the published one.
  std::optional<std::vector<AddedToken>> special_tokens;
  std::optional<std::string> eos_token;  // absent: a usual name
};

// Special tokens of a JSON file: {"token": id, ...}, or a list of tokens that follow `ranks` ids.
// Throws Error(kInput) naming it if an id is a rank's, out of range or given twice.
std::vector<AddedToken> read_special_tokens(const std::string& path, std::string_view rank_file);

// Throws Error(kInput) naming `source` if the file is malformed or the pattern is unknown.
std::unique_ptr<Tokenizer> read_tiktoken_file(std::string_view text,
                                              const RankFileSettings& settings,
                                              const std::string& source);

}  // namespace bev
