#include "base/file.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {
TEST(File, WriteAndReadBack) {
  TempFolder folder;
  std::string path = folder.path("data"), content(300000, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 % 251);
  for (const std::string& text : {content, std::string("short"), std::string()}) {
    write_file(path, text);
    EXPECT_TRUE(read_file(path) == text);
    EXPECT_FALSE(path_exists(path + ".tmp"));
    MappedFile map(path);
    EXPECT_EQ(map.bytes().size(), text.size());
    EXPECT_TRUE(
        std::string(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()) == text);
  }
}

TEST(File, ReadsFilesWithoutASize) { EXPECT_FALSE(read_file("/proc/self/status").empty()); }

TEST(File, AtomicFileKeepsTheOldContentUntilCommit) {
  TempFolder folder;
  std::string path = folder.write("file", "old");
  {
    AtomicFile file(path);
    file.write("new ");
    file.write("content");
    EXPECT_EQ(read_file(path), "old");
    EXPECT_TRUE(path_exists(path + ".tmp"));
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(path_exists(path + ".tmp"));
  AtomicFile file(path);
  file.write("new");
  file.commit();
  EXPECT_EQ(read_file(path), "new");
  EXPECT_FALSE(path_exists(path + ".tmp"));
}

TEST(File, LeftoverTemporaryIsReplaced) {
  TempFolder folder;
  std::string path = folder.path("file");
  folder.write("file.tmp", "a longer text from a run that was killed");
  write_file(path, "x");
  EXPECT_EQ(read_file(path), "x");
}

TEST(File, AFullDiskIsAnErrorAndKeepsTheOldFile) {
  if (!path_exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TempFolder folder;
  std::string path = folder.write("file", "old");
  std::filesystem::create_symlink("/dev/full", path + ".tmp");
  expect_error(ErrorKind::kIo, {path, "No space left"},
               [&] { write_file(path, std::string(100000, 'x')); });
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(path_exists(path + ".tmp"));
}

TEST(File, CommitOntoAFolderFailsAndLeavesNothing) {
  TempFolder folder;
  make_directories(folder.path("taken/inside"));
  expect_error(ErrorKind::kIo, {folder.path("taken")},
               [&] { write_file(folder.path("taken"), "x"); });
  EXPECT_FALSE(path_exists(folder.path("taken.tmp")));
}

TEST(File, MissingFilesAreErrorsWithPathAndReason) {
  TempFolder folder;
  std::string missing = folder.path("missing");
  auto parts = std::vector<std::string>{missing, "No such file"};
  expect_error(ErrorKind::kInput, parts, [&] { read_file(missing); });
  expect_error(ErrorKind::kInput, parts, [&] { MappedFile map(missing); });
  expect_error(ErrorKind::kInput, parts, [&] { list_directory(missing); });
  expect_error(ErrorKind::kIo, parts, [&] { write_file(missing + "/file", "x"); });
}

TEST(File, AFolderIsNoFile) {
  TempFolder folder;
  auto parts = std::vector<std::string>{folder.path(), "Is a directory"};
  expect_error(ErrorKind::kInput, parts, [&] { read_file(folder.path()); });
  expect_error(ErrorKind::kInput, parts, [&] { MappedFile map(folder.path()); });
}

TEST(File, Directories) {
  TempFolder folder;
  make_directories(folder.path("a/b/c"));
  make_directories(folder.path("a/b/c"));
  make_directories(folder.path("a//d/"));
  EXPECT_TRUE(is_directory(folder.path("a/b/c")));
  EXPECT_TRUE(is_directory(folder.path("a/d")));
  folder.write("a/file", "");
  EXPECT_FALSE(is_directory(folder.path("a/file")));
  EXPECT_EQ(list_directory(folder.path("a")), (std::vector<std::string>{"b", "d", "file"}));
  expect_error(ErrorKind::kIo, {"file"}, [&] { make_directories(folder.path("a/file")); });
  expect_error(ErrorKind::kIo, {"file"}, [&] { make_directories(folder.path("a/file/b")); });
}

TEST(File, Paths) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("a/b/"), "a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("/"), ".");
}

TEST(File, MappedFileMoves) {
  TempFolder folder;
  MappedFile first(folder.write("one", "1111")), second(folder.write("two", "22"));
  MappedFile moved(std::move(first));
  EXPECT_EQ(moved.bytes().size(), 4u);
  EXPECT_EQ(moved.path(), folder.path("one"));
  second = std::move(moved);
  EXPECT_EQ(second.bytes().size(), 4u);
  EXPECT_EQ(static_cast<char>(second.bytes()[3]), '1');
}
}  // namespace
}  // namespace bev
