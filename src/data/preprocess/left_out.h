// Count of the entries of folders that are not read, by reason.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace bev {

enum class LeftOutReason : std::uint8_t {
  kHidden,   // its name begins with a dot; a folder counts once
  kBinary,   // not text, or text that is not UTF-8 and has no known ending
  kUtf16,    // text in UTF-16 or UTF-32
  kEmpty,    // no bytes
  kPlain,    // plain text where records are wanted
  kLink,     // a link to a folder, or to nothing
  kSpecial,  // a pipe, socket or device
};
inline constexpr std::size_t kLeftOutReasons = 7;

class LeftOut {
 public:
  void add(LeftOutReason reason, const std::string& name);
  std::int64_t count(LeftOutReason reason) const;
  bool empty() const;
  // "2 hidden (.env, .git), 1 binary (logo.png)"; "" if nothing was left out.
  std::string text() const;

 private:
  struct Group {
    std::int64_t count = 0;
    std::vector<std::string> first;  // a few names
  };
  std::array<Group, kLeftOutReasons> groups_;
};

}  // namespace bev
