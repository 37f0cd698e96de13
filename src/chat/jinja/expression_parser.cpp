#include "chat/jinja/expression_parser.h"

#include <array>

namespace bev::jinja {

namespace {

template <class Node>
ExpressionPointer make(int line, Node node) {
  return std::make_unique<Expression>(Expression{line, std::move(node)});
}

}  // namespace

// Limits the nesting of expressions, and thereby the stack.
class ExpressionParser::Level {
 public:
  explicit Level(ExpressionParser& parser) : parser_(parser) {
    constexpr int kMost = 100;
    if (++parser_.depth_ > kMost) parser_.tokens_.fail("the expression nests too deep");
  }
  ~Level() { --parser_.depth_; }

 private:
  ExpressionParser& parser_;
};

ExpressionPointer ExpressionParser::expression() {
  Level level(*this);
  ExpressionPointer value = without_condition();
  while (tokens_.at_name("if")) {
    int line = tokens_.take().line;
    Conditional node;
    node.yes = std::move(value);
    node.condition = without_condition();
    if (tokens_.skip_name("else")) node.no = expression();
    value = make(line, std::move(node));
  }
  return value;
}

ExpressionPointer ExpressionParser::without_condition() {
  ExpressionPointer left = conjunction();
  while (tokens_.at_name("or")) {
    int line = tokens_.take().line;
    left = make(line, Logic{false, std::move(left), conjunction()});
  }
  return left;
}

ExpressionPointer ExpressionParser::conjunction() {
  ExpressionPointer left = negation();
  while (tokens_.at_name("and")) {
    int line = tokens_.take().line;
    left = make(line, Logic{true, std::move(left), negation()});
  }
  return left;
}

ExpressionPointer ExpressionParser::negation() {
  if (!tokens_.at_name("not")) return comparison();
  Level level(*this);
  int line = tokens_.take().line;
  return make(line, Unary{UnaryOperator::kNot, negation()});
}

std::optional<Comparison> ExpressionParser::comparison_operator() {
  using enum Comparison;
  constexpr std::array<std::pair<std::string_view, Comparison>, 6> kOperators = {
      {{"==", kEqual},
       {"!=", kNotEqual},
       {"<", kLess},
       {"<=", kLessEqual},
       {">", kGreater},
       {">=", kGreaterEqual}}};
  for (auto [text, op] : kOperators) {
    if (tokens_.skip_operator(text)) return op;
  }
  if (tokens_.skip_name("in")) return kIn;
  if (tokens_.at_name("not") && tokens_.following().is_name("in")) {
    tokens_.take();
    tokens_.take();
    return kNotIn;
  }
  return std::nullopt;
}

ExpressionPointer ExpressionParser::comparison() {
  int line = tokens_.line();
  Compare node;
  node.first = sum();
  while (std::optional<Comparison> op = comparison_operator()) {
    node.rest.emplace_back(*op, sum());
  }
  return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
}

ExpressionPointer ExpressionParser::sum() {
  ExpressionPointer left = concatenation();
  while (tokens_.at_operator("+") || tokens_.at_operator("-")) {
    Token op = tokens_.take();
    auto kind = op.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    left = make(op.line, Binary{kind, std::move(left), concatenation()});
  }
  return left;
}

ExpressionPointer ExpressionParser::concatenation() {
  int line = tokens_.line();
  Concatenation node;
  node.parts.push_back(product());
  while (tokens_.skip_operator("~")) node.parts.push_back(product());
  return node.parts.size() == 1 ? std::move(node.parts[0]) : make(line, std::move(node));
}

ExpressionPointer ExpressionParser::product() {
  using enum BinaryOperator;
  constexpr std::array<std::pair<std::string_view, BinaryOperator>, 4> kOperators = {
      {{"*", kMultiply}, {"/", kDivide}, {"//", kFloorDivide}, {"%", kModulo}}};
  ExpressionPointer left = power();
  while (true) {
    auto found = std::ranges::find_if(
        kOperators, [&](const auto& entry) { return tokens_.at_operator(entry.first); });
    if (found == kOperators.end()) return left;
    int line = tokens_.take().line;
    left = make(line, Binary{found->second, std::move(left), power()});
  }
}

ExpressionPointer ExpressionParser::power() {
  ExpressionPointer left = unary(true);
  while (tokens_.at_operator("**")) {
    int line = tokens_.take().line;
    left = make(line, Binary{BinaryOperator::kPower, std::move(left), unary(true)});
  }
  return left;
}

ExpressionPointer ExpressionParser::unary(bool with_filters) {
  Level level(*this);
  ExpressionPointer value;
  if (tokens_.at_operator("-") || tokens_.at_operator("+")) {
    Token op = tokens_.take();
    auto kind = op.text == "-" ? UnaryOperator::kMinus : UnaryOperator::kPlus;
    value = make(op.line, Unary{kind, unary(false)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPointer ExpressionParser::primary_with_postfix() { return postfix(primary()); }

ExpressionPointer ExpressionParser::primary() {
  int line = tokens_.line();
  if (tokens_.at(TokenKind::kName)) {
    std::string name = tokens_.take().text;
    if (name == "true" || name == "True") return make(line, Constant{true});
    if (name == "false" || name == "False") return make(line, Constant{false});
    if (name == "none" || name == "None") return make(line, Constant{});
    return make(line, Name{std::move(name)});
  }
  if (tokens_.at(TokenKind::kString)) {
    std::string text;
    while (tokens_.at(TokenKind::kString)) text += tokens_.take().text;
    return make(line, Constant{std::move(text)});
  }
  if (tokens_.at(TokenKind::kNumber)) return make(line, Constant{tokens_.take().number});
  if (tokens_.at_operator("(")) return parenthesis();
  if (tokens_.at_operator("[")) return list();
  if (tokens_.at_operator("{")) return dict();
  tokens_.fail("a value is missing");
}

ExpressionPointer ExpressionParser::tuple_of(ExpressionPointer (ExpressionParser::*part)()) {
  int line = tokens_.line();
  SequenceLiteral node{SequenceKind::kTuple, {}};
  node.items.push_back((this->*part)());
  if (!tokens_.at_operator(",")) return std::move(node.items[0]);
  while (tokens_.skip_operator(",")) {
    bool ends = tokens_.at_operator(")") || tokens_.at(TokenKind::kBlockEnd) ||
                tokens_.at(TokenKind::kPrintEnd);
    if (ends) break;
    node.items.push_back((this->*part)());
  }
  return make(line, std::move(node));
}

ExpressionPointer ExpressionParser::expression_or_tuple() {
  return tuple_of(&ExpressionParser::expression);
}

ExpressionPointer ExpressionParser::items_of_loop() {
  return tuple_of(&ExpressionParser::without_condition);
}

ExpressionPointer ExpressionParser::parenthesis() {
  int line = tokens_.take().line;
  if (tokens_.skip_operator(")")) return make(line, SequenceLiteral{SequenceKind::kTuple, {}});
  ExpressionPointer inner = expression_or_tuple();
  tokens_.need_operator(")");
  return inner;
}

ExpressionPointer ExpressionParser::list() {
  int line = tokens_.take().line;
  SequenceLiteral node;
  while (!tokens_.skip_operator("]")) {
    if (!node.items.empty()) {
      tokens_.need_operator(",");
      if (tokens_.skip_operator("]")) break;
    }
    node.items.push_back(expression());
  }
  return make(line, std::move(node));
}

ExpressionPointer ExpressionParser::dict() {
  int line = tokens_.take().line;
  DictLiteral node;
  while (!tokens_.skip_operator("}")) {
    if (!node.items.empty()) {
      tokens_.need_operator(",");
      if (tokens_.skip_operator("}")) break;
    }
    ExpressionPointer key = expression();
    tokens_.need_operator(":");
    node.items.emplace_back(std::move(key), expression());
  }
  return make(line, std::move(node));
}

ExpressionPointer ExpressionParser::postfix(ExpressionPointer of) {
  while (true) {
    int line = tokens_.line();
    if (tokens_.at_operator(".")) {
      of = member(std::move(of));
    } else if (tokens_.at_operator("[")) {
      of = subscript(std::move(of));
    } else if (tokens_.at_operator("(")) {
      of = make(line, Call{std::move(of), arguments()});
    } else {
      return of;
    }
  }
}

ExpressionPointer ExpressionParser::member(ExpressionPointer of) {
  int line = tokens_.take().line;
  if (tokens_.at(TokenKind::kNumber)) {
    return make(line, Item{std::move(of), make(line, Constant{tokens_.take().number})});
  }
  return make(line, Attribute{std::move(of), tokens_.need_name()});
}

ExpressionPointer ExpressionParser::subscript(ExpressionPointer of) {
  int line = tokens_.take().line;
  auto ends = [&] { return tokens_.at_operator("]") || tokens_.at_operator(":"); };
  ExpressionPointer start = tokens_.at_operator(":") ? nullptr : expression();
  if (start != nullptr && !tokens_.at_operator(":")) {
    if (tokens_.at_operator(",")) tokens_.fail("an index of several parts is not supported");
    tokens_.need_operator("]");
    return make(line, Item{std::move(of), std::move(start)});
  }
  tokens_.take();
  Slice node{std::move(of), std::move(start), nullptr, nullptr};
  if (!ends()) node.stop = expression();
  if (tokens_.skip_operator(":") && !ends()) node.step = expression();
  tokens_.need_operator("]");
  return make(line, std::move(node));
}

ExpressionPointer ExpressionParser::filters_and_tests(ExpressionPointer of) {
  while (true) {
    int line = tokens_.line();
    if (tokens_.skip_operator("|")) {
      of = filters(std::move(of));
    } else if (tokens_.at_name("is")) {
      of = test(std::move(of));
    } else if (tokens_.at_operator("(")) {
      of = make(line, Call{std::move(of), arguments()});
    } else {
      return of;
    }
  }
}

ExpressionPointer ExpressionParser::filters(ExpressionPointer input) {
  do {
    int line = tokens_.line();
    std::string name = tokens_.need_name();
    Filter node{std::move(input), name, find_filter(name), {}};
    if (tokens_.at_operator("(")) node.arguments = arguments();
    input = make(line, std::move(node));
  } while (tokens_.skip_operator("|"));
  return input;
}

ExpressionPointer ExpressionParser::test(ExpressionPointer of) {
  int line = tokens_.take().line;
  bool negated = tokens_.skip_name("not");
  std::string name = tokens_.need_name();
  Test node{std::move(of), name, find_test(name), {}};
  bool operand = tokens_.at(TokenKind::kName) || tokens_.at(TokenKind::kString) ||
                 tokens_.at(TokenKind::kNumber) || tokens_.at_operator("[") ||
                 tokens_.at_operator("{");
  if (tokens_.at_operator("(")) {
    node.arguments = arguments();
  } else if (operand && !tokens_.at_name("else") && !tokens_.at_name("or") &&
             !tokens_.at_name("and")) {
    if (tokens_.at_name("is")) tokens_.fail("tests cannot follow each other");
    node.arguments.positional.push_back(primary_with_postfix());
  }
  ExpressionPointer result = make(line, std::move(node));
  return negated ? make(line, Unary{UnaryOperator::kNot, std::move(result)}) : std::move(result);
}

CallArguments ExpressionParser::arguments() {
  CallArguments out;
  tokens_.need_operator("(");
  while (!tokens_.skip_operator(")")) {
    if (tokens_.skip_operator("**")) {
      out.named_rest = expression();
    } else if (tokens_.skip_operator("*")) {
      out.rest = expression();
    } else if (tokens_.at(TokenKind::kName) && tokens_.following().is_operator("=")) {
      std::string name = tokens_.take().text;
      tokens_.take();
      out.named.emplace_back(std::move(name), expression());
    } else {
      if (!out.named.empty() || out.rest || out.named_rest) {
        tokens_.fail("an argument without a name stands after named ones");
      }
      out.positional.push_back(expression());
    }
    if (!tokens_.at_operator(")")) tokens_.need_operator(",");
  }
  return out;
}

}  // namespace bev::jinja
