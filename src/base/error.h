// The one exception type of Bevatron, and the check that throws it.
// Messages start with the op, file or flag concerned and carry the values; the kind decides the
// exit code.
#pragma once

#include <cstdint>
#include <exception>
#include <source_location>
#include <string>

#include "base/text.h"

namespace bev {

enum class ErrorKind : std::uint8_t {
  kConfig,    // a flag, a configuration file or their combination
  kInput,     // a file to read is missing, unreadable, corrupt, truncated or of unknown format
  kIo,        // writing failed: disk full, no permission
  kShape,     // an op received tensors of the wrong shape
  kNumeric,   // NaN or Inf where it is not allowed
  kDevice,    // error of the accelerator
  kComm,      // a collective timed out, or a peer is gone
  kInternal,  // a bug of ours
};

const char* name_of(ErrorKind kind);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message,
        std::source_location where = std::source_location::current());
  // Same error with `before` prepended to its message.
  Error(std::string_view before, const Error& error)
      : kind_(error.kind_), message_(concat(before, error.message_)), where_(error.where_) {}

  const char* what() const noexcept override { return message_.c_str(); }
  ErrorKind kind() const { return kind_; }
  // "file.cpp:123" of the throwing line; for logs, not for users.
  const std::string& where() const { return where_; }

 private:
  ErrorKind kind_;
  std::string message_;
  std::string where_;
};

namespace detail {
template <class... Parts>
[[noreturn]] void fail(std::source_location where, ErrorKind kind, const Parts&... parts) {
  throw Error(kind, concat(parts...), where);
}
template <class... Parts>
[[noreturn]] void fail(std::source_location where, const Parts&... parts) {
  throw Error(ErrorKind::kShape, concat(parts...), where);
}
}  // namespace detail

}  // namespace bev

// BEV_CHECK(cond, [ErrorKind::kX,] "op: what ", value, " ...") throws bev::Error when cond is
// false. Without a kind the error is of kind shape.
#define BEV_CHECK(cond, ...)                                             \
  do {                                                                   \
    if (!(cond)) [[unlikely]]                                            \
      ::bev::detail::fail(std::source_location::current(), __VA_ARGS__); \
  } while (false)

#define BEV_FAIL(...) ::bev::detail::fail(std::source_location::current(), __VA_ARGS__)
