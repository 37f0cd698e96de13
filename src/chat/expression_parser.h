// Parses the expressions of a template, with Jinja's order of operators.
#pragma once

#include "chat/syntax.h"
#include "chat/token_stream.h"

namespace bev::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPointer expression();                      // with "a if b else c"
  ExpressionPointer without_condition();               // the items of a loop, before its own "if"
  ExpressionPointer expression_or_tuple();             // "a, b" is a tuple
  ExpressionPointer items_of_loop();                   // a tuple whose parts are no conditions
  ExpressionPointer filters(ExpressionPointer input);  // "name(..)|name", after "|" or a tag
  ExpressionPointer primary_with_postfix();            // a call after {% call %}

 private:
  class Level;

  ExpressionPointer conjunction();
  ExpressionPointer negation();
  ExpressionPointer comparison();
  ExpressionPointer sum();
  ExpressionPointer concatenation();
  ExpressionPointer product();
  ExpressionPointer power();
  ExpressionPointer unary(bool with_filters);
  ExpressionPointer primary();
  ExpressionPointer parenthesis();
  ExpressionPointer list();
  ExpressionPointer dict();
  ExpressionPointer postfix(ExpressionPointer of);
  ExpressionPointer member(ExpressionPointer of);
  ExpressionPointer subscript(ExpressionPointer of);
  ExpressionPointer filters_and_tests(ExpressionPointer of);
  ExpressionPointer test(ExpressionPointer of);
  CallArguments arguments();
  std::optional<Comparison> comparison_operator();
  ExpressionPointer tuple_of(ExpressionPointer (ExpressionParser::*part)());

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace bev::jinja
