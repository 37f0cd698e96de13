// How commands mark tokens without loss on standard output.
#pragma once

#include "data/marked_text.h"

namespace bev {

// Faint text on a terminal, if it has colours; else brackets.
MaskMarks mask_marks();

}  // namespace bev
