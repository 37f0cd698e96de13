#include "infer/stop_texts.h"

#include <algorithm>
#include <utility>

namespace bev {

StopTexts::StopTexts(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                     std::vector<std::string> texts)
    : stream_(tokenizer, prompt), texts_(std::move(texts)) {}

std::optional<std::string> StopTexts::add(std::int32_t token, bool may_stop) {
  end_ += stream_.add(token);
  std::size_t at = may_stop ? find_stop_text(end_, texts_) : std::string::npos;
  if (at == std::string::npos) {
    end_.erase(0, settled_length(end_, texts_));
    return std::nullopt;
  }
  std::string found;
  for (const std::string& text : texts_) {
    if (end_.compare(at, text.size(), text) == 0 && text.size() > found.size()) found = text;
  }
  return found;
}

std::size_t find_stop_text(const std::string& text, std::span<const std::string> texts) {
  std::size_t first = std::string::npos;
  for (const std::string& stop : texts) first = std::min(first, text.find(stop));
  return first;
}

std::size_t settled_length(const std::string& text, std::span<const std::string> texts) {
  std::size_t open = 0;  // longest end of the text that begins a stop text
  for (const std::string& stop : texts) {
    for (std::size_t size = std::min(stop.size() - 1, text.size()); size > open; --size) {
      if (text.compare(text.size() - size, size, stop, 0, size) == 0) open = size;
    }
  }
  return text.size() - open;
}

}  // namespace bev
