// What a JSON file from outside must satisfy before anyone looks at its values, and how its text is
// quoted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bev {

// Throws Error(kInput), naming `source` and the place, unless `text` is one JSON value in UTF-8
// that nests at most `max_depth` levels, has no key twice in an object and no number beyond a
// double. After it nlohmann::json::parse(text) cannot fail.
void check_json(std::string_view text, std::string_view source, int max_depth);

// The text of a JSON file that satisfies check_json and is an object: nlohmann::json::parse() gives
// one. Error(kInput) naming the file otherwise.
std::string read_json_object(const std::string& path, int max_depth);

// Foreign text for an error message: in quotes, bytes outside printable ASCII as \xNN, cut to
// `most` bytes.
std::string quote(std::string_view text, std::size_t most = 80);

}  // namespace bev
