// Interpreter: execution of statements; evaluate.cpp has the expressions.
#include "chat/jinja/interpreter.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_check.h"
#include "base/scoped_value.h"
#include "chat/jinja/loop.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/value_text.h"
#include "tokenizer/text/utf8.h"

namespace bev::jinja {

// A macro, or the body of a {% call %} block, with its scope of definition.
class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, std::shared_ptr<const MacroBody> body,
        std::shared_ptr<Scope> scope)
      : interpreter_(interpreter), body_(std::move(body)), scope_(std::move(scope)) {}
  std::string_view type_name() const override { return "Macro"; }
  std::string text() const override { return concat("<Macro '", body_->name, "'>"); }
  std::optional<Value> attribute(std::string_view name) const override {
    return name == "name" ? std::optional<Value>(body_->name) : std::nullopt;
  }
  bool callable() const override { return true; }
  Value call(Runtime&, const Arguments& arguments) override {
    return interpreter_.call_macro(*body_, scope_, arguments);
  }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<const MacroBody> body_;
  std::shared_ptr<Scope> scope_;
};

namespace {

std::shared_ptr<Scope> inner_scope(const std::shared_ptr<Scope>& outer) {
  return std::make_shared<Scope>(Scope{outer, {}});
}

}  // namespace

// An item of a loop, or an argument of a macro, whose words are written as long as this exists.
class Interpreter::Turn {
 public:
  Turn(Interpreter& interpreter, std::int32_t message, bool is_item)
      : turn_(interpreter.turn_, message >= 0 ? message : interpreter.turn_),
        is_item_(interpreter.turn_is_item_, interpreter.turn_is_item_ || (message >= 0 && is_item)),
        in_loop_(interpreter.in_loop_, interpreter.in_loop_ || is_item) {}

 private:
  ScopedValue<std::int32_t> turn_;
  ScopedValue<bool> is_item_, in_loop_;
};

Interpreter::Interpreter(Runtime& runtime, const Dict& context)
    : runtime_(runtime), context_(context) {
  const Value* messages = context.find_name("messages");
  const Sequence* list = messages ? messages->sequence() : nullptr;
  for (std::size_t i = 0; list && i < list->items.size(); ++i) {
    if (const Dict* message = list->items[i].dict()) {
      messages_.emplace(message, static_cast<std::int32_t>(i));
    }
  }
}

std::int32_t Interpreter::message_of(const Value& value) const {
  const Dict* dict = value.dict();
  if (dict == nullptr) return -1;
  if (auto found = messages_.find(dict); found != messages_.end()) return found->second;
  for (const auto& [key, item] : dict->items) {
    const TracedText* text = item.traced();
    if (text && !text->runs().empty()) return text->runs().front().origin.message;
  }
  return -1;
}

Interpreter::~Interpreter() {
  for (const ScopePointer& scope : captured_) scope->values.clear();
}

void Interpreter::run(const Body& body) { execute(body, inner_scope(nullptr)); }

Interpreter::Flow Interpreter::execute(const Body& body, const ScopePointer& scope) {
  for (const Statement& statement : body) {
    if (Flow flow = execute(statement, scope); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, const ScopePointer& scope) {
  Runtime::Level level(runtime_);
  runtime_.spend(Runtime::kEvaluation);
  runtime_.line = statement.line;
  return std::visit([&](const auto& node) { return run_node(node, scope); }, statement.node);
}

// What is written together with a later message is about that one, such as a tool's answer within
// the turn of the assistant that called it; a macro's text is written as a whole.
void Interpreter::write(TracedText text) {
  runtime_.spend(text.weight());
  if (turn_ >= 0 && !(in_macro_ && turn_ == macro_turn_)) {
    std::int32_t turn = turn_;
    for (const TextRun& run : text.runs()) turn = std::max(turn, run.origin.message);
    text.set_turn(turn);
  }
  out_->append(text);
}

TracedText Interpreter::capture(const Body& body, const ScopePointer& scope) {
  TracedText text;
  ScopedValue<TracedText*> redirected(out_, &text);
  execute(body, scope);
  return text;
}

Interpreter::Flow Interpreter::run_node(const Text& node, const ScopePointer&) {
  write(node.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const Print& node, const ScopePointer& scope) {
  for (const auto& value : node.values) write(traced_str(evaluate(*value, scope)));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const If& node, const ScopePointer& scope) {
  for (const auto& [condition, body] : node.branches) {
    if (evaluate(*condition, scope).truth()) return execute(*body, scope);
  }
  return node.otherwise ? execute(*node.otherwise, scope) : Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const Set& node, const ScopePointer& scope) {
  Value value = evaluate(*node.value, scope);
  // A loop over indices takes its message by an assignment.
  std::int32_t message = in_loop_ && !turn_is_item_ ? message_of(value) : -1;
  if (message >= 0) turn_ = message;
  assign(node.target, value, scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const SetBlock& node, const ScopePointer& scope) {
  Value text = capture(*node.body, inner_scope(scope));
  if (node.filter) text = filter_block(*node.filter, scope, *text.traced());
  assign(node.target, text, scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const MacroStatement& node, const ScopePointer& scope) {
  captured_.push_back(scope);
  scope->values[node.macro->name] = std::make_shared<Macro>(*this, node.macro, scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const CallBlock& node, const ScopePointer& scope) {
  captured_.push_back(scope);
  const auto& call_node = std::get<Call>(node.call->node);
  Arguments arguments = arguments_of(call_node.arguments, scope);
  arguments.named.emplace_back("caller", std::make_shared<Macro>(*this, node.caller, scope));
  write(traced_str(call(call_node, arguments, scope)));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const FilterBlock& node, const ScopePointer& scope) {
  TracedText text = capture(*node.body, inner_scope(scope));
  Value filtered = filter_block(*node.filter, scope, std::move(text));
  BEV_CHECK(filtered.is_string(), ErrorKind::kInput, "the filter of a block gives a ",
            filtered.type_name(), ", not a str");
  write(*filtered.traced());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const With& node, const ScopePointer& scope) {
  ScopePointer inner = inner_scope(scope);
  for (const auto& [target, value] : node.values) assign(target, evaluate(*value, scope), inner);
  return execute(*node.body, inner);
}

Interpreter::Flow Interpreter::run_node(const Generation& node, const ScopePointer& scope) {
  TracedText text = capture(*node.body, inner_scope(scope));
  counted_points_ += count_points(std::string_view(root_.text()).substr(counted_bytes_));
  counted_bytes_ = root_.size();
  spans_.push_back({counted_points_, counted_points_ + count_points(text.text())});
  write(std::move(text));
  return Flow::kNext;
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePointer& scope) {
  if (target.is_tuple) {
    List items = items_of(runtime_, value);
    BEV_CHECK(items.size() == target.parts.size(), ErrorKind::kInput, items.size(), " values for ",
              target.parts.size(), " names");
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope->values[target.name] = value;
    return;
  }
  Value holder = value_of(Name{target.name}, scope);
  bool set = holder.object() != nullptr && holder.object()->set(target.attribute, value);
  BEV_CHECK(set, ErrorKind::kInput, "cannot set ", target.name, ".", target.attribute,
            ": it is no namespace");
}

// Items that satisfy the loop's own condition.
List Interpreter::loop_items(const For& node, const Value& from, const ScopePointer& scope) {
  List items = items_of(runtime_, from);
  if (!node.filter) return items;
  List out;
  for (const Value& item : items) {
    ScopePointer inner = inner_scope(scope);
    assign(node.target, item, inner);
    if (evaluate(*node.filter, inner).truth()) out.push_back(item);
  }
  return out;
}

// Loop variable of a recursive loop: calling it runs the loop's body over other items.
class Interpreter::RecursiveLoop : public Loop {
 public:
  RecursiveLoop(Interpreter& interpreter, const For& node, ScopePointer scope, List items,
                std::int64_t depth)
      : Loop(std::move(items), depth),
        interpreter_(interpreter),
        node_(node),
        scope_(std::move(scope)) {}
  bool callable() const override { return true; }
  Value call(Runtime&, const Arguments& arguments) override {
    Parameters given("loop", arguments, {"items"});
    List items = interpreter_.loop_items(node_, given[0], scope_);
    TracedText text;
    ScopedValue<TracedText*> redirected(interpreter_.out_, &text);
    interpreter_.loop_over(node_, std::move(items), scope_, depth() + 1);
    return text;
  }

 private:
  Interpreter& interpreter_;
  const For& node_;
  ScopePointer scope_;
};

Interpreter::Flow Interpreter::loop_over(const For& node, List items, const ScopePointer& scope,
                                         std::int64_t depth) {
  Runtime::Level level(runtime_);
  if (items.empty()) return node.otherwise ? execute(*node.otherwise, scope) : Flow::kNext;
  std::size_t count = items.size();
  std::shared_ptr<Loop> loop;
  if (node.recursive) {
    captured_.push_back(scope);
    loop = std::make_shared<RecursiveLoop>(*this, node, scope, std::move(items), depth);
  } else {
    loop = std::make_shared<Loop>(std::move(items), depth);
  }
  for (std::size_t i = 0; i < count; ++i) {
    loop->go_to(i);
    Turn turn(*this, message_of(loop->item()), true);
    ScopePointer inner = inner_scope(scope);
    inner->values["loop"] = loop;
    assign(node.target, loop->item(), inner);
    if (execute(*node.body, inner) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_node(const For& node, const ScopePointer& scope) {
  List items = loop_items(node, evaluate(*node.items, scope), scope);
  if (!node.recursive) return loop_over(node, std::move(items), scope, 0);
  TracedText text;
  {
    ScopedValue<TracedText*> redirected(out_, &text);
    loop_over(node, std::move(items), scope, 0);
  }
  write(std::move(text));
  return Flow::kNext;
}

void Interpreter::bind_parameters(const MacroBody& macro, const Arguments& arguments,
                                  const ScopePointer& scope) {
  const auto& parameters = macro.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, fallback] = parameters[i];
    if (i < arguments.positional.size()) {
      scope->values[name] = arguments.positional[i];
    } else {
      scope->values[name] = Value::undefined(concat("parameter '", name, "' was not provided"));
    }
  }
  List rest;
  for (std::size_t i = parameters.size(); i < arguments.positional.size(); ++i) {
    rest.push_back(arguments.positional[i]);
  }
  Dict named_rest;
  for (const auto& [name, value] : arguments.named) {
    auto found = std::ranges::find(parameters, name, [](const auto& one) { return one.first; });
    if (found == parameters.end() && name != "caller") {
      named_rest.set(name, value);
      continue;
    }
    BEV_CHECK(
        found == parameters.end() || found - parameters.begin() >= std::ssize(arguments.positional),
        ErrorKind::kInput, "macro '", macro.name, "' got '", name, "' twice");
    scope->values[name] = value;
  }
  for (const auto& [name, fallback] : parameters) {
    Value& value = scope->values[name];
    if (value.is_undefined() && fallback) value = evaluate(*fallback, scope);
  }
  scope->values["varargs"] = list_value(runtime_, std::move(rest), SequenceKind::kTuple);
  scope->values["kwargs"] = std::move(named_rest);
}

Value Interpreter::call_macro(const MacroBody& macro, const ScopePointer& scope,
                              const Arguments& arguments) {
  Runtime::Level level(runtime_);
  int line = runtime_.line;
  ScopePointer inner = inner_scope(scope);
  inner->values["caller"] = Value::undefined("there is no caller");
  bind_parameters(macro, arguments, inner);
  std::int32_t message = -1;
  for (const Value& given : arguments.positional) {
    if (message < 0 && !turn_is_item_) message = message_of(given);
  }
  Turn turn(*this, message, false);
  ScopedValue<bool> in_macro(in_macro_, true);
  ScopedValue<std::int32_t> macro_turn(macro_turn_, turn_);
  TracedText text = capture(*macro.body, inner);
  if (message >= 0) text.set_turn(message);
  runtime_.line = line;
  return text;
}

}  // namespace bev::jinja
