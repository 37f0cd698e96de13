// Jinja template engine with transformers' settings for chat templates: trim_blocks, lstrip_blocks,
// loop controls, {% generation %}, its own tojson, and an immutable sandbox.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace bev::jinja {

// Part of the output that a {% generation %} block wrote, in code points, as transformers counts: a
// block inside a macro or a captured text has the output position at that time.
struct GenerationSpan {
  std::size_t begin = 0, end = 0;
};

struct Rendered {
  std::string text;
  std::vector<GenerationSpan> spans;
  // Which message of `messages` the text comes from; see Interpreter::text().
  std::vector<TextRun> origins;
};

class Template {
 public:
  // `name` is the file, for messages. Throws Error(kInput) with the line if the template is
  // invalid.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  // Throws Error(kInput) with the line if rendering fails. Thread safe.
  Rendered render(const Dict& context) const;
  bool has_generation() const;
  const std::string& source() const { return source_; }
  const std::string& name() const { return name_; }

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
  std::string source_, name_;
};

}  // namespace bev::jinja
