// What the program says when it fails, and the exit code that goes with it.
#pragma once

#include <string>

#include "base/error.h"

namespace bev {

int exit_code(ErrorKind kind);
// The message for the user; a bug of ours is named as such, with the line that threw.
std::string failure_text(ErrorKind kind, const std::string& message, const std::string& where);

}  // namespace bev
