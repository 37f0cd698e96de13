// Server-sent events: the text of an event, and a parser of streams of them.
#pragma once

#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace bev {

// "data: ...\n\n"; `data` holds no line break.
std::string sse_event(std::string_view data);

class SseParser {
 public:
  // Adds bytes of the stream; each(data) is called for each event that they complete, with its data
  // lines joined by line feeds. Comments and other fields are skipped.
  void add(std::string_view bytes, FunctionRef<void(std::string_view data)> each);

 private:
  void end_line(FunctionRef<void(std::string_view data)> each);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, first_line_ = true;
};

}  // namespace bev
