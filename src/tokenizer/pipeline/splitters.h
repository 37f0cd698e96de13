// Hand-written equivalents of the pre-tokenizer regular expressions of byte-level BPE. Each returns
// the matches of its expression, which cover the whole text. tests/tokenizer compares them with
// PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tokenizer/text/regex_dialect.h"

namespace bev {

// gpt2, cl100k (also llama3 and qwen2), o200k, and the last of deepseek's expressions.
enum class SplitterFamily : std::uint8_t { kGpt2, kCl100k, kO200k, kDeepseek };

struct Splitter {
  SplitterFamily family = SplitterFamily::kGpt2;
  std::uint32_t most_digits = 3;    // maximum digits of a number; not for gpt2 and deepseek
  bool whole_space_at_end = false;  // \s+$ first: trailing white space is one word

  // End of the word that starts at `at` < text.size() of valid UTF-8.
  std::size_t word_end(std::string_view text, std::size_t at) const;
};

// Splitter equivalent to a regular expression, if there is one.
std::optional<Splitter> find_splitter(std::string_view pattern, RegexDialect dialect);

// tiktoken's expression by name (gpt2, r50k_base, p50k_base, cl100k_base, o200k_base, llama3, qwen2
// ...), or nullopt.
std::optional<std::string_view> named_pattern(std::string_view name);

}  // namespace bev
