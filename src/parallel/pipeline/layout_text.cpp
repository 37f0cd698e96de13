#include "parallel/pipeline/layout_text.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace bev {

namespace {

constexpr std::string_view kFlag = "--pipeline-model-parallel-layout: ";
constexpr std::size_t kMostLetters = 1 << 20;

// Expands repetitions; errors go to `problem`.
std::string expand(std::string_view text, std::string& problem) {
  std::vector<std::string> open = {""};  // text of each enclosing bracket so far
  for (std::size_t i = 0; i < text.size();) {
    char c = text[i++];
    std::string item;
    if (c == ',' || c == ' ') continue;
    if (c == '(') {
      open.emplace_back();
      continue;
    }
    if (c == ')' && open.size() > 1) {
      item = std::move(open.back());
      open.pop_back();
    } else if (c == 'E' || c == 't' || c == 'm' || c == 'L' || c == '|') {
      item = c;
    } else {
      problem = concat("cannot read '", text.substr(i - 1), "'; known are E t m L | x*n (..)*n");
      return "";
    }
    std::size_t times = 1;
    if (i < text.size() && text[i] == '*') {
      const char* begin = text.data() + i + 1;
      auto [end, error] = std::from_chars(begin, text.data() + text.size(), times);
      bool sensible = error == std::errc() && times <= kMostLetters;
      if (!sensible || item.size() * times > kMostLetters) {
        problem = concat("cannot repeat by '", text.substr(i + 1), "'; give a number of 1 or more");
        return "";
      }
      i = static_cast<std::size_t>(end - text.data());
    }
    for (; times > 0; --times) open.back() += item;
  }
  if (open.size() > 1) problem = "a bracket is not closed";
  return open.size() > 1 ? "" : open[0];
}

}  // namespace

std::vector<StageRange> parse_pipeline_text(std::string_view text, std::int64_t layers,
                                            std::vector<std::string>& problems) {
  auto refuse = [&](const std::string& what) {
    problems.push_back(concat(kFlag, "'", text, "': ", what));
  };
  std::string problem;
  std::string letters = expand(text, problem);
  if (!problem.empty()) {
    refuse(problem);
    return {};
  }
  auto total = std::ranges::count(letters, 't');
  if (total != layers) {
    refuse(concat("has ", total, " layers (t) for --num-layers ", layers, "; give ", layers));
  }
  if (std::ranges::count(letters, 'E') != 1 || !letters.starts_with('E')) {
    refuse("the embedding (E) must stand once, at the start of the first stage");
  }
  if (std::ranges::count(letters, 'L') != 1 || !letters.ends_with('L')) {
    refuse("the head and loss (L) must stand once, at the end of the last stage");
  }
  std::size_t mtp = letters.find('m');
  if (mtp != letters.npos && letters.find('t', mtp) != letters.npos) {
    refuse("layers of multi-token prediction (m) must stand behind the last layer (t)");
  }
  std::vector<std::string> parts = split(letters, '|');
  std::vector<StageRange> stages;
  std::int64_t layer = 0, depth = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::int64_t end = layer + std::ranges::count(parts[i], 't');
    std::int64_t end_depth = depth + std::ranges::count(parts[i], 'm');
    stages.push_back({layer, end, i == 0, i + 1 == parts.size(), depth, end_depth});
    layer = end;
    depth = end_depth;
  }
  return stages;
}

std::int64_t layers_of_text(std::string_view text) {
  std::string problem;
  return std::ranges::count(expand(text, problem), 't');
}

std::vector<std::string> mtp_problems(std::string_view text, std::int64_t depths) {
  std::string problem;
  auto named = std::ranges::count(expand(text, problem), 'm');
  if (named == 0 || named == depths) return {};
  return {concat(kFlag, "'", text, "': has ", named,
                 " layers of multi-token prediction (m) for --mtp-num-layers ", depths, "; give ",
                 depths, ", or none: they are on the last stage")};
}

}  // namespace bev
