// Tree-walking interpreter of a parsed Jinja template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "chat/jinja/object.h"
#include "chat/jinja/syntax.h"
#include "chat/jinja/template.h"

namespace bev::jinja {

// Variables of a scope; inner scopes see outer ones.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::unordered_map<std::string, Value> values;
};

class Interpreter {
 public:
  Interpreter(Runtime& runtime, const Dict& context);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  // Renders a whole template.
  void run(const Body& body);

  // The output. Its bytes have the origins of the texts in the context; its turns are the elements
  // of `messages` that were being handled when they were written.
  const TracedText& text() const { return root_; }
  const std::vector<GenerationSpan>& spans() const { return spans_; }

 private:
  friend class Macro;
  class RecursiveLoop;
  class Turn;
  using ScopePointer = std::shared_ptr<Scope>;
  // Control flow result of a statement for the enclosing loop.
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  Flow execute(const Body& body, const ScopePointer& scope);
  Flow execute(const Statement& statement, const ScopePointer& scope);
  Flow run_node(const Text& node, const ScopePointer& scope);
  Flow run_node(const Print& node, const ScopePointer& scope);
  Flow run_node(const For& node, const ScopePointer& scope);
  Flow run_node(const If& node, const ScopePointer& scope);
  Flow run_node(const Set& node, const ScopePointer& scope);
  Flow run_node(const SetBlock& node, const ScopePointer& scope);
  Flow run_node(const MacroStatement& node, const ScopePointer& scope);
  Flow run_node(const CallBlock& node, const ScopePointer& scope);
  Flow run_node(const FilterBlock& node, const ScopePointer& scope);
  Flow run_node(const With& node, const ScopePointer& scope);
  Flow run_node(const Generation& node, const ScopePointer& scope);
  Flow run_node(const Break&, const ScopePointer&) { return Flow::kBreak; }
  Flow run_node(const Continue&, const ScopePointer&) { return Flow::kContinue; }

  void write(TracedText text);
  // Renders a body into a text instead of the output.
  TracedText capture(const Body& body, const ScopePointer& scope);
  // Index of the message that a value is or was made of; -1: of none.
  std::int32_t message_of(const Value& value) const;
  void assign(const Target& target, const Value& value, const ScopePointer& scope);
  List loop_items(const For& node, const Value& from, const ScopePointer& scope);
  Flow loop_over(const For& node, List items, const ScopePointer& scope, std::int64_t depth);
  Value call_macro(const MacroBody& macro, const ScopePointer& scope, const Arguments& arguments);
  void bind_parameters(const MacroBody& macro, const Arguments& arguments,
                       const ScopePointer& scope);

  Value evaluate(const Expression& expression, const ScopePointer& scope);
  Value value_of(const Constant& node, const ScopePointer& scope);
  Value value_of(const Name& node, const ScopePointer& scope);
  Value value_of(const SequenceLiteral& node, const ScopePointer& scope);
  Value value_of(const DictLiteral& node, const ScopePointer& scope);
  Value value_of(const Attribute& node, const ScopePointer& scope);
  Value value_of(const Item& node, const ScopePointer& scope);
  Value value_of(const Slice& node, const ScopePointer& scope);
  Value value_of(const Call& node, const ScopePointer& scope);
  Value value_of(const Filter& node, const ScopePointer& scope);
  Value value_of(const Test& node, const ScopePointer& scope);
  Value value_of(const Unary& node, const ScopePointer& scope);
  Value value_of(const Binary& node, const ScopePointer& scope);
  Value value_of(const Logic& node, const ScopePointer& scope);
  Value value_of(const Concatenation& node, const ScopePointer& scope);
  Value value_of(const Compare& node, const ScopePointer& scope);
  Value value_of(const Conditional& node, const ScopePointer& scope);

  Arguments arguments_of(const CallArguments& node, const ScopePointer& scope);
  Value call(const Call& node, const Arguments& arguments, const ScopePointer& scope);
  // Applies the filters of a block; the innermost one gets the block's text as input.
  Value filter_block(const Expression& filter, const ScopePointer& scope, TracedText text);

  Runtime& runtime_;
  const Dict& context_;
  std::unordered_map<const Dict*, std::int32_t> messages_;
  std::int32_t turn_ = -1;        // the message that is being written; -1: none
  bool turn_is_item_ = false;     // it is the item of a loop
  std::int32_t macro_turn_ = -1;  // the one for which a macro was called
  bool in_macro_ = false;
  bool in_loop_ = false;
  TracedText root_;
  TracedText* out_ = &root_;
  std::size_t counted_bytes_ = 0, counted_points_ = 0;  // for root_
  std::vector<GenerationSpan> spans_;
  Value block_text_;
  // Scopes captured by macros, which the scopes may own in turn; cleared at the end to break
  // reference cycles.
  std::vector<ScopePointer> captured_;
};

}  // namespace bev::jinja
