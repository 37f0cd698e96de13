// Validation of untrusted JSON before its values are used, and quoting of its text in messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bev {

// Throws Error(kInput) with `source` and the position unless `text` is one UTF-8 JSON value that
// nests at most `max_depth` levels, has no duplicate key in an object and no number out of double's
// range. If it returns, nlohmann::json::parse(text) cannot fail.
void check_json(std::string_view text, std::string_view source, int max_depth);

// Text of a JSON file that passes check_json and is an object; otherwise throws Error(kInput) with
// the path.
std::string read_json_object(const std::string& path, int max_depth);

// Python's json writes Infinity, -Infinity and NaN, which JSON does not have. The first function
// turns each of them into a string that begins with U+0001, so that the files of Python programs
// can be parsed; the second turns such strings of dumped JSON, in ASCII, back.
std::string mark_python_numbers(std::string_view json);
std::string unmark_python_numbers(std::string json);

// Quotes foreign text for an error message: bytes outside printable ASCII become \xNN, and the text
// is cut to `most` bytes.
std::string quote(std::string_view text, std::size_t most = 80);

}  // namespace bev
