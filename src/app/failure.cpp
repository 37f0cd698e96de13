#include "app/failure.h"

#include "app/commands.h"

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

std::string failure_text(const Error& error) {
  if (error.kind() != ErrorKind::kInternal) return error.what();
  return concat(error.what(), " (a bug in bevatron, at ", error.where(), ")");
}

}  // namespace bev
