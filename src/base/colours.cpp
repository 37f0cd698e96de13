#include "base/colours.h"

#include <unistd.h>

#include "base/environment.h"
#include "base/text.h"

namespace bev {

namespace {
std::string_view code_of(Style style) {
  switch (style) {
    case Style::kHeading:
      return "\x1b[1m";
    case Style::kFlag:
      return "\x1b[36m";
    case Style::kWarning:
      return "\x1b[1;33m";
    case Style::kError:
      return "\x1b[1;31m";
  }
  return "";
}
}  // namespace

bool has_colours(int descriptor) {
  if (::isatty(descriptor) != 1) return false;
  std::map<std::string, std::string> variables = environment_variables();
  return variables["NO_COLOR"].empty() && variables["TERM"] != "dumb";
}

std::string styled(Style style, std::string_view text) {
  return concat(code_of(style), text, "\x1b[0m");
}

}  // namespace bev
