// What a tiktoken rank file does not say itself: its pattern and its special tokens.
#pragma once

#include <string>

namespace bev {

class FieldList;

struct TiktokenOptions {
  std::string pattern;         // a name (see pattern_expression) or a regular expression
  std::string special_tokens;  // JSON file: {"token": id, ...}, or a list of tokens

  bool given() const { return !pattern.empty() || !special_tokens.empty(); }
  // The flags --tiktoken-pattern and --tiktoken-special-tokens.
  void fields(FieldList& list);
};

}  // namespace bev
