// The texts in one line of JSON. A scan of its own: it reads what Python's json reads (numbers of
// any size, NaN, the last of equal keys), decodes only the values asked for, and is fast.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// The value of a key: one text, or the sentences of a list.
using KeyTexts = std::vector<std::string>;

// For each key its texts. Error(kInput) naming column or key when the line is not an object of JSON
// in UTF-8, or has no such text.
std::vector<KeyTexts> read_json_record(std::string_view line, std::span<const std::string> keys);

}  // namespace bev
