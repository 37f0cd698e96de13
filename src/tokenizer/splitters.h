// Hand-made versions of the regular expressions that cut text into words for byte-level BPE. Each
// gives the matches of its expression, which cover the whole text. tests/tokenizer compares them
// with PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tokenizer/regex_dialect.h"

namespace bev {

// gpt2, cl100k (also llama3 and qwen2), o200k and the last of deepseek's expressions.
enum class SplitterFamily : std::uint8_t { kGpt2, kCl100k, kO200k, kDeepseek };

struct Splitter {
  SplitterFamily family = SplitterFamily::kGpt2;
  std::uint32_t most_digits = 3;    // of a number; not for gpt2 and deepseek
  bool whole_space_at_end = false;  // spaces at the end of the text stay together, line ends or not

  // The end of the word that starts at `at` of a valid text; at < text.size().
  std::size_t word_end(std::string_view text, std::size_t at) const;
};

// The splitter that equals a regular expression, if there is one.
std::optional<Splitter> find_splitter(std::string_view pattern, RegexDialect dialect);

// tiktoken's expression for a name (gpt2, r50k_base, p50k_base, cl100k_base, o200k_base, llama3,
// qwen2 ...), or none.
std::optional<std::string_view> named_pattern(std::string_view name);

}  // namespace bev
