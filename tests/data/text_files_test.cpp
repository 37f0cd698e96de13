// The rule for which files are text.
#include "data/preprocess/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kPng("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
const std::string kUtf16("\xff\xfeh\0i\0", 6);

class TextFilesTest : public testing::Test {
 protected:
  std::vector<std::string> names(const std::string& under) {
    const std::string given[] = {folder_.path(under)};
    inputs_ = list_inputs(given, options_);
    std::vector<std::string> out;
    for (const InputFile& file : inputs_.files) {
      out.push_back(file.path.substr(folder_.path().size() + 1));
    }
    return out;
  }
  void expect_named(const std::string& name, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kInput, parts, [&] { names(name); });
    expect_error(ErrorKind::kInput, {folder_.path(name)}, [&] { names(name); });
  }

  TempFolder folder_;
  TextOptions options_;
  TextInputs inputs_;
};

TEST_F(TextFilesTest, FoldersGiveTextAndCountTheRest) {
  folder_.write("d/.git/objects/ab/cdef", "x\x9c binary");
  folder_.write("d/.env", "SECRET=1");
  folder_.write("d/sub/.hidden.txt", "hidden");
  folder_.write("d/sub/deep/a.py", "print('a')\n");
  folder_.write("d/Makefile", "all:\n\ttrue\n");
  folder_.write("d/README", "plain text without an ending, \xe2\x82\xac");
  folder_.write("d/latin.c", "// caf\xe9\n");  // text by its ending
  folder_.write("d/latin", "caf\xe9\n");       // no UTF-8, no known ending
  folder_.write("d/logo.png", kPng);
  folder_.write("d/paper", "%PDF-1.4\nascii only");
  folder_.write("d/data.zip", "PK\3\4 something");
  folder_.write("d/fake.txt", std::string("text\0text", 9));
  folder_.write("d/wide.txt", kUtf16);
  folder_.write("d/empty.txt", "");
  folder_.write("d/book.txt.gz", gzip("in an archive"));
  folder_.write("d/pic.gz", gzip(kPng));
  folder_.write("d/package.json", "{\n  \"text\": \"x\"\n}\n");
  folder_.write("d/other.json", "[{\"name\": \"text\"}]");
  folder_.write("d/rows.json", " [\n {\"text\": \"a\"}]");
  folder_.write("d/lines.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  ASSERT_EQ(symlink(folder_.path("d").c_str(), folder_.path("d/loop").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", folder_.path("d/dangling").c_str()), 0);
  ASSERT_EQ(symlink("self", folder_.path("d/self").c_str()), 0);
  ASSERT_EQ(mkfifo(folder_.path("d/pipe").c_str(), 0600), 0);
  EXPECT_THAT(names("d"),
              ElementsAre("d/Makefile", "d/README", "d/book.txt.gz", "d/latin.c", "d/lines.json",
                          "d/other.json", "d/package.json", "d/rows.json", "d/sub/deep/a.py"));
  EXPECT_EQ(inputs_.files[4].format, TextFormat::kJsonLines);
  EXPECT_EQ(inputs_.files[5].format, TextFormat::kText);
  EXPECT_EQ(inputs_.files[6].format, TextFormat::kText);
  EXPECT_EQ(inputs_.files[7].format, TextFormat::kJsonLines);
  EXPECT_FALSE(inputs_.files[7].cuttable);
  const LeftOut& out = inputs_.left_out;
  EXPECT_EQ(out.count(LeftOutReason::kHidden), 3);  // a folder counts once
  EXPECT_EQ(out.count(LeftOutReason::kBinary), 6);
  EXPECT_EQ(out.count(LeftOutReason::kUtf16), 1);
  EXPECT_EQ(out.count(LeftOutReason::kEmpty), 1);
  EXPECT_EQ(out.count(LeftOutReason::kLink), 3);
  EXPECT_EQ(out.count(LeftOutReason::kSpecial), 1);
  std::string text = to_text(inputs_);
  EXPECT_THAT(text, HasSubstr("read 9 files, "));
  EXPECT_THAT(text, HasSubstr("; left out 3 hidden ("));
  EXPECT_THAT(text, HasSubstr("sub/.hidden.txt"));
  EXPECT_THAT(text, HasSubstr("6 binary (data.zip, fake.txt, latin, ...)"));
  EXPECT_THAT(text, HasSubstr("1 in UTF-16 (wide.txt)"));
}

TEST_F(TextFilesTest, AFileGivenByItsNameIsReadOrRefused) {
  folder_.write("logo.png", kPng);
  folder_.write("wide.txt", kUtf16);
  folder_.write("zero.txt", std::string("a\0b", 3));
  folder_.write(".env", "A=1");
  folder_.write("empty", "");
  expect_named("logo.png", {"is a binary file"});
  expect_named("wide.txt", {"UTF-16", "iconv"});
  expect_named("zero.txt", {"is a binary file"});
  EXPECT_THAT(names(".env"), ElementsAre(".env"));  // it was asked for
  EXPECT_THAT(names("empty"), ElementsAre("empty"));
  options_.format = TextFormat::kText;  // bytes are bytes
  EXPECT_THAT(names("zero.txt"), ElementsAre("zero.txt"));
}

TEST_F(TextFilesTest, SaysWhyNothingIsLeft) {
  folder_.write("d/.env", "A=1");
  folder_.write("d/logo.png", kPng);
  expect_named("d", {"there is no text in it", "left out 1 hidden (.env), 1 binary (logo.png)"});
  ASSERT_EQ(mkdir(folder_.path("none").c_str(), 0700), 0);
  expect_named("none", {"there is no text in it"});
}

// The first bytes are looked at, and may end inside of a character.
TEST_F(TextFilesTest, ACharacterMayBeCutAtTheEndOfTheFirstBytes) {
  for (std::size_t before = 65530; before <= 65540; ++before) {
    folder_.write("d/a", std::string(before, 'x') + "\xf0\x9f\x98\x80 and more");
    EXPECT_EQ(names("d").size(), 1u) << before;
  }
  folder_.write("d/a", std::string("xx\xf0\x9f\x98"));  // really cut
  expect_error(ErrorKind::kInput, {"1 binary (a)"}, [&] { names("d"); });
}

TEST_F(TextFilesTest, RecordsAreWantedWithoutTheirReadme) {
  options_.format = TextFormat::kJsonLines;
  options_.only_records = true;
  folder_.write("d/README.md", "# data");
  folder_.write("d/dataset_info.json", "{\n \"rows\": 1\n}");
  folder_.write("d/part-0", "{\"prompt\": \"a\"}\n");
  folder_.write("d/a.jsonl", "{}\n");
  options_.json_keys = {"messages", "prompt"};
  EXPECT_THAT(names("d"), ElementsAre("d/a.jsonl", "d/part-0"));
  EXPECT_THAT(to_text(inputs_), HasSubstr("2 of plain text (README.md, dataset_info.json)"));
}

}  // namespace
}  // namespace bev
