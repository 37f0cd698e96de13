#include "base/error.h"

#include <utility>

namespace bev {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
      return "configuration";
    case ErrorKind::kInput:
      return "input";
    case ErrorKind::kIo:
      return "file";
    case ErrorKind::kShape:
      return "shape";
    case ErrorKind::kNumeric:
      return "numeric";
    case ErrorKind::kDevice:
      return "device";
    case ErrorKind::kComm:
      return "communication";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, std::string message, std::source_location where)
    : kind_(kind), message_(std::move(message)) {
  std::string_view file = where.file_name();
  if (auto slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
  where_ = concat(file, ":", where.line());
}

}  // namespace bev
