#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/colours.h"

namespace bev {

namespace {
void write_line(std::string_view prefix, std::string_view text) {
  std::string line;
  line.reserve(prefix.size() + text.size() + 8);
  if (::isatty(STDERR_FILENO) == 1) line.append("\r\x1b[K");
  line.append(prefix).append(text);
  if (!text.ends_with('\n')) line.push_back('\n');

  std::string_view rest = line;
  while (!rest.empty()) {
    ssize_t put = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return;  // stderr itself failed: there is nowhere to report it
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::string label(std::string_view text, Style style) {
  std::string out = has_colours(STDERR_FILENO) ? styled(style, text) : std::string(text);
  out.push_back(' ');
  return out;
}
}  // namespace

void log_info(std::string_view text) { write_line("", text); }
void log_warning(std::string_view text) { write_line(label("warning:", Style::kWarning), text); }
void log_error(std::string_view text) { write_line(label("error:", Style::kError), text); }

}  // namespace bev
