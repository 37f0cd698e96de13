// Tokens and their ids, both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// Ids from outside are below this, so that a hostile one cannot ask for all memory.
inline constexpr std::int64_t kMostTokenIds = std::int64_t{1} << 26;

class Vocabulary {
 public:
  Vocabulary();
  ~Vocabulary();
  Vocabulary(Vocabulary&&) noexcept;
  Vocabulary& operator=(Vocabulary&&) noexcept;

  // Error(kInput), naming `source`, when the id is out of range. The first id of a text and the
  // first text of an id are kept.
  void add(std::string text, std::int64_t id, std::string_view source);

  std::optional<std::int32_t> find(std::string_view text) const;
  // nullptr when there is no such id.
  const std::string* text(std::int32_t id) const;
  std::int32_t end_id() const;  // one after the highest
  std::size_t size() const;     // texts that were added, each as often as it was
  bool empty() const { return size() == 0; }

 private:
  struct Index;
  std::unique_ptr<Index> index_;
};

}  // namespace bev
