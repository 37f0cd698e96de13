// tiktoken rank files: one base64 token and its rank per line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace bev {

// `pattern` names the regular expression (see named_pattern) and its special tokens, which are
// added if the file has as many ranks as the published one. Throws Error(kInput) naming `source` if
// the file is malformed or the name is unknown.
std::unique_ptr<Tokenizer> read_tiktoken_file(std::string_view text, std::string_view pattern,
                                              const std::string& source);

}  // namespace bev
