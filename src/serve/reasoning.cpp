#include "serve/reasoning.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "infer/stop_texts.h"

namespace bev {

namespace {

enum class MarkerEffect : std::uint8_t { kOpen, kClose, kDrop };

struct Marker {
  std::string_view text;
  MarkerEffect effect = MarkerEffect::kDrop;
};

}  // namespace

// anywhere: markers count in the middle of an answer too, since users cannot make the model write
// them as text.
struct ReasoningMarkers {
  std::string_view name;
  bool anywhere = false;
  std::vector<Marker> markers;

  std::vector<std::string> texts() const {
    std::vector<std::string> out;
    for (const Marker& marker : markers) out.emplace_back(marker.text);
    return out;
  }
};

namespace {

const std::array<ReasoningMarkers, 4>& known_markers() {
  using enum MarkerEffect;
  static const std::array<ReasoningMarkers, 4> rows = {{
      {"think", false, {{"<think>", kOpen}, {"</think>", kClose}}},
      {"mistral", false, {{"[THINK]", kOpen}, {"[/THINK]", kClose}}},
      {"seed_oss", false, {{"<seed:think>", kOpen}, {"</seed:think>", kClose}}},
      {"harmony",
       true,
       {{"<|channel|>analysis<|message|>", kOpen},
        {"<|channel|>final<|message|>", kClose},
        {"<|channel|>commentary<|message|>", kClose},
        {"<|end|>", kDrop},
        {"<|return|>", kDrop},
        {"<|start|>assistant", kDrop}}},
  }};
  return rows;
}

}  // namespace

std::vector<std::string> reasoning_parser_names() {
  std::vector<std::string> names = {"none"};
  for (const ReasoningMarkers& row : known_markers()) names.emplace_back(row.name);
  return names;
}

const ReasoningMarkers* find_reasoning(std::string_view name) {
  auto found = std::ranges::find(known_markers(), name, &ReasoningMarkers::name);
  return found == known_markers().end() ? nullptr : &*found;
}

const ReasoningMarkers* reasoning_of_template(std::string_view template_text) {
  if (template_text.find("<|channel|>") != std::string_view::npos) return find_reasoning("harmony");
  for (const ReasoningMarkers& row : known_markers()) {
    auto written = [&](const Marker& marker) {
      return template_text.find(marker.text) != std::string_view::npos;
    };
    if (std::ranges::any_of(row.markers, written)) return &row;
  }
  return nullptr;
}

bool is_reasoning_marker(const ReasoningMarkers& markers, std::string_view token_text) {
  return std::ranges::any_of(markers.markers, [&](const Marker& marker) {
    return marker.text.find(token_text) != std::string_view::npos;
  });
}

ReasoningSplitter::ReasoningSplitter(const ReasoningMarkers& markers, std::string_view prompt_end)
    : markers_(markers) {
  std::string_view end = trim(prompt_end);
  for (const Marker& marker : markers.markers) {
    if (marker.effect == MarkerEffect::kOpen && end.ends_with(marker.text)) {
      part_ = TextPart::kReasoning;
    }
  }
}

// The first `size` bytes of what is held belong to the current part.
void ReasoningSplitter::take(std::vector<TextPiece>& out, std::size_t size) {
  std::string text = held_.substr(0, size);
  held_.erase(0, size);
  if (trims_) text.erase(0, text.find_first_not_of(" \t\r\n"));
  if (text.empty()) return;
  trims_ = false;
  if (part_ == TextPart::kContent) content_began_ = true;
  out.push_back({part_, std::move(text)});
}

// Whether a marker was found; it and what precedes it are no longer held.
bool ReasoningSplitter::next_marker(std::vector<TextPiece>& out) {
  const Marker* first = nullptr;
  std::size_t at = std::string::npos;
  for (const Marker& marker : markers_.markers) {
    std::size_t found = held_.find(marker.text);
    bool counts = markers_.anywhere || (marker.effect == MarkerEffect::kOpen
                                            ? part_ == TextPart::kContent && !content_began_
                                            : part_ == TextPart::kReasoning);
    if (counts && found < at) std::tie(first, at) = std::pair(&marker, found);
  }
  if (first == nullptr) return false;
  // A model may say something before it reasons only where that cannot be a quotation.
  bool opens = first->effect == MarkerEffect::kOpen && !markers_.anywhere;
  if (opens && !trim(held_.substr(0, at)).empty()) return false;
  take(out, at);
  held_.erase(0, first->text.size());
  if (first->effect == MarkerEffect::kDrop) return true;
  part_ = first->effect == MarkerEffect::kOpen ? TextPart::kReasoning : TextPart::kContent;
  trims_ = true;
  return true;
}

std::vector<TextPiece> ReasoningSplitter::add(std::string_view text) {
  std::vector<TextPiece> out;
  held_ += text;
  while (next_marker(out)) {
  }
  std::size_t settled = settled_length(held_, markers_.texts());
  // Reasoning opens before anything is said, or not at all.
  bool says = content_began_ || !trim(std::string_view(held_).substr(0, settled)).empty();
  if (part_ == TextPart::kContent && says && !markers_.anywhere) settled = held_.size();
  take(out, settled);
  return out;
}

std::vector<TextPiece> ReasoningSplitter::finish() {
  std::vector<TextPiece> out;
  take(out, held_.size());
  return out;
}

}  // namespace bev
