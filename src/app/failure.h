// Maps errors to messages and exit codes.
#pragma once

#include <string>

#include "base/error.h"

namespace bev {

int exit_code(ErrorKind kind);
// The message for the user. An internal error is labelled as a bug, with the source line that
// threw.
std::string failure_text(ErrorKind kind, const std::string& message, const std::string& where);

}  // namespace bev
