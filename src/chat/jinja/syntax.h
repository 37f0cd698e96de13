// Syntax tree of a parsed Jinja template: statements and expressions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "chat/jinja/object.h"
#include "chat/jinja/value.h"

namespace bev::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct SequenceLiteral {
  SequenceKind kind = SequenceKind::kList;
  std::vector<ExpressionPointer> items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPointer, ExpressionPointer>> items;
};
struct Attribute {
  ExpressionPointer object;
  std::string name;
};
struct Item {
  ExpressionPointer object, key;
};
struct Slice {
  ExpressionPointer object;
  ExpressionPointer start, stop, step;  // may be null
};

struct CallArguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer rest, named_rest;  // after * and **; may be null
};
struct Call {
  ExpressionPointer function;
  CallArguments arguments;
};
struct Filter {
  ExpressionPointer input;  // null: the text of the enclosing filter block
  std::string name;
  Builtin function = nullptr;  // null: unknown name, an error only when evaluated, as in Jinja
  CallArguments arguments;
};
struct Test {
  ExpressionPointer input;
  std::string name;
  Builtin function = nullptr;
  CallArguments arguments;
};

enum class UnaryOperator : std::uint8_t { kNot, kMinus, kPlus };
struct Unary {
  UnaryOperator op = UnaryOperator::kNot;
  ExpressionPointer operand;
};
enum class BinaryOperator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};
struct Binary {
  BinaryOperator op = BinaryOperator::kAdd;
  ExpressionPointer left, right;
};
struct Logic {
  bool is_and = false;
  ExpressionPointer left, right;
};
struct Concatenation {
  std::vector<ExpressionPointer> parts;
};
enum class Comparison : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
struct Compare {
  ExpressionPointer first;
  std::vector<std::pair<Comparison, ExpressionPointer>> rest;
};
struct Conditional {
  ExpressionPointer condition, yes, no;  // no may be null
};

struct Expression {
  int line = 0;
  std::variant<Constant, Name, SequenceLiteral, DictLiteral, Attribute, Item, Slice, Call, Filter,
               Test, Unary, Binary, Logic, Concatenation, Compare, Conditional>
      node;
};

struct Statement;
using Body = std::vector<Statement>;

// Target of an assignment: a name, an attribute of a namespace, or several targets.
struct Target {
  std::string name;
  std::string attribute;  // "": the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Text {
  std::string text;
};
struct Print {
  std::vector<ExpressionPointer> values;
};
struct For {
  Target target;
  ExpressionPointer items;
  ExpressionPointer filter;  // may be null
  std::unique_ptr<Body> body, otherwise;
  bool recursive = false;
};
struct If {
  std::vector<std::pair<ExpressionPointer, std::unique_ptr<Body>>> branches;
  std::unique_ptr<Body> otherwise;
};
struct Set {
  Target target;
  ExpressionPointer value;
};
struct SetBlock {
  Target target;
  ExpressionPointer filter;  // may be null
  std::unique_ptr<Body> body;
};
struct MacroBody {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPointer>> parameters;  // defaults may be null
  std::unique_ptr<Body> body;
};
struct MacroStatement {
  std::shared_ptr<const MacroBody> macro;
};
struct CallBlock {
  std::shared_ptr<const MacroBody> caller;
  ExpressionPointer call;
};
struct FilterBlock {
  ExpressionPointer filter;
  std::unique_ptr<Body> body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPointer>> values;
  std::unique_ptr<Body> body;
};
// {% generation %} block: the assistant's text, from which the loss mask is made.
struct Generation {
  std::unique_ptr<Body> body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line = 0;
  std::variant<Text, Print, For, If, Set, SetBlock, MacroStatement, CallBlock, FilterBlock, With,
               Generation, Break, Continue>
      node;
};

}  // namespace bev::jinja
