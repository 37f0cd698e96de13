// Bidirectional map between tokens and ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// Limit on ids in files, so that a hostile one cannot exhaust memory.
inline constexpr std::int64_t kMostTokenIds = std::int64_t{1} << 26;

class Vocabulary {
 public:
  Vocabulary();
  ~Vocabulary();
  Vocabulary(Vocabulary&&) noexcept;
  Vocabulary& operator=(Vocabulary&&) noexcept;

  // Throws Error(kInput) naming `source` if the id is out of range. The first id of a text and the
  // first text of an id win.
  void add(std::string text, std::int64_t id, std::string_view source);

  std::optional<std::int32_t> find(std::string_view text) const;
  // nullptr if there is no such id.
  const std::string* text(std::int32_t id) const;
  std::int32_t end_id() const;  // highest id plus one
  std::size_t size() const;     // number of add() calls, duplicates included
  bool empty() const { return size() == 0; }

 private:
  struct Index;
  std::unique_ptr<Index> index_;
};

}  // namespace bev
