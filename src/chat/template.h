// A Jinja template, as transformers runs chat templates: trim_blocks, lstrip_blocks, loop controls,
// {% generation %}, its own tojson, and a sandbox in which values do not change.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/value.h"

namespace bev::jinja {

// A part of the text that a {% generation %} block wrote, in characters, as transformers counts
// them: of a block inside a macro or a captured text the place is where the template was then.
struct GenerationSpan {
  std::size_t begin = 0, end = 0;
};

struct Rendered {
  std::string text;
  std::vector<GenerationSpan> spans;
};

class Template {
 public:
  // `name` is for messages: the file it comes from. Error(kInput) with the line when the template
  // is not understood.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  // Error(kInput) with the line when it fails. May be called by several threads at once.
  Rendered render(const Dict& context) const;
  bool has_generation() const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
  std::string name_;
};

}  // namespace bev::jinja
