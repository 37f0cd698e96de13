#include "serve/sse.h"

#include "base/text.h"

namespace bev {

std::string sse_event(std::string_view data) { return concat("data: ", data, "\n\n"); }

void SseParser::add(std::string_view bytes, FunctionRef<void(std::string_view data)> each) {
  while (!bytes.empty()) {
    // CR LF ends one line, also where the two come in different pieces.
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    std::size_t end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) return;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(each);
  }
}

void SseParser::end_line(FunctionRef<void(std::string_view data)> each) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view line = line_;
  if (first_line_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  first_line_ = false;
  if (line.empty()) {
    if (has_data_) each(data_);
    data_.clear();
    has_data_ = false;
  } else if (std::size_t colon = line.find(':'); line.substr(0, colon) == "data") {
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_.push_back('\n');
    data_.append(value);
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace bev
