#include "infer/answer_text.h"

#include <algorithm>
#include <utility>

#include "infer/stop_texts.h"

namespace bev {

AnswerText::AnswerText(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       std::vector<std::string> stop)
    : stream_(tokenizer, prompt), stop_(std::move(stop)) {}

std::string AnswerText::add(std::int32_t token, bool may_stop) {
  held_ += stream_.add(token);
  // The sequence ends with this token.
  if (may_stop && find_stop_text(held_, stop_) != std::string::npos) return {};
  std::size_t settled = settled_length(held_, stop_);
  std::string out = held_.substr(0, settled);
  held_.erase(0, settled);
  return out;
}

std::string AnswerText::finish(const std::string& stop_text) {
  if (stop_text.empty()) held_ += stream_.finish();
  std::size_t end = stop_text.empty() ? std::string::npos : held_.find(stop_text);
  held_.resize(std::min(end, held_.size()));
  return std::exchange(held_, {});
}

}  // namespace bev
