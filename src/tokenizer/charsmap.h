// SentencePiece's precompiled character map: a trie of texts to replace and their replacements.
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
  // From the bytes of the file; Error(kInput), naming `source`, when they are broken. Nothing in
  // them is trusted later either: every place is checked when it is used.
  Charsmap(std::string_view bytes, std::string_view source);

  bool empty() const { return units_.empty(); }

  struct Rule {
    std::size_t bytes;  // of the text it replaces
    std::string_view replacement;
  };
  // The longest rule for the start of the text, or the shortest.
  std::optional<Rule> longest(std::string_view text) const { return find(text, true); }
  std::optional<Rule> shortest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Rule> find(std::string_view text, bool longest) const;

  std::vector<std::uint32_t> units_;  // a Darts double array
  std::string replacements_;          // each ends with a zero byte
};

}  // namespace bev
