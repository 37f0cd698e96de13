// A regular expression of a tokenizer, matched by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/regex_dialect.h"

namespace bev {

struct Match {
  std::size_t begin, end;
};

class Regex {
 public:
  // Error(kInput) when the expression is not understood.
  Regex(std::string_view pattern, RegexDialect dialect);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Walks over the matches of one text (valid UTF-8, which must outlive it), as the reference's
  // find_iter does: they do not overlap, and an empty one never touches the one before.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    std::optional<Match> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// A pattern that matches exactly this text.
std::string escape_regex(std::string_view text);

}  // namespace bev
