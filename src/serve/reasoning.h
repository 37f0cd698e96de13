// Splits the text of an answer into the model's reasoning and what it says, by the markers that its
// chat template uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

enum class TextPart : std::uint8_t { kContent, kReasoning };

struct TextPiece {
  TextPart part = TextPart::kContent;
  std::string text;
};

struct ReasoningMarkers;  // one row of the table in reasoning.cpp

// Names for --reasoning-parser: "none", "think", ...
std::vector<std::string> reasoning_parser_names();
// nullptr for "none" and for unknown names.
const ReasoningMarkers* find_reasoning(std::string_view name);
// The markers that a chat template writes or reads; nullptr if none of those that are known.
const ReasoningMarkers* reasoning_of_template(std::string_view template_text);
// Whether texts of these special tokens are markers, which must not be left out.
bool is_reasoning_marker(const ReasoningMarkers& markers, std::string_view token_text);

class ReasoningSplitter {
 public:
  // `prompt_end`: the end of the rendered prompt, which may have opened the reasoning.
  ReasoningSplitter(const ReasoningMarkers& markers, std::string_view prompt_end);

  // Text that may still become a marker is held back.
  std::vector<TextPiece> add(std::string_view text);
  std::vector<TextPiece> finish();
  bool reasons() const { return part_ == TextPart::kReasoning; }

 private:
  void take(std::vector<TextPiece>& out, std::size_t size);
  bool next_marker(std::vector<TextPiece>& out);

  const ReasoningMarkers& markers_;
  TextPart part_ = TextPart::kContent;
  std::string held_;
  bool content_began_ = false;  // something besides blanks was said
  bool trims_ = true;           // blanks at the beginning of a part are left out
};

}  // namespace bev
