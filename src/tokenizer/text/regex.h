// Regular expression, matched by PCRE2 within its limits of steps and memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/text/regex_dialect.h"

namespace bev {

struct Match {
  std::size_t begin, end;
};

class Regex {
 public:
  // Throws Error(kInput) if the pattern is invalid.
  Regex(std::string_view pattern, RegexDialect dialect);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Iterates over the matches in a text (valid UTF-8, which must outlive it) like the reference's
  // find_iter: matches do not overlap, and an empty match is never adjacent to the one before.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    std::optional<Match> next();
    // What a group of the last match has, counted from 1; nothing if it took no part.
    std::optional<Match> group(std::size_t number) const;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// Pattern that matches exactly this text.
std::string escape_regex(std::string_view text);

}  // namespace bev
