#include "chat/jinja/template.h"

#include "base/error.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/parser.h"
#include "tokenizer/text/utf8.h"

namespace bev::jinja {

struct Template::Tree {
  Body body;
};

Template::Template(std::string_view source, std::string name)
    : source_(source), name_(std::move(name)) {
  BEV_CHECK(is_valid_utf8(source), ErrorKind::kInput, name_, ": not valid UTF-8");
  try {
    tree_ = std::make_unique<Tree>(Tree{parse_template(source)});
  } catch (const Error& error) {
    throw Error(concat(name_, ", "), error);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendered Template::render(const Dict& context) const {
  Runtime runtime;
  try {
    Interpreter interpreter(runtime, context);
    interpreter.run(tree_->body);
    const TracedText& text = interpreter.text();
    return {text.text(), interpreter.spans(), text.runs()};
  } catch (const Error& error) {
    throw Error(concat(name_, ", line ", runtime.line, ": "), error);
  }
}

bool Template::has_generation() const { return jinja::has_generation(tree_->body); }

}  // namespace bev::jinja
