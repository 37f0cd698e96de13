// Text that knows which of its bytes come from which message of a conversation (value provenance).
// Copies of parts keep their origin through slices, filters and concatenation, so that the output
// of a chat template says what each message wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev::jinja {

// Messages by their index in the conversation; -1: none.
struct TextOrigin {
  std::int32_t message = -1;  // the one that has the text as a value
  std::int32_t turn = -1;     // the one about which the template wrote it
  bool operator==(const TextOrigin&) const = default;
};

// The bytes before `end`, from the end of the run before.
struct TextRun {
  TextOrigin origin;
  std::size_t end = 0;
  bool operator==(const TextRun&) const = default;
};

class TracedText {
 public:
  TracedText() = default;
  TracedText(std::string text) : text_(std::move(text)) {}
  TracedText(std::string_view text) : text_(text) {}
  TracedText(const char* text) : text_(text) {}
  TracedText(std::string text, TextOrigin origin);

  const std::string& text() const { return text_; }
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  // Bytes of memory, for the budget of a rendering.
  std::size_t weight() const { return text_.size() + runs_.size() * sizeof(TextRun); }
  // Runs that cover the text; none if no byte has an origin. Neighbours differ.
  const std::vector<TextRun>& runs() const { return runs_; }
  TextOrigin origin_at(std::size_t byte) const;

  TracedText& append(const TracedText& more);
  TracedText& append(std::string_view more, TextOrigin origin);
  TracedText substr(std::size_t begin, std::size_t bytes = std::string::npos) const;
  // `view` is a part of text().
  TracedText part(std::string_view view) const;
  // The text after a change of its characters, such as upper case: origins stay in their places if
  // the number of bytes does, otherwise all of the text has the first one.
  TracedText changed(std::string text) const;
  // Sets the turn of all bytes that have none.
  void set_turn(std::int32_t message);

 private:
  void add_run(TextOrigin origin, std::size_t end);

  std::string text_;
  std::vector<TextRun> runs_;
};

}  // namespace bev::jinja
