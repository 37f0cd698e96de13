// Parquet reader against files by pyarrow (tests/golden/parquet), and against damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/parquet/decompress.h"
#include "data/parquet/rle_decoder.h"
#include "data/preprocess/text_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string golden(const std::string& name) {
  return BEV_SOURCE_DIR "/tests/golden/parquet/" + name;
}

std::vector<json> expected_rows(const std::string& name) {
  std::vector<json> rows;
  for (const std::string& line : split(read_file(golden(name)), '\n')) {
    if (!line.empty()) rows.push_back(json::parse(line));
  }
  return rows;
}

std::vector<std::string> read_rows(const std::string& path, const TextOptions& options) {
  std::vector<std::string> names = {path}, out;
  TextInputs inputs = list_inputs(names, options);
  std::vector<std::vector<FileRange>> parts = cut_inputs(inputs.files, 1);
  TextSource source(inputs.files, parts.front(), options);
  for (Record record; source.next(record);) {
    EXPECT_EQ(record.line, static_cast<std::int64_t>(out.size()) + 1);
    out.push_back(record.problem.empty() ? record.text : record.problem);
  }
  return out;
}

TextOptions columns(std::vector<std::string> names) {
  TextOptions options;
  options.json_keys = std::move(names);
  return options;
}

const std::vector<std::string> kCases = {"snappy_v1", "zstd_v2", "gzip_plain", "none_pages",
                                         "plain_v2"};

TEST(Parquet, GivesTheRowsOfPyarrow) {
  const std::vector<json> texts = expected_rows("rows.jsonl"), chats = expected_rows("chats.jsonl");
  TextOptions all = columns({"text", "id", "small", "score", "flag", "tags", "deep", "same"});
  for (const std::string& name : kCases) {
    SCOPED_TRACE(name);
    std::vector<std::string> rows = read_rows(golden("texts_" + name + ".parquet"), all);
    ASSERT_EQ(rows.size(), texts.size());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(json::parse(rows[i]), texts[i]) << i;
    rows = read_rows(golden("chats_" + name + ".parquet"), columns({"messages", "source"}));
    ASSERT_EQ(rows.size(), chats.size());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(json::parse(rows[i]), chats[i]) << i;
  }
  EXPECT_TRUE(read_rows(golden("empty.parquet"), all).empty());
}

TEST(Parquet, ReadsOnlyTheWantedColumns) {
  std::vector<std::string> rows =
      read_rows(golden("texts_snappy_v1.parquet"), columns({"same", "nowhere", "id"}));
  EXPECT_EQ(rows[0], R"({"same":"always the same","id":-5})");
  // The wanted column is not the one with an unknown encoding.
  EXPECT_EQ(read_rows(golden("delta.parquet"), columns({"same"})).size(), 60u);
}

TEST(Parquet, NamesWhatIsNotSupported) {
  auto fails = [](const std::string& file, std::vector<std::string> wanted,
                  std::vector<std::string> parts) {
    parts.push_back(file);
    expect_error(ErrorKind::kInput, parts, [&] { read_rows(golden(file), columns(wanted)); });
  };
  fails("delta.parquet", {"text"}, {"DELTA_BYTE_ARRAY", "row group 1", "text"});
  fails("brotli.parquet", {"text"}, {"Brotli", "zstd"});
  fails("texts_zstd_v2.parquet", {"content"}, {"no column content", "'text'", "'id'"});
}

TEST(Parquet, RowsTooLongAreLeftOutAndTheNextIsRight) {
  TextOptions options = columns({"text", "tags", "deep"});
  options.max_document_bytes = 60;
  options.on_error = BadRecords::kSkip;
  const std::vector<json> texts = expected_rows("rows.jsonl");
  for (const std::string& name : kCases) {
    SCOPED_TRACE(name);
    std::vector<std::string> rows = read_rows(golden("texts_" + name + ".parquet"), options);
    ASSERT_EQ(rows.size(), texts.size());
    int refused = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].starts_with('{')) {
        EXPECT_THAT(rows[i], HasSubstr("the row is longer than --max-document-bytes 60"));
        ++refused;
        continue;
      }
      json row = json::parse(rows[i]);
      EXPECT_EQ(row["text"], texts[i]["text"]);
      EXPECT_EQ(row["deep"], texts[i]["deep"]);
    }
    EXPECT_GT(refused, 10);
    EXPECT_LT(refused, 40);
  }
}

// Every cut and every changed byte gives rows or an error that names the file.
TEST(Parquet, DamageIsAnError) {
  TempFolder folder;
  TextOptions all = columns({"text", "flag", "tags", "deep"});
  std::string good = read_file(golden("texts_zstd_v2.parquet"));
  std::string path = folder.path("bad.parquet");
  for (std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{4}, std::size_t{11},
                           good.size() / 2, good.size() - 1}) {
    folder.write("bad.parquet", good.substr(0, size));
    expect_error(ErrorKind::kInput, {path}, [&] { read_rows(path, all); });
  }
  for (std::size_t at = 4; at < good.size(); at += 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
    folder.write("bad.parquet", bad);
    try {
      read_rows(path, all);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
  // The checksum of a page finds a changed byte in it.
  std::string bad = good;
  bad[60] = static_cast<char>(bad[60] ^ 1);
  folder.write("bad.parquet", bad);
  expect_error(ErrorKind::kInput, {path, "damaged"}, [&] { read_rows(path, all); });
}

TEST(Parquet, SnappyCopiesMayOverlap) {
  // "abc", then 9 bytes from 3 back, then one byte from 1 back.
  std::string bytes(
      "\x0d\x08"
      "abc"
      "\x15\x03"
      "\x02\x01\x00",
      10);
  EXPECT_EQ(decompress_page(ParquetCodec::kSnappy, bytes, 13), "abcabcabcabcc");
  expect_error(ErrorKind::kInput, {"snappy"},
               [&] { decompress_page(ParquetCodec::kSnappy, bytes, 12); });
  bytes[6] = 4;  // before the start
  expect_error(ErrorKind::kInput, {"before its start"},
               [&] { decompress_page(ParquetCodec::kSnappy, bytes, 13); });
}

TEST(Parquet, RunsAndPackedValuesAlternate) {
  // Five times 6, then eight packed values of three bits: 0 to 7.
  std::string bytes("\x0a\x06\x03\x88\xc6\xfa", 6);
  RleDecoder decoder(bytes, 3);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(decoder.next(), 6u);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(decoder.next(), i);
  expect_error(ErrorKind::kInput, {"end early"}, [&] { decoder.next(); });
}

}  // namespace
}  // namespace bev
