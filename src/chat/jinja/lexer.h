// Jinja lexer: splits a template into text, tags and the tokens inside tags, with trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace bev::jinja {

enum class TokenKind : std::uint8_t {
  kText,        // between tags
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // content of a string, name or operator
  Value number;
  int line = 0;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// Ends with a token of kind kEnd. Throws Error(kInput) "line N: what" if a tag is malformed.
std::vector<Token> cut_template(std::string_view source);

}  // namespace bev::jinja
