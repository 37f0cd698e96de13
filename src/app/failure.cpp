#include "app/failure.h"

#include "app/command.h"

namespace bev {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
    case ErrorKind::kInput:
      return kExitInput;
    default:
      return kExitFailed;
  }
}

std::string failure_text(ErrorKind kind, const std::string& message, const std::string& where) {
  if (kind != ErrorKind::kInternal) return message;
  return concat(message, " (a bug in bevatron, at ", where, ")");
}

}  // namespace bev
