// Tables of the Jinja engine's built-in functions, and their shared helpers.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "chat/jinja/object.h"

namespace bev::jinja {

struct BuiltinEntry {
  std::string_view name;
  Builtin function;
};

inline Builtin find_builtin(std::span<const BuiltinEntry> table, std::string_view name) {
  auto found = std::ranges::find(table, name, &BuiltinEntry::name);
  return found == table.end() ? nullptr : found->function;
}

// Filters of one value, and filters of lists.
std::span<const BuiltinEntry> value_filters();
std::span<const BuiltinEntry> list_filters();

// Result of a test; throws Error if there is none of that name.
bool apply_test(Runtime& runtime, std::string_view name, const Value& subject,
                const Arguments& arguments);

}  // namespace bev::jinja
