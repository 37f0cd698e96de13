// tiktoken's rank files: one token in base64 and its rank on each line.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace bev {

// `pattern` names the regular expression (see named_pattern) and the special tokens that go with
// it, which are there when the file has as many ranks as the published one. Error(kInput) naming
// `source` when the file or the name is broken.
std::unique_ptr<Tokenizer> read_tiktoken_file(std::string_view text, std::string_view pattern,
                                              const std::string& source);

}  // namespace bev
