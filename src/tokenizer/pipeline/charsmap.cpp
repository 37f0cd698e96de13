#include "tokenizer/pipeline/charsmap.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace bev {

static_assert(std::endian::native == std::endian::little,
              "the file's numbers are read as they are");

Charsmap::Charsmap(std::string_view bytes, std::string_view source) {
  std::uint32_t size = 0;
  BEV_CHECK(bytes.size() > sizeof(size), ErrorKind::kInput, source, ": the character map has only ",
            bytes.size(), " bytes");
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  BEV_CHECK(size < bytes.size() && size % sizeof(std::uint32_t) == 0 && size > 0, ErrorKind::kInput,
            source, ": the character map's trie of ", size, " bytes does not fit into ",
            bytes.size());
  units_.resize(size / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data(), size);
  replacements_ = bytes.substr(size);
  BEV_CHECK(replacements_.back() == '\0', ErrorKind::kInput, source,
            ": the character map's last replacement has no end");
}

// Darts unit: a label, a flag for a value, and the offset to the children.
std::optional<Charsmap::Rule> Charsmap::find(std::string_view text, bool longest) const {
  if (units_.empty()) return std::nullopt;
  auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  std::optional<Rule> best;
  std::size_t at = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;  // the trie's keys have no zero byte
    at ^= byte;
    if (at >= units_.size()) break;
    std::uint32_t unit = units_[at];
    if ((unit & (1u << 31 | 0xff)) != byte) break;
    at ^= offset(unit);
    if (at >= units_.size()) break;
    if ((unit >> 8 & 1) == 0) continue;
    std::size_t value = units_[at] & 0x7fffffff;
    if (value >= replacements_.size()) break;
    best = Rule{i + 1, replacements_.c_str() + value};
    if (!longest) break;
  }
  return best;
}

}  // namespace bev
