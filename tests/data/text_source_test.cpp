// Text source: document boundaries, division into parts, compressed files.
#include "data/preprocess/text_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "data/preprocess/byte_stream.h"
#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string read_stream(const std::string& path, std::size_t step) {
  std::unique_ptr<ByteStream> stream = open_byte_stream(path);
  std::string out, buffer(step, '\0');
  while (std::size_t count = stream->read(buffer)) out.append(buffer, 0, count);
  return out;
}

// Long text that compresses badly.
std::string noise(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::uint64_t state = 88172645463325252u;
  for (char& c : text) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    c = static_cast<char>(state >> 32);
  }
  return text;
}

class TextSourceTest : public testing::Test {
 protected:
  std::vector<InputFile> list(const std::vector<std::string>& names) {
    return list_inputs(names, options_).files;
  }
  std::vector<Record> records(const std::vector<std::string>& names, std::int64_t parts = 1) {
    std::vector<InputFile> files = list(names);
    std::vector<Record> out;
    for (const std::vector<FileRange>& ranges : cut_inputs(files, parts)) {
      TextSource source(files, ranges, options_);
      for (Record record; source.next(record);) {
        const std::string& path = files[record.file].path;
        places_.push_back(
            concat(path, ":", record.line + count_lines_before(path, record.from_byte)));
        out.push_back(record);
      }
    }
    return out;
  }
  std::vector<std::string> texts(const std::vector<std::string>& names, std::int64_t parts = 1) {
    std::vector<std::string> out;
    for (const Record& record : records(names, parts)) {
      out.push_back(record.problem.empty() ? record.text : record.problem);
    }
    return out;
  }

  TempFolder folder_;
  TextOptions options_;
  std::vector<std::string> places_;
};

TEST_F(TextSourceTest, ReadsArchivesOfSeveralMembers) {
  std::string a = "first\n", b = noise(3'000'000);
  for (std::size_t step : {std::size_t{7}, std::size_t{4096}, std::size_t{5'000'000}}) {
    if (step == 7) b.resize(100'000);
    std::string joined = a + b + a;
    std::string gz = folder_.write("a.gz", gzip(a) + gzip(b) + gzip("") + gzip(a));
    std::string padded = folder_.write("p.gz", gzip(joined) + std::string(1024, '\0'));
    std::string zst = folder_.write("a.zst", zstd(a) + zstd(b) + zstd("") + zstd(a));
    std::string named = folder_.write("named_wrongly.txt", gzip(joined));
    for (const std::string& path : {gz, padded, zst, named}) {
      EXPECT_TRUE(read_stream(path, step) == joined) << path << " by " << step;
    }
  }
}

TEST_F(TextSourceTest, NamesBrokenArchives) {
  std::string text = noise(200'000);
  auto expect = [&](const char* name, std::string content, const char* part) {
    std::string path = folder_.write(name, content);
    expect_error(ErrorKind::kInput, {path, part}, [&] { read_stream(path, 1 << 16); });
  };
  std::string gz = gzip(text), zst = zstd(text);
  expect("cut.gz", gz.substr(0, gz.size() / 2), "it was cut");
  expect("cut_end.gz", gz.substr(0, gz.size() - 1), "it was cut");
  expect("cut_head.gz", gz.substr(0, 5), "it was cut");
  expect("tiny.gz", gz.substr(0, 1), "no archive");
  expect("empty.zst", "", "no archive");
  expect("garbage.gz", gz + "garbage", "gzip data is broken");
  expect("cut.zst", zst.substr(0, zst.size() / 2), "it was cut");
  expect("cut_end.zst", zst.substr(0, zst.size() - 1), "it was cut");
  expect("garbage.zst", zst + "garbage", "zstd data is broken");
  std::string flipped = gz;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  expect("checksum.gz", flipped, "incorrect data check");
  flipped = gz;
  flipped[gz.size() / 2] ^= 0x55;
  std::string path = folder_.write("flipped.gz", flipped);
  expect_error(ErrorKind::kInput, {"gzip"}, [&] { read_stream(path, 1 << 16); });
}

TEST_F(TextSourceTest, ListsFilesAsGivenPatternsAndFoldersSorted) {
  std::string last = folder_.write("z.txt", "z");
  folder_.write("d/b.jsonl", "{}");
  folder_.write("d/a/c.txt.gz", gzip("c"));
  folder_.write("odd[1].txt", "odd");
  ASSERT_EQ(symlink(folder_.path("d").c_str(), folder_.path("d/loop").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", folder_.path("d/dangling").c_str()), 0);
  auto names = [&](const std::vector<std::string>& inputs) {
    std::vector<std::string> out;
    for (const InputFile& file : list(inputs)) {
      out.push_back(file.path.substr(folder_.path().size() + 1));
    }
    return out;
  };
  EXPECT_THAT(names({last, folder_.path("d"), last}),
              ElementsAre("z.txt", "d/a/c.txt.gz", "d/b.jsonl", "z.txt"));
  EXPECT_THAT(names({folder_.path("*.txt")}), ElementsAre("odd[1].txt", "z.txt"));
  EXPECT_THAT(names({folder_.path("odd[1].txt")}), ElementsAre("odd[1].txt"));
  EXPECT_EQ(list({folder_.path("d/b.jsonl")})[0].format, TextFormat::kJsonLines);
  EXPECT_EQ(list({folder_.path("d/a/c.txt.gz")})[0].format, TextFormat::kText);
  expect_error(ErrorKind::kInput, {"none*", "no file"}, [&] { list({folder_.path("none*")}); });
  expect_error(ErrorKind::kInput, {"nowhere.txt", "No such file"},
               [&] { list({folder_.path("nowhere.txt")}); });
  std::string unknown = folder_.write("data.bin", "x");
  EXPECT_EQ(list({unknown})[0].format, TextFormat::kText);
}

TEST_F(TextSourceTest, TakesTheEntriesOfAnArray) {
  std::string content =
      "\xef\xbb\xbf [ {\"a\": \"]},[\\\"\"},\r\n{\"b\": [1, {\"c\": 2}]\n}\n, \"text\",17 ,[]\n]\n "
      "\n";
  std::vector<std::string> want = {"{\"a\": \"]},[\\\"\"}", "{\"b\": [1, {\"c\": 2}]\n}",
                                   "\"text\"", "17", "[]"};
  std::string path = folder_.write("a.json", content);
  EXPECT_EQ(texts({path}), want);
  EXPECT_THAT(places_,
              ElementsAre(path + ":1", path + ":2", path + ":4", path + ":4", path + ":4"));
  // An array is not divided, whatever the number of parts; archives and other endings are the same.
  EXPECT_EQ(texts({path}, 7), want);
  EXPECT_EQ(texts({folder_.write("b.jsonl.gz", gzip(content))}, 3), want);
  EXPECT_THAT(texts({folder_.write("c.json", " [ ] ")}), IsEmpty());
  // Entries longer than a chunk of the reader.
  std::string big = "{\"text\": \"" + std::string(700'000, 'x') + "\"}";
  EXPECT_THAT(texts({folder_.write("d.json", concat("[", big, ",", big, "]"))}),
              ElementsAre(big, big));
}

TEST_F(TextSourceTest, NamesWhatIsWrongWithAnArray) {
  auto last = [&](const std::string& content) {
    std::string problem = texts({folder_.write("a.json", content)}).back();
    return problem.substr(0, 40);
  };
  EXPECT_EQ(last("[{}"), "the file ends inside of the array; it wa");
  EXPECT_EQ(last("[{\"a\": \"x"), "the file ends inside of the array; it wa");
  EXPECT_EQ(last("[{},"), "the file ends inside of the array; it wa");
  EXPECT_EQ(last("[{} {}]"), "',' or ']' is missing behind an entry of");
  EXPECT_EQ(last("[{},]"), "an entry of the array is missing");
  EXPECT_EQ(last("[{}] {}"), "there is something behind the end of the");
  options_.max_document_bytes = 10;
  options_.on_error = BadRecords::kSkip;
  std::vector<std::string> found = texts({folder_.write("b.json", "[{\"a\": 12345}, {\"b\":1}]")});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0], testing::HasSubstr("the entry is longer than --max-document-bytes 10"));
  EXPECT_EQ(found[1], "{\"b\":1}");
}

TEST_F(TextSourceTest, TakesLinesWithTheirNumbers) {
  std::string path = folder_.write("a.jsonl", "\xef\xbb\xbfone\r\n\n  \t\r\ntwo\n\nthree");
  std::string empty = folder_.write("b.jsonl", ""), blank = folder_.write("c.jsonl", "\n\n \n");
  EXPECT_THAT(texts({empty, path, blank}), ElementsAre("one", "two", "three"));
  EXPECT_THAT(places_, ElementsAre(path + ":1", path + ":4", path + ":6"));
}

TEST_F(TextSourceTest, TakesDocumentsOfTextAsTold) {
  std::string content = "\n\nA b\r\nc\n \t\nd\n\n\n\ne";
  std::string path = folder_.write("a.txt", content), empty = folder_.write("b.txt", "");
  EXPECT_THAT(texts({path, empty}), ElementsAre(content));
  options_.unit = TextUnit::kLine;
  EXPECT_THAT(texts({path, empty}), ElementsAre("A b", "c", "d", "e"));
  options_.unit = TextUnit::kParagraph;
  places_.clear();
  EXPECT_THAT(texts({path, empty}), ElementsAre("A b\nc", "d", "e"));
  EXPECT_THAT(places_, ElementsAre(path + ":3", path + ":6", path + ":10"));
}

TEST_F(TextSourceTest, CutsFilesIntoPiecesAtLineEnds) {
  std::string content;
  for (int i = 0; i < 500; ++i) content += concat("line ", i, "\n");
  content += std::string(3000, 'x');  // a line longer than a piece
  for (int i = 0; i < 1000; ++i) content += "é";
  std::string path = folder_.write("a.txt", content), other = folder_.write("b.txt", "short");
  for (std::int64_t piece : {1, 2, 3, 100, 999, 1000, 7000, 100'000}) {
    options_.piece_bytes = piece;
    std::string joined;
    int documents = 0;
    for (const Record& record : records({path, other})) {
      joined += record.text;
      EXPECT_LE(static_cast<std::int64_t>(record.text.size()), piece);
      // A character is not split if the piece has room for it.
      if (piece >= 4) {
        EXPECT_NE(static_cast<unsigned char>(record.text[0]) & 0xc0, 0x80);
      }
      if (record.ends_document) joined += "|", ++documents;
    }
    EXPECT_TRUE(joined == content + "|short|") << piece;
    EXPECT_EQ(documents, 2);
  }
  options_.piece_bytes = 100;
  std::vector<Record> pieces = records({path});
  EXPECT_TRUE(pieces[0].text.ends_with("\n") && pieces[1].text.starts_with("line "));
}

TEST_F(TextSourceTest, RefusesWhatIsTooLongAndGoesOn) {
  options_.max_document_bytes = 10;
  options_.on_error = BadRecords::kSkip;
  std::string long_line(1'000'000, 'x');
  std::string path =
      folder_.write("a.jsonl", concat("0123456789\n", long_line, "\nb\n01234567890"));
  std::vector<std::string> found = texts({path});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0], "0123456789");
  EXPECT_THAT(found[1], testing::HasSubstr("the line is longer than --max-document-bytes 10"));
  EXPECT_EQ(found[2], "b");
  EXPECT_THAT(found[3], testing::HasSubstr("longer than"));
  EXPECT_THAT(places_, ElementsAre(path + ":1", path + ":2", path + ":3", path + ":4"));
  std::string text = folder_.write("a.txt", "a\nb\n\n" + long_line + "\nc\n\nd\n0123456789");
  EXPECT_THAT(texts({text}), ElementsAre(testing::HasSubstr("the file is longer")));
  std::string exact = folder_.write("b.txt", "0123456789");
  EXPECT_THAT(texts({exact, exact}), ElementsAre("0123456789", "0123456789"));
  options_.unit = TextUnit::kParagraph;
  EXPECT_THAT(texts({text}), ElementsAre("a\nb", testing::HasSubstr("the paragraph is longer"),
                                         testing::HasSubstr("the paragraph is longer")));
}

// For any division, the parts together are the whole, and line numbers are those of the file.
TEST_F(TextSourceTest, PartsTogetherAreTheWhole) {
  std::vector<std::string> names;
  std::uint32_t state = 7;
  for (int file = 0; file < 4; ++file) {
    std::string content;
    for (int line = 0; line < 40; ++line) {
      state = state * 1664525 + 1013904223;
      content +=
          concat(file, "/", line, std::string(state >> 27, 'x'), state % 5 == 0 ? "\n\n" : "\n");
    }
    if (file == 2) content.pop_back();
    std::string name = concat("f", file, ".jsonl", file == 1 ? ".gz" : "");
    names.push_back(folder_.write(name, file == 1 ? gzip(content) : content));
  }
  names.push_back(folder_.write("empty.jsonl", ""));
  names.push_back(folder_.write("newline.jsonl", "\n"));
  std::vector<std::string> whole = texts(names);
  std::vector<std::string> places = std::move(places_);
  EXPECT_EQ(whole.size(), 160u);
  for (std::int64_t parts : {2, 3, 7, 64, 1000, 9999}) {
    places_.clear();
    EXPECT_EQ(texts(names, parts), whole) << parts;
    EXPECT_EQ(places_, places) << parts;
  }
  EXPECT_EQ(cut_inputs({}, 3).size(), 3u);
}

// The document may be a compressed file that is a thousand times larger inside, or an endless pipe.
TEST_F(TextSourceTest, DoesNotReadToTheEndOfWhatIsTooLongToStopThere) {
  options_.max_document_bytes = 10;
  for (TextUnit unit : {TextUnit::kLine, TextUnit::kParagraph, TextUnit::kFile}) {
    options_.unit = unit;
    std::string path = folder_.write("a.txt", std::string(1'000'000, 'x'));
    std::vector<InputFile> files = list({path});
    std::vector<FileRange> range{{0, 0, 1'000'000}};
    TextSource source(files, range, options_);
    Record record;
    ASSERT_TRUE(source.next(record));
    EXPECT_THAT(record.problem, testing::HasSubstr("is longer than --max-document-bytes 10"));
    EXPECT_LT(source.position(), 900'000);
  }
}

TEST_F(TextSourceTest, ReadsPipes) {
  std::string path = folder_.path("pipe.jsonl");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(path);
    for (int i = 0; i < 100'000; ++i) out << "line " << i << "\n";
  });
  std::vector<std::string> found = texts({path}, 5);
  writer.join();
  ASSERT_EQ(found.size(), 100'000u);
  EXPECT_EQ(found.back(), "line 99999");
  EXPECT_FALSE(list({path})[0].regular);
}

TEST_F(TextSourceTest, NamesWhatCannotBeRead) {
  std::vector<std::string> device = {"/dev/zero"};
  options_.format = TextFormat::kText;
  expect_error(ErrorKind::kInput, {"/dev/zero: is a device"},
               [&] { list_inputs(device, options_); });
  std::string path = folder_.write("a.jsonl", "{}");
  std::vector<InputFile> files = list({path});
  ASSERT_EQ(unlink(path.c_str()), 0);
  std::vector<FileRange> range{{0, 0, 2}};
  TextSource source(files, range, options_);
  Record record;
  expect_error(ErrorKind::kInput, {path, "No such file"}, [&] { source.next(record); });
}

}  // namespace
}  // namespace bev
