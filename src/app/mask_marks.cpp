#include "app/mask_marks.h"

#include <unistd.h>

#include "app/environment.h"

namespace bev {

MaskMarks mask_marks() {
  const std::map<std::string, std::string> variables = environment_variables();
  auto no_color = variables.find("NO_COLOR");
  bool plain = no_color != variables.end() && !no_color->second.empty();
  return ::isatty(STDOUT_FILENO) == 1 && !plain ? MaskMarks::kFaint : MaskMarks::kBrackets;
}

}  // namespace bev
