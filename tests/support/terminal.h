// A program on a pseudo terminal, as a user at a keyboard has it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "tests/support/temp_folder.h"

namespace bev {

class Terminal {
 public:
  // Runs the command by a shell in `folder`.
  Terminal(const TempFolder& folder, const std::string& command);
  ~Terminal();  // kills the program if it is still there
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys);
  // Reads until `text` has come after what was waited for before. False at the end of the output or
  // after half a minute.
  bool wait_for(std::string_view text);
  // The same for so many more bytes.
  bool wait_for_bytes(std::size_t count);
  // The rest of the output; returns the exit code, 128 + the signal that ended it.
  int finish();
  const std::string& output() const { return output_; }

 private:
  bool read_more();

  pid_t child_ = -1;
  int master_ = -1;
  std::string output_;
  std::size_t seen_ = 0;
};

}  // namespace bev
