#include "base/append_file.h"

#include <gtest/gtest.h>

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
