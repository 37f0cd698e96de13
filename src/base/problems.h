// Wording for everything that is wrong with a configuration: all of it is collected, then thrown
// once. A problem is one line that starts with the flag or the file and line: "--lr: what; what
// would work".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// "1, 2 or 4"; the middle is left out when there are many.
std::string sizes_text(std::span<const std::int64_t> sizes);
// "1, 2, 3 or 6" for 6.
std::string divisors_text(std::int64_t number);

// Whether the problem names this flag as a whole word ("--lr" is not in "--lr-decay-style").
bool mentions_flag(std::string_view problem, std::string_view flag);

// Throws one Error of kind config that lists the problems, each on its own line; returns when there
// are none.
void throw_problems(std::span<const std::string> problems);

}  // namespace bev
