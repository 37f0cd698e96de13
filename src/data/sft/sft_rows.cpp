#include "data/sft/sft_rows.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/value_text.h"

namespace bev {

namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// A row and its location for messages.
class RowReader {
 public:
  RowReader(const Dict& row, const std::string& source) : row_(row), source_(source) {}

  Value messages() const {
    List out;
    if (member("messages")) {
      out = list_of("messages");
    } else if (member("conversations")) {
      out = shared_conversation();
    } else if (member("prompt")) {
      out = turn("prompt", "user");
      append(out, turn(member("completion") ? "completion" : "response", "assistant"));
    } else if (member("instruction")) {
      out = instruction();
    } else {
      bool none = row_.find_name("messages") || row_.find_name("conversations");  // null
      BEV_CHECK(none, ErrorKind::kInput, source_,
                ": no messages, conversations, prompt or instruction");
    }
    check(out);
    const Value* system = member("system");
    if (system && system->truth() && !out.empty() && !begins_with_system(out)) {
      out.insert(out.begin(), message("system", *system));
    }
    return Value::list(std::move(out));
  }

  // Some data sets hold such a list as text of JSON.
  Value optional(const char* name) const {
    const Value* value = member(name);
    if (!value || !value->truth()) return Value();
    if (!value->is_string()) return *value;
    return jinja::parse_json(*value->string(), concat(source_, ", \"", name, "\""));
  }

 private:
  // nullptr if missing or null.
  const Value* member(const char* name) const {
    const Value* found = row_.find_name(name);
    return found && !found->is_none() ? found : nullptr;
  }

  List list_of(const char* name) const {
    const jinja::Sequence* list = member(name) ? member(name)->sequence() : nullptr;
    BEV_CHECK(list, ErrorKind::kInput, source_, ": \"", name, "\" is no list");
    return list->items;
  }

  static Value message(const char* role, const Value& content) {
    Dict out;
    out.set("role", role);
    out.set("content", content);
    return out;
  }

  static void append(List& out, List more) {
    out.insert(out.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  }

  // A text, or a list of messages.
  List turn(const char* name, const char* role) const {
    const Value* value = member(name);
    BEV_CHECK(value, ErrorKind::kInput, source_, ": \"", name, "\" is missing");
    if (value->is_sequence()) return list_of(name);
    BEV_CHECK(value->is_string(), ErrorKind::kInput, source_, ": \"", name, "\" is no text");
    return {message(role, *value)};
  }

  static bool begins_with_system(const List& messages) {
    return *messages[0].dict()->find_name("role")->string() == "system";
  }

  List instruction() const {
    List out = turn("instruction", "user");
    const char* name = member("input") ? "input" : "context";
    const Value* input = member(name);
    BEV_CHECK(!input || input->is_string(), ErrorKind::kInput, source_, ": \"", name,
              "\" is no text");
    if (input && input->truth()) {
      const Value* asked = member("instruction");
      out = {message("user", concat(jinja::python_str(*asked), "\n\n", *input->string()))};
    }
    append(out, turn(member("response") ? "response" : "output", "assistant"));
    return out;
  }

  // ShareGPT's layout, with its role names.
  List shared_conversation() const {
    constexpr std::array<std::pair<std::string_view, const char*>, 12> kRoles = {
        {{"human", "user"},
         {"user", "user"},
         {"gpt", "assistant"},
         {"assistant", "assistant"},
         {"chatgpt", "assistant"},
         {"bot", "assistant"},
         {"model", "assistant"},
         {"function_call", "assistant"},
         {"system", "system"},
         {"tool", "tool"},
         {"function_response", "tool"},
         {"observation", "tool"}}};
    List out;
    for (const Value& entry : list_of("conversations")) {
      const Dict* dict = entry.dict();
      const Value* from = dict ? dict->find_name("from") : nullptr;
      const Value* value = dict ? dict->find_name("value") : nullptr;
      if (dict && !from && dict->find_name("role")) {
        out.push_back(entry);
        continue;
      }
      BEV_CHECK(from && value && from->is_string(), ErrorKind::kInput, source_, ": entry ",
                out.size(), " of \"conversations\" has no from and value");
      auto role =
          std::ranges::find(kRoles, *from->string(), [](const auto& one) { return one.first; });
      BEV_CHECK(role != kRoles.end(), ErrorKind::kInput, source_,
                ": \"from\": ", quote(*from->string()),
                " is no known role (human, gpt, system, tool)");
      out.push_back(message(role->second, *value));
    }
    return out;
  }

  void check(const List& messages) const {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Dict* dict = messages[i].dict();
      const Value* role = dict ? dict->find_name("role") : nullptr;
      BEV_CHECK(role && role->is_string(), ErrorKind::kInput, source_, ": message ", i,
                " has no role");
    }
  }

  const Dict& row_;
  const std::string& source_;
};

}  // namespace

std::vector<std::string> sft_row_keys() {
  return {"messages", "conversations", "prompt", "completion", "response",  "instruction",
          "input",    "context",       "output", "system",     "documents", "tools"};
}

SftRow read_sft_row(std::string_view line, const std::string& source) {
  Value row = jinja::parse_json(line, source);
  BEV_CHECK(row.is_dict(), ErrorKind::kInput, source, ": not a JSON object");
  RowReader reader(*row.dict(), source);
  return {reader.messages(), reader.optional("tools"), reader.optional("documents")};
}

}  // namespace bev
