#include "train/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using ::testing::HasSubstr;

constexpr RunLockTimes kShort{.beat_seconds = 0.02, .watch_seconds = 0.2};

std::string refusal(const std::string& folder, double watch_seconds = 0.2) {
  try {
    RunLock lock(folder, {.beat_seconds = 0.02, .watch_seconds = watch_seconds});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(RunLock, ALiveHolderIsNamedAndTheFileGoesWithIt) {
  TempFolder folder;
  {
    RunLock lock(folder.path("."), kShort);
    std::string text = refusal(folder.path("."));
    EXPECT_THAT(text, HasSubstr(concat("process ", ::getpid(), " on ")));
    EXPECT_THAT(text, HasSubstr("give another folder"));
    EXPECT_TRUE(path_exists(folder.path("run.lock")));
  }
  EXPECT_FALSE(path_exists(folder.path("run.lock")));
  EXPECT_EQ(refusal(folder.path(".")), "");
}

// The process id of the killed holder may belong to a process that lives, even to this one.
TEST(RunLock, TheFileOfAKilledRunIsTakenOverWhateverItsProcessIdIsNow) {
  TempFolder folder;
  { RunLock lock(folder.path("."), kShort); }
  std::string text;
  {
    RunLock lock(folder.path("."), kShort);
    text = read_file(folder.path("run.lock"));
  }
  for (const std::string& left : {text, std::string("{\"pid\": "), std::string()}) {
    folder.write("run.lock", left);
    EXPECT_EQ(refusal(folder.path(".")), "");
    EXPECT_FALSE(path_exists(folder.path("run.lock")));
  }
}

// A holder on another machine lives as long as it rewrites the file.
TEST(RunLock, AHolderElsewhereIsWatched) {
  TempFolder folder;
  auto record = [](int beat) {
    return concat(R"({"host":"elsewhere","pid":7,"begun":"today","boot":"x","beat":)", beat, "}");
  };
  folder.write("run.lock", record(0));
  EXPECT_EQ(refusal(folder.path(".")), "");
  folder.write("run.lock", record(0));
  std::atomic<bool> done{false};
  std::thread holder([&] {
    for (int beat = 1; !done.load(); ++beat) {
      folder.write("run.lock", record(beat));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  std::string text = refusal(folder.path("."), 30);
  done.store(true);
  holder.join();
  EXPECT_THAT(text, HasSubstr("process 7 on 'elsewhere', begun 'today'"));
  EXPECT_THAT(text, HasSubstr("if that process is certainly gone, remove "));
}

}  // namespace
}  // namespace bev
