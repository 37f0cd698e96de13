// Regular expressions of the reference libraries in PCRE2's language.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

// Oniguruma with Ruby's syntax (tokenizer.json) and Rust's fancy-regex (tiktoken).
enum class RegexDialect : std::uint8_t { kOniguruma, kFancy };

// Classes of characters become ranges of code points, so that PCRE2's version of Unicode does not
// matter; `$`, `^`, \h and `{n,m}+` get the dialect's meaning. Error(kInput) naming the expression
// when it is broken.
std::string translate_regex(std::string_view pattern, RegexDialect dialect);

}  // namespace bev
