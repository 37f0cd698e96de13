#include "base/problems.h"

#include "base/error.h"
#include "base/text.h"

namespace bev {

std::string divisors_text(std::int64_t number) {
  std::vector<std::string> low, high;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(concat(i));
    if (i != number / i) high.insert(high.begin(), concat(number / i));
  }
  low.insert(low.end(), high.begin(), high.end());
  constexpr std::size_t kShown = 9;
  if (low.size() > kShown + 1) {
    low.erase(low.begin() + kShown, low.end() - 1);
    low[kShown - 1] += ", ...";
  }
  if (low.size() < 2) return join(low, "");
  std::string last = low.back();
  low.pop_back();
  return concat(join(low, ", "), " or ", last);
}

bool mentions_flag(std::string_view problem, std::string_view flag) {
  auto in_word = [](char c) {
    return c == '-' || c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  for (std::size_t at = problem.find(flag); at != std::string_view::npos;
       at = problem.find(flag, at + 1)) {
    std::size_t end = at + flag.size();
    if ((at == 0 || !in_word(problem[at - 1])) &&
        (end == problem.size() || !in_word(problem[end]))) {
      return true;
    }
  }
  return false;
}

void throw_problems(std::span<const std::string> problems) {
  if (problems.empty()) return;
  std::string count = problems.size() == 1 ? "1 problem" : concat(problems.size(), " problems");
  throw Error(ErrorKind::kConfig,
              concat("the configuration has ", count, ":\n  ", join(problems, "\n  ")));
}

}  // namespace bev
