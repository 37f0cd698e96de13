#include "chat/jinja/parser.h"

#include <algorithm>
#include <array>

#include "chat/jinja/expression_parser.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/token_stream.h"

namespace bev::jinja {

namespace {

class StatementParser {
 public:
  explicit StatementParser(std::string_view source)
      : tokens_(cut_template(source)), expressions_(tokens_) {}

  Body parse() {
    Body body = statements({});
    if (!tokens_.at(TokenKind::kEnd)) tokens_.fail("the template does not go on here");
    return body;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Parses up to a tag that begins with one of the names; the position is then after its "{%".
  Body statements(Ends ends) {
    constexpr int kMostDepth = 100;
    if (++depth_ > kMostDepth) tokens_.fail("blocks nest too deep");
    Body out;
    while (!tokens_.at(TokenKind::kEnd)) {
      int line = tokens_.line();
      if (tokens_.at(TokenKind::kText)) {
        out.push_back({line, Text{tokens_.take().text}});
      } else if (tokens_.at(TokenKind::kPrintBegin)) {
        tokens_.take();
        Print node;
        node.values.push_back(expressions_.expression_or_tuple());
        out.push_back({line, std::move(node)});
        tokens_.need(TokenKind::kPrintEnd, "'}}'");
      } else {
        tokens_.need(TokenKind::kBlockBegin, "'{%'");
        if (std::ranges::any_of(ends, [&](auto end) { return tokens_.at_name(end); })) break;
        out.push_back(statement());
      }
    }
    --depth_;
    return out;
  }

  std::unique_ptr<Body> block(Ends ends) {
    end_tag();
    return std::make_unique<Body>(statements(ends));
  }
  // Parses a block including its end tag.
  std::unique_ptr<Body> whole_block(std::string_view end) {
    std::unique_ptr<Body> body = block({end});
    tokens_.need_name(end);
    end_tag();
    return body;
  }
  void end_tag() { tokens_.need(TokenKind::kBlockEnd, "'%}'"); }

  Statement statement() {
    int line = tokens_.line();
    std::string tag = tokens_.need_name();
    if (tag == "for") return {line, for_statement()};
    if (tag == "if") return {line, if_statement()};
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return {line, macro_statement()};
    if (tag == "call") return {line, call_block()};
    if (tag == "filter") {
      ExpressionPointer filter = expressions_.filters(nullptr);
      return {line, FilterBlock{std::move(filter), whole_block("endfilter")}};
    }
    if (tag == "with") return {line, with_block()};
    if (tag == "generation") return {line, Generation{whole_block("endgeneration")}};
    if (tag == "print") {
      Print node;
      do {
        node.values.push_back(expressions_.expression());
      } while (tokens_.skip_operator(","));
      end_tag();
      return {line, std::move(node)};
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) tokens_.fail(concat("'", tag, "' outside a loop"));
      end_tag();
      if (tag == "break") return {line, Break{}};
      return {line, Continue{}};
    }
    refuse(tag);
  }

  [[noreturn]] void refuse(const std::string& tag) {
    constexpr std::array<std::string_view, 5> kFiles = {"include", "import", "from", "extends",
                                                        "block"};
    if (std::ranges::find(kFiles, tag) != kFiles.end()) {
      tokens_.fail(concat("'", tag, "' is refused: a chat template is one file,"));
    }
    if (tag.starts_with("end") || tag == "else" || tag == "elif") {
      tokens_.fail(concat("'", tag, "' without its block"));
    }
    tokens_.fail(concat("there is no tag '", tag, "'"));
  }

  Target single_target() {
    Target target;
    if (tokens_.skip_operator("(")) {
      target = target_list();
      tokens_.need_operator(")");
      return target;
    }
    target.name = tokens_.need_name();
    constexpr std::array<std::string_view, 6> kReserved = {"true", "false", "none",
                                                           "True", "False", "None"};
    if (std::ranges::find(kReserved, target.name) != kReserved.end()) {
      tokens_.fail(concat("cannot assign to '", target.name, "'"));
    }
    if (tokens_.skip_operator(".")) target.attribute = tokens_.need_name();
    return target;
  }

  Target target_list() {
    Target first = single_target();
    if (!tokens_.at_operator(",")) return first;
    Target list;
    list.is_tuple = true;
    list.parts.push_back(std::move(first));
    while (tokens_.skip_operator(",")) {
      if (!tokens_.at(TokenKind::kName) && !tokens_.at_operator("(")) break;
      if (tokens_.at_name("in")) break;
      list.parts.push_back(single_target());
    }
    return list;
  }

  For for_statement() {
    For node;
    node.target = target_list();
    tokens_.need_name("in");
    node.items = expressions_.items_of_loop();
    if (tokens_.skip_name("if")) node.filter = expressions_.expression();
    node.recursive = tokens_.skip_name("recursive");
    ++loops_;
    node.body = block({"endfor", "else"});
    --loops_;
    if (tokens_.skip_name("else")) node.otherwise = block({"endfor"});
    tokens_.need_name("endfor");
    end_tag();
    return node;
  }

  If if_statement() {
    If node;
    do {
      ExpressionPointer condition = expressions_.expression_or_tuple();
      node.branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}));
    } while (tokens_.skip_name("elif"));
    if (tokens_.skip_name("else")) node.otherwise = block({"endif"});
    tokens_.need_name("endif");
    end_tag();
    return node;
  }

  Statement set_statement(int line) {
    Target target = target_list();
    if (tokens_.skip_operator("=")) {
      Set node{std::move(target), expressions_.expression_or_tuple()};
      end_tag();
      return {line, std::move(node)};
    }
    SetBlock node{std::move(target), nullptr, nullptr};
    if (tokens_.skip_operator("|")) node.filter = expressions_.filters(nullptr);
    node.body = whole_block("endset");
    return {line, std::move(node)};
  }

  void parameters(MacroBody& macro) {
    tokens_.need_operator("(");
    bool defaults = false;
    while (!tokens_.skip_operator(")")) {
      if (!macro.parameters.empty()) tokens_.need_operator(",");
      std::string name = tokens_.need_name();
      ExpressionPointer fallback;
      if (tokens_.skip_operator("=")) {
        fallback = expressions_.expression();
        defaults = true;
      } else if (defaults) {
        tokens_.fail(concat("parameter '", name, "' without a default follows one with it"));
      }
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
    }
  }

  // The body of a macro starts outside loops: break cannot leave a macro.
  std::unique_ptr<Body> body_of(std::string_view end) {
    int loops = std::exchange(loops_, 0);
    std::unique_ptr<Body> body = whole_block(end);
    loops_ = loops;
    return body;
  }

  MacroStatement macro_statement() {
    auto macro = std::make_shared<MacroBody>();
    macro->name = tokens_.need_name();
    parameters(*macro);
    macro->body = body_of("endmacro");
    return {std::move(macro)};
  }

  CallBlock call_block() {
    auto caller = std::make_shared<MacroBody>();
    caller->name = "caller";
    if (tokens_.at_operator("(")) parameters(*caller);
    ExpressionPointer call = expressions_.primary_with_postfix();
    if (!std::holds_alternative<Call>(call->node)) tokens_.fail("{% call %} needs a call");
    caller->body = body_of("endcall");
    return {std::move(caller), std::move(call)};
  }

  With with_block() {
    With node;
    while (!tokens_.at(TokenKind::kBlockEnd)) {
      if (!node.values.empty()) tokens_.need_operator(",");
      Target target = single_target();
      tokens_.need_operator("=");
      node.values.emplace_back(std::move(target), expressions_.expression());
    }
    node.body = whole_block("endwith");
    return node;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

// Collects the bodies inside a statement.
struct InnerBodies {
  std::vector<const Body*> out;

  void add(const std::unique_ptr<Body>& body) {
    if (body) out.push_back(body.get());
  }
  void operator()(const For& node) {
    add(node.body);
    add(node.otherwise);
  }
  void operator()(const If& node) {
    for (const auto& [condition, body] : node.branches) add(body);
    add(node.otherwise);
  }
  void operator()(const SetBlock& node) { add(node.body); }
  void operator()(const MacroStatement& node) { add(node.macro->body); }
  void operator()(const CallBlock& node) { add(node.caller->body); }
  void operator()(const FilterBlock& node) { add(node.body); }
  void operator()(const With& node) { add(node.body); }
  template <class Leaf>
  void operator()(const Leaf&) {}
};

}  // namespace

Body parse_template(std::string_view source) { return StatementParser(source).parse(); }

bool has_generation(const Body& body) {
  return std::ranges::any_of(body, [](const Statement& statement) {
    if (std::holds_alternative<Generation>(statement.node)) return true;
    InnerBodies inner;
    std::visit(inner, statement.node);
    return std::ranges::any_of(inner.out, [](const Body* one) { return has_generation(*one); });
  });
}

}  // namespace bev::jinja
