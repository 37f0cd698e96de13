#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/text.h"

namespace bev {
namespace {

// Output of `run` on stderr.
template <class Run>
std::string captured(Run run) {
  std::string path = testing::TempDir() + "log_test.txt";
  int kept = ::dup(STDERR_FILENO);
  int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
  ::dup2(file, STDERR_FILENO);
  run();
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  ::close(file);
  return read_file(path);
}

TEST(Log, PrefixesAndEndsLines) {
  EXPECT_EQ(captured([] {
              log_info("plain");
              log_warning("careful");
              log_error("broken\n");
              log_info("");
            }),
            "plain\nwarning: careful\nerror: broken\n\n");
}

TEST(Log, LinesOfThreadsDoNotMix) {
  std::string text = captured([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i) log_info(std::string(100, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::vector<std::string> lines = split(text, '\n');
  EXPECT_EQ(lines.size(), 801u);
  std::set<std::string> kinds(lines.begin(), lines.end());
  EXPECT_EQ(kinds.size(), 5u);  // four letters and the empty end
}

}  // namespace
}  // namespace bev
