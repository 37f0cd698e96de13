// Answers in completions: where they are, and when two of them are the same.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bev {

// A number as people write it: "1,234.5", "$3", "-2/4", "12%", with spaces around.
std::optional<double> read_number(std::string_view text);
// The last number of a text; nothing if it has none.
std::optional<double> last_number(std::string_view text);
bool same_number(double a, double b, double tolerance);

// The content of the last \boxed{} or \fbox{}, braces matched.
std::optional<std::string> last_boxed(std::string_view text);
// What follows the last "Answer:" on its line.
std::optional<std::string> answer_line(std::string_view text);
// What follows the last "####", GSM8K's mark, without commas and dollar signs.
std::optional<std::string> marked_answer(std::string_view text);
// The last letter from A to J that stands alone.
std::optional<std::string> last_choice(std::string_view text);

// An answer of mathematics in one spelling: without spaces, \left, \!, \$, units, surrounding
// dollars, \text{..} and final stops; \dfrac is \frac, 0.5 is .5.
std::string normal_answer(std::string_view text);
// Equal in that spelling, or both numbers that are equal.
bool same_answer(std::string_view a, std::string_view b);

}  // namespace bev
