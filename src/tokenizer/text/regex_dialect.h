// Translation of the reference libraries' regular expressions to PCRE2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

// Oniguruma with Ruby syntax (tokenizer.json) and Rust's fancy-regex (tiktoken).
enum class RegexDialect : std::uint8_t { kOniguruma, kFancy };

// Character classes become ranges of code points, so that PCRE2's Unicode version does not matter;
// `$`, `^`, \h and `{n,m}+` get the dialect's meaning. Throws Error(kInput) with the pattern if it
// is invalid.
std::string translate_regex(std::string_view pattern, RegexDialect dialect);

}  // namespace bev
