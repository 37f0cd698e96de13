// Parser of Jinja expressions, with Jinja's operator precedence.
#pragma once

#include "chat/jinja/syntax.h"
#include "chat/jinja/token_stream.h"

namespace bev::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPointer expression();           // including "a if b else c"
  ExpressionPointer without_condition();    // iterable of a loop, before the loop's own "if"
  ExpressionPointer expression_or_tuple();  // "a, b" is a tuple
  ExpressionPointer items_of_loop();        // tuple whose parts are not conditional expressions
  ExpressionPointer filters(ExpressionPointer input);  // "name(..)|name", after "|" or a tag
  ExpressionPointer primary_with_postfix();            // the call of a {% call %} block

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
