#include "base/problems.h"

#include "base/error.h"
#include "base/text.h"

namespace bev {

std::string sizes_text(std::span<const std::int64_t> sizes) {
  std::vector<std::string> texts;
  for (std::int64_t size : sizes) texts.push_back(concat(size));
  constexpr std::size_t kShown = 9;
  if (texts.size() > kShown + 1) {
    texts.erase(texts.begin() + kShown, texts.end() - 1);
    texts[kShown - 1] += ", ...";
  }
  if (texts.size() < 2) return join(texts, "");
  std::string last = texts.back();
  texts.pop_back();
  return concat(join(texts, ", "), " or ", last);
}

std::string divisors_text(std::int64_t number) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i != number / i) high.insert(high.begin(), number / i);
  }
  low.insert(low.end(), high.begin(), high.end());
  return sizes_text(low);
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
