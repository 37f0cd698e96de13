// Wording of configuration problems: all of them are collected, then thrown as one error. A problem
// is one line that starts with the flag or with file and line: "--lr: what is wrong; what would
// work".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// "1, 2 or 4"; long lists are abbreviated in the middle.
std::string sizes_text(std::span<const std::int64_t> sizes);
// Divisors of a number: "1, 2, 3 or 6" for 6.
std::string divisors_text(std::int64_t number);

// True if the problem names this flag as a whole word ("--lr" is not in "--lr-decay-style").
bool mentions_flag(std::string_view problem, std::string_view flag);

// Throws one Error(kConfig) that lists the problems, one per line; returns if there are none.
void throw_problems(std::span<const std::string> problems);

}  // namespace bev
