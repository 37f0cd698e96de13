// SentencePiece's precompiled_charsmap (normalizer): a double-array trie of texts and their
// replacements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class Charsmap {
 public:
  Charsmap() = default;
  // Parses the bytes of the file; throws Error(kInput) naming `source` if they are malformed. Every
  // offset is also checked when it is used.
  Charsmap(std::string_view bytes, std::string_view source);

  bool empty() const { return units_.empty(); }

  struct Rule {
    std::size_t bytes;  // length of the replaced text
    std::string_view replacement;
  };
  // Longest, or shortest, rule that matches a prefix of the text.
  std::optional<Rule> longest(std::string_view text) const { return find(text, true); }
  std::optional<Rule> shortest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Rule> find(std::string_view text, bool longest) const;

  std::vector<std::uint32_t> units_;  // Darts double array
  std::string replacements_;          // zero-terminated strings
};

}  // namespace bev
