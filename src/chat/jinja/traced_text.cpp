#include "chat/jinja/traced_text.h"

#include <algorithm>

namespace bev::jinja {

TracedText::TracedText(std::string text, TextOrigin origin) : text_(std::move(text)) {
  if (!text_.empty() && origin != TextOrigin()) runs_.push_back({origin, text_.size()});
}

TextOrigin TracedText::origin_at(std::size_t byte) const {
  auto run = std::ranges::upper_bound(runs_, byte, {}, &TextRun::end);
  return run == runs_.end() ? TextOrigin() : run->origin;
}

// Text that has no runs yet gets one when the first byte with an origin follows.
void TracedText::add_run(TextOrigin origin, std::size_t end) {
  std::size_t begin = runs_.empty() ? 0 : runs_.back().end;
  if (end <= begin) return;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = end;
  } else {
    runs_.push_back({origin, end});
  }
}

TracedText& TracedText::append(std::string_view more, TextOrigin origin) {
  if (origin != TextOrigin() && runs_.empty()) add_run({}, text_.size());
  text_.append(more);
  if (origin != TextOrigin() || !runs_.empty()) add_run(origin, text_.size());
  return *this;
}

TracedText& TracedText::append(const TracedText& more) {
  std::size_t before = text_.size();
  if (more.runs_.empty()) return append(more.text_, {});
  if (runs_.empty()) add_run({}, before);
  text_.append(more.text_);
  for (const TextRun& run : more.runs_) add_run(run.origin, before + run.end);
  return *this;
}

TracedText TracedText::substr(std::size_t begin, std::size_t bytes) const {
  TracedText out(text_.substr(begin, bytes));
  std::size_t end = begin + out.size();
  auto run = std::ranges::upper_bound(runs_, begin, {}, &TextRun::end);
  for (; run != runs_.end(); ++run) {
    out.add_run(run->origin, std::min(run->end, end) - begin);
    if (run->end >= end) break;
  }
  bool plain = out.runs_.size() == 1 && out.runs_[0].origin == TextOrigin();
  if (plain) out.runs_.clear();
  return out;
}

TracedText TracedText::part(std::string_view view) const {
  if (view.empty()) return {};
  return substr(static_cast<std::size_t>(view.data() - text_.data()), view.size());
}

TracedText TracedText::changed(std::string text) const {
  if (runs_.empty() || text.size() != text_.size()) return {std::move(text), origin_at(0)};
  TracedText out(std::move(text));
  out.runs_ = runs_;
  return out;
}

void TracedText::set_turn(std::int32_t message) {
  std::vector<TextRun> runs = std::exchange(runs_, {});
  if (runs.empty()) runs.push_back({{}, text_.size()});
  for (const TextRun& run : runs) {
    add_run({run.origin.message, run.origin.turn < 0 ? message : run.origin.turn}, run.end);
  }
}

}  // namespace bev::jinja
