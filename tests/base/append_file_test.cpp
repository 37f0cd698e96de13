#include "base/append_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace bev {
namespace {

TEST(AppendFile, OpensInThreeWays) {
  std::string path = testing::TempDir() + "append_file_test.txt";
  AppendFile(path, OpenMode::kTruncate).write("one");
  AppendFile(path, OpenMode::kAppend).write("two");
  EXPECT_EQ(read_file(path), "onetwo");
  EXPECT_THROW(AppendFile(path, OpenMode::kExclusive), Error);
  AppendFile file(path, OpenMode::kTruncate);
  EXPECT_EQ(read_file(path), "");
  file.write("now");
  EXPECT_EQ(read_file(path), "now");
}

TEST(AppendFile, APipeThatNobodyReadsIsAnError) {
  std::string path = testing::TempDir() + "append_file_test.pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(AppendFile(path, OpenMode::kAppend), Error);
  int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  AppendFile(path, OpenMode::kAppend).write("one");
  char bytes[4] = {};
  EXPECT_EQ(read(reader, bytes, sizeof bytes), 3);
  close(reader);
  unlink(path.c_str());
}

TEST(AppendFile, AFullDiskIsAnIoError) {
  AppendFile file("/dev/full", OpenMode::kAppend);
  try {
    file.write("text");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_STREQ(error.what(), "cannot write /dev/full: No space left on device");
  }
}

}  // namespace
}  // namespace bev
