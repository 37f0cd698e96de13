#include "base/cache_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Entries = CacheFile::Entries;

const Entries kSome = {{"a key, with: signs", "00ff"}, {"another", "v"}, {"b", "x y z"}};

// Output of `action` on stderr.
template <class F>
std::string warnings(F&& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

TEST(CacheFile, KeepsEntriesForTheNextProcess) {
  TempFolder folder;
  std::string path = folder.path("deep/er/cache");
  CacheFile first(path);
  EXPECT_FALSE(first.find("key"));
  first.put("key", "value");
  first.put("other", "1");
  first.put("key", "newer");
  CacheFile second(path);
  EXPECT_EQ(second.find("key"), "newer");
  EXPECT_EQ(second.find("other"), "1");
  EXPECT_FALSE(second.find("ke"));
}

TEST(CacheFile, TextAndEntriesAreTheSame) {
  EXPECT_EQ(CacheFile::parse(CacheFile::format(kSome)), kSome);
  EXPECT_EQ(CacheFile::parse(CacheFile::format({})), Entries{});
}

TEST(CacheFile, EveryTruncationIsSeen) {
  std::string text = CacheFile::format(kSome);
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(CacheFile::parse(std::string_view(text).substr(0, size))) << size;
  }
  EXPECT_FALSE(CacheFile::parse(text + "\n"));
  EXPECT_FALSE(CacheFile::parse(text + text));
}

TEST(CacheFile, EveryChangedByteIsSeen) {
  std::string text = CacheFile::format(kSome);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (char other : {'\0', '\n', '\t', 'a', '\xff'}) {
      std::string changed = text;
      changed[at] = other;
      if (changed != text) {
        EXPECT_FALSE(CacheFile::parse(changed)) << at;
      }
    }
  }
}

// With a valid hash, as another program or version might write it.
TEST(CacheFile, LinesThatAreNoEntriesAreSeen) {
  for (const char* value : {"a\nb", "a\nb\tc\nb", "a\tb", "\x01", "", "a\nk\tagain"}) {
    EXPECT_FALSE(CacheFile::parse(CacheFile::format({{"k", value}}))) << value;
  }
}

TEST(CacheFile, AForeignOrDamagedFileIsLeftAsideWithAWarningAndReplaced) {
  std::string good = CacheFile::format(kSome);
  for (const std::string& content :
       {std::string(), std::string("hello\n"), good.substr(0, good.size() / 2),
        std::string(100000, '\0'), std::string("bevatron cache 2\nend 0\n"),
        std::string((std::size_t{16} << 20) + 1, 'x')}) {
    TempFolder folder;
    std::string path = folder.write("cache", content);
    std::string said = warnings([&] {
      CacheFile cache(path);
      EXPECT_FALSE(cache.find("b"));
      cache.put("new", "1");
    });
    EXPECT_NE(said.find("damaged"), said.npos) << said;
    EXPECT_EQ(said.find("damaged"), said.rfind("damaged")) << "told once: " << said;
    EXPECT_EQ(warnings([&] { EXPECT_EQ(CacheFile(path).find("new"), "1"); }), "");
  }
}

TEST(CacheFile, WhatCannotBeReadOrWrittenEndsNothing) {
  TempFolder folder;
  std::string a_folder = folder.path("folder"), a_pipe = folder.path("pipe");
  make_directories(a_folder + "/inside");
  ASSERT_EQ(::mkfifo(a_pipe.c_str(), 0600), 0);
  folder.write("file", "");
  for (const std::string& path : {a_folder, folder.path("file/below/cache")}) {
    std::string said = warnings([&] {
      CacheFile cache(path);
      cache.put("k", "v");
      cache.put("l", "w");
      EXPECT_EQ(cache.find("k"), "v") << "it serves this process";
    });
    EXPECT_NE(said.find("warning"), said.npos);
    EXPECT_EQ(said.find("not kept"), said.rfind("not kept")) << "told once: " << said;
  }
  warnings([&] {
    CacheFile cache(a_pipe);  // does not wait for a writer
    cache.put("k", "v");
  });
  EXPECT_EQ(CacheFile(a_pipe).find("k"), "v");
}

TEST(CacheFile, RefusesTextThatWouldBreakTheFile) {
  TempFolder folder;
  CacheFile cache(folder.path("cache"));
  for (const char* bad : {"", "a\tb", "a\nb", "\x80"}) {
    expect_error(ErrorKind::kInternal, {"plain text"}, [&] { cache.put(bad, "v"); });
    expect_error(ErrorKind::kInternal, {"plain text"}, [&] { cache.put("k", bad); });
  }
}

TEST(CacheFile, ThreadsWithObjectsOfTheirOwnLoseNothing) {
  TempFolder folder;
  std::string path = folder.path("cache");
  constexpr int kThreads = 6, kEntries = 15;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CacheFile cache(path);
      for (int i = 0; i < kEntries; ++i) cache.put(concat(t, " ", i), concat("value ", t, " ", i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CacheFile all(path);
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEntries; ++i) {
      EXPECT_EQ(all.find(concat(t, " ", i)), concat("value ", t, " ", i));
    }
  }
}

// Concurrent processes, one of which is killed repeatedly while writing.
TEST(CacheFile, ProcessesLoseNothingThatWasWritten) {
  TempFolder folder;
  std::string path = folder.path("cache");
  constexpr int kProcesses = 4, kEntries = 20;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    pid_t child = ::fork();
    if (child == 0) {
      CacheFile cache(path);
      for (int i = 0; i < kEntries; ++i) cache.put(concat(p, " ", i), "v");
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (int i = 0; i < 10; ++i) {
    pid_t victim = ::fork();
    if (victim == 0) {
      CacheFile cache(path);
      for (int j = 0;; ++j) cache.put(concat("victim ", j % 50), "v");
    }
    ::usleep(3000);
    ::kill(victim, SIGKILL);
    ::waitpid(victim, nullptr, 0);
  }
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(warnings([&] {
              CacheFile all(path);
              for (int p = 0; p < kProcesses; ++p) {
                for (int i = 0; i < kEntries; ++i) EXPECT_TRUE(all.find(concat(p, " ", i)));
              }
            }),
            "");
}

}  // namespace
}  // namespace bev
