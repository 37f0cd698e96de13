// Fast scanner for the text fields of one JSON line. It accepts what Python's json accepts (numbers
// of any size, NaN, the last of duplicate keys) and decodes only the requested values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// Value of a key: one text, or the sentences of a list.
using KeyTexts = std::vector<std::string>;

// Texts of each key. Throws Error(kInput) naming column or key if the line is not a UTF-8 JSON
// object or lacks such a text.
std::vector<KeyTexts> read_json_record(std::string_view line, std::span<const std::string> keys);

// What to do about a record that has these keys and not the wanted one.
const char* advice_without_key(std::span<const std::string> names);

}  // namespace bev
