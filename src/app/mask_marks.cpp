#include "app/mask_marks.h"

#include <unistd.h>

#include "base/colours.h"

namespace bev {

MaskMarks mask_marks() {
  return has_colours(STDOUT_FILENO) ? MaskMarks::kFaint : MaskMarks::kBrackets;
}

}  // namespace bev
