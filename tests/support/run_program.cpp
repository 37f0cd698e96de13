#include "tests/support/run_program.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "base/file.h"
#include "base/text.h"

namespace bev {

Outcome run_shell(const TempFolder& folder, const std::string& command) {
  std::string errors = folder.path("stderr.txt");
  std::string whole = concat("cd ", folder.path(), " && (", command, ") 2>", errors, " </dev/null");
  Outcome run;
  FILE* pipe = ::popen(whole.c_str(), "r");
  std::array<char, 4096> buffer;
  while (std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    run.out.append(buffer.data(), got);
  }
  int status = ::pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.err = read_file(errors);
  return run;
}

}  // namespace bev
