// Token cursor for the parsers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/lexer.h"

namespace bev::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_name(std::string_view name) const { return current().is_name(name); }
  bool at_operator(std::string_view op) const { return current().is_operator(op); }

  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_name(std::string_view name) { return at_name(name) && (take(), true); }
  bool skip_operator(std::string_view op) { return at_operator(op) && (take(), true); }

  std::string need_name() {
    if (!at(TokenKind::kName)) fail("a name is missing");
    return take().text;
  }
  void need_name(std::string_view name) {
    if (!skip_name(name)) fail(concat("'", name, "' is missing"));
  }
  void need_operator(std::string_view op) {
    if (!skip_operator(op)) fail(concat("'", op, "' is missing"));
  }
  void need(TokenKind kind, std::string_view what) {
    if (!at(kind)) fail(concat(what, " is missing"));
    take();
  }

  // Throws with the line and the current token.
  [[noreturn]] void fail(std::string_view what) const {
    std::string here = at(TokenKind::kEnd) ? "the end"
                       : at(TokenKind::kBlockEnd) || at(TokenKind::kPrintEnd)
                           ? "the end of the tag"
                           : quote(current().text);
    BEV_FAIL(ErrorKind::kInput, "line ", line(), ": ", what, " before ", here);
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace bev::jinja
