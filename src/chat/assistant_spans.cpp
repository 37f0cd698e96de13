#include "chat/assistant_spans.h"

#include <algorithm>
#include <array>

#include "chat/jinja/python_text.h"

namespace bev {

namespace {

using jinja::Dict;
using jinja::List;
using jinja::TextRun;
using jinja::Value;

Value traced(const Value& value, std::int32_t message) {
  if (const std::string* text = value.string()) {
    return jinja::TracedText(*text, {.message = message});
  }
  if (const jinja::Sequence* sequence = value.sequence()) {
    List items;
    for (const Value& item : sequence->items) items.push_back(traced(item, message));
    return Value::sequence(std::move(items), sequence->kind);
  }
  if (const Dict* dict = value.dict()) {
    Dict out;
    for (const auto& [key, item] : dict->items) {
      out.items.emplace_back(traced(key, message), traced(item, message));
    }
    return out;
  }
  return value;
}

}  // namespace

Value traced_message(const Value& message, std::int32_t index) {
  Dict out;
  for (const auto& [key, item] : message.dict()->items) {
    bool is_role = key.string() && *key.string() == "role";
    out.items.emplace_back(key, is_role ? item : traced(item, index));
  }
  return out;
}

bool is_assistant(const Value& message) {
  constexpr std::array<std::string_view, 3> kRoles = {"assistant", "model", "chatbot"};
  const Value* role = message.dict() ? message.dict()->find_name("role") : nullptr;
  return role && role->string() && std::ranges::count(kRoles, jinja::to_lower(*role->string())) > 0;
}

std::vector<TurnSpan> assistant_turns(const jinja::Rendered& rendered, const List& messages) {
  std::vector<TurnSpan> out;
  std::int32_t last = -1;  // message of the last owned byte
  std::size_t begin = 0;
  for (const TextRun& run : rendered.origins) {
    std::int32_t owner = run.origin.turn >= 0 ? run.origin.turn : run.origin.message;
    bool mine = owner >= 0 && is_assistant(messages[static_cast<std::size_t>(owner)]);
    if (mine && owner != last) out.push_back({begin, run.end, run.end});
    if (mine) {
      TurnSpan& turn = out.back();
      bool seen = turn.content < turn.end;
      turn.end = run.end;
      if (!seen) turn.content = run.origin.message == owner ? begin : run.end;
    }
    if (owner >= 0) last = owner;
    begin = run.end;
  }
  bool ends_there = last >= 0 && is_assistant(messages[static_cast<std::size_t>(last)]);
  if (ends_there && !out.empty()) {
    TurnSpan& turn = out.back();
    if (turn.content == turn.end) turn.content = rendered.text.size();
    turn.end = rendered.text.size();
  }
  return out;
}

std::vector<jinja::GenerationSpan> assistant_spans(const jinja::Rendered& rendered,
                                                   const List& messages, std::string_view header) {
  std::vector<jinja::GenerationSpan> out;
  std::size_t counted = 0, points = 0;
  auto point_at = [&](std::size_t byte) {
    points += count_points(std::string_view(rendered.text).substr(counted, byte - counted));
    counted = byte;
    return points;
  };
  for (const TurnSpan& turn : assistant_turns(rendered, messages)) {
    std::string_view before = rendered.text;
    before = before.substr(turn.begin, turn.content - turn.begin);
    std::size_t found = header.empty() ? before.npos : before.find(header);
    std::size_t begin = turn.begin + (found == before.npos ? 0 : found + header.size());
    std::size_t first = point_at(begin);
    out.push_back({first, point_at(turn.end)});
  }
  return out;
}

}  // namespace bev
