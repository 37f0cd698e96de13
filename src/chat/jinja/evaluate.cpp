// Interpreter: evaluation of expressions.
#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

Value Interpreter::evaluate(const Expression& expression, const ScopePointer& scope) {
  Runtime::Level level(runtime_);
  runtime_.spend(Runtime::kEvaluation);
  runtime_.line = expression.line;
  return std::visit([&](const auto& node) { return value_of(node, scope); }, expression.node);
}

Value Interpreter::value_of(const Constant& node, const ScopePointer&) { return node.value; }

Value Interpreter::value_of(const Name& node, const ScopePointer& scope) {
  for (const Scope* at = scope.get(); at != nullptr; at = at->outer.get()) {
    if (auto found = at->values.find(node.name); found != at->values.end()) return found->second;
  }
  if (const Value* given = context_.find_name(node.name)) return *given;
  if (Builtin function = find_function(node.name)) {
    return std::make_shared<Function>(function);
  }
  return Value::undefined(concat("'", node.name, "' is undefined"));
}

Value Interpreter::value_of(const SequenceLiteral& node, const ScopePointer& scope) {
  List items;
  for (const auto& item : node.items) items.push_back(evaluate(*item, scope));
  return list_value(runtime_, std::move(items), node.kind);
}

Value Interpreter::value_of(const DictLiteral& node, const ScopePointer& scope) {
  Dict dict;
  for (const auto& [key, value] : node.items) {
    Value name = evaluate(*key, scope);
    BEV_CHECK(is_hashable(name), ErrorKind::kInput, "a ", name.type_name(),
              " cannot be the key of a dict");
    runtime_.spend(dict.items.size());
    dict.set(std::move(name), evaluate(*value, scope));
  }
  return dict;
}

Value Interpreter::value_of(const Attribute& node, const ScopePointer& scope) {
  return attribute_of(evaluate(*node.object, scope), node.name);
}

Value Interpreter::value_of(const Item& node, const ScopePointer& scope) {
  Value object = evaluate(*node.object, scope);
  if (const std::string* text = object.string()) runtime_.spend(text->size() / 16);
  return item_of(object, evaluate(*node.key, scope));
}

Value Interpreter::value_of(const Slice& node, const ScopePointer& scope) {
  Value object = evaluate(*node.object, scope);
  auto bound = [&](const ExpressionPointer& part) {
    return part ? evaluate(*part, scope) : Value();
  };
  SliceBounds bounds{bound(node.start), bound(node.stop), bound(node.step)};
  return slice_of(runtime_, object, bounds);
}

Arguments Interpreter::arguments_of(const CallArguments& node, const ScopePointer& scope) {
  Arguments out;
  for (const auto& value : node.positional) out.positional.push_back(evaluate(*value, scope));
  for (const auto& [name, value] : node.named)
    out.named.emplace_back(name, evaluate(*value, scope));
  if (node.rest) {
    for (Value& value : items_of(runtime_, evaluate(*node.rest, scope))) {
      out.positional.push_back(std::move(value));
    }
  }
  if (node.named_rest) {
    Value rest = evaluate(*node.named_rest, scope);
    BEV_CHECK(rest.is_dict(), ErrorKind::kInput, "** needs a dict, not a ", rest.type_name());
    for (const auto& [name, value] : rest.dict()->items) {
      out.named.emplace_back(python_str(name), value);
    }
  }
  return out;
}

Value Interpreter::call(const Call& node, const Arguments& arguments, const ScopePointer& scope) {
  Value function = evaluate(*node.function, scope);
  need_defined(function);
  BEV_CHECK(function.object() != nullptr, ErrorKind::kInput, "a ", function.type_name(),
            " cannot be called");
  return function.object()->call(runtime_, arguments);
}

Value Interpreter::value_of(const Call& node, const ScopePointer& scope) {
  return call(node, arguments_of(node.arguments, scope), scope);
}

Value Interpreter::value_of(const Filter& node, const ScopePointer& scope) {
  BEV_CHECK(node.function != nullptr, ErrorKind::kInput, "there is no filter '", node.name, "'");
  Value input = node.input ? evaluate(*node.input, scope) : block_text_;
  runtime_.spend(input.extent().weight / 64);
  return node.function(runtime_, input, arguments_of(node.arguments, scope));
}

Value Interpreter::filter_block(const Expression& filter, const ScopePointer& scope,
                                TracedText text) {
  block_text_ = std::move(text);
  return evaluate(filter, scope);
}

Value Interpreter::value_of(const Test& node, const ScopePointer& scope) {
  BEV_CHECK(node.function != nullptr, ErrorKind::kInput, "there is no test '", node.name, "'");
  Value input = evaluate(*node.input, scope);
  return node.function(runtime_, input, arguments_of(node.arguments, scope));
}

Value Interpreter::value_of(const Unary& node, const ScopePointer& scope) {
  Value operand = evaluate(*node.operand, scope);
  if (node.op == UnaryOperator::kNot) return !operand.truth();
  if (node.op == UnaryOperator::kMinus) return negate(operand);
  BEV_CHECK(operand.is_number(), ErrorKind::kInput, "+ needs a number, not a ",
            operand.type_name());
  return operand.is_bool() ? Value(*operand.integer()) : operand;
}

Value Interpreter::value_of(const Binary& node, const ScopePointer& scope) {
  Value left = evaluate(*node.left, scope);
  return apply(runtime_, node.op, left, evaluate(*node.right, scope));
}

Value Interpreter::value_of(const Logic& node, const ScopePointer& scope) {
  Value left = evaluate(*node.left, scope);
  return left.truth() == node.is_and ? evaluate(*node.right, scope) : left;
}

Value Interpreter::value_of(const Concatenation& node, const ScopePointer& scope) {
  TracedText text;
  for (const auto& part : node.parts) text.append(traced_str(evaluate(*part, scope)));
  return text_value(runtime_, std::move(text));
}

Value Interpreter::value_of(const Compare& node, const ScopePointer& scope) {
  Value left = evaluate(*node.first, scope);
  for (const auto& [op, operand] : node.rest) {
    Value right = evaluate(*operand, scope);
    if (!compare(runtime_, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::value_of(const Conditional& node, const ScopePointer& scope) {
  if (evaluate(*node.condition, scope).truth()) return evaluate(*node.yes, scope);
  if (node.no) return evaluate(*node.no, scope);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

}  // namespace bev::jinja
