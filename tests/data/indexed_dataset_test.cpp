// Indexed datasets: reading, writing, joining, and errors for corrupt files.
#include "data/indexed/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/indexed/indexed_writer.h"
#include "tests/data/token_files.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using test::Pair;
using test::pair_of;
using test::Row;
using testing::ElementsAre;

const std::vector<std::vector<Row>> kDocuments = {{{1, 2, 3}, {4}}, {}, {{5, 65499}}, {{}}};

std::string golden(const std::string& name) { return BEV_SOURCE_DIR "/tests/golden/data/" + name; }

Row read_all(const IndexedDataset& data, std::int64_t sequence) {
  Row row(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(sequence)]));
  data.read(sequence, 0, row);
  return row;
}

void write(const std::string& prefix, const std::vector<std::vector<Row>>& documents,
           TokenType type) {
  IndexedDatasetWriter writer(prefix, type);
  for (const std::vector<Row>& document : documents) {
    for (const Row& sequence : document) writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.commit();
}

TEST(IndexedDataset, ReadsWhatTheFormatSays) {
  TempFolder folder;
  IndexedDataset data(pair_of(kDocuments).write(folder, "p"));
  EXPECT_EQ(data.num_documents(), 4);
  EXPECT_EQ(data.num_sequences(), 4);
  EXPECT_EQ(data.num_tokens(), 6);
  EXPECT_EQ(data.type(), TokenType::kU16);
  EXPECT_THAT(read_all(data, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(read_all(data, 2), ElementsAre(5, 65499));
  EXPECT_TRUE(read_all(data, 3).empty());
  Row part(2);
  data.read(0, 1, part);
  EXPECT_THAT(part, ElementsAre(2, 3));
  expect_error(ErrorKind::kInternal, {"tokens [2, 4) of sequence 0"},
               [&] { data.read(0, 2, part); });
  expect_error(ErrorKind::kInternal, {"sequence 4"}, [&] { data.read(4, 0, {}); });
}

TEST(IndexedDataset, ReadsEveryTypeThatMegatronWrites) {
  for (const char* type : {"uint8", "int8", "int16", "int32", "int64", "uint16"}) {
    IndexedDataset data(golden(concat("type_", type)));
    EXPECT_STREQ(name_of(data.type()), type);
    EXPECT_THAT(read_all(data, 0), ElementsAre(1, 2)) << type;
    EXPECT_THAT(read_all(data, 1), ElementsAre(100)) << type;
    EXPECT_THAT(read_all(data, 2), ElementsAre(7)) << type;
  }
  for (const char* type : {"float32", "float64"}) {
    IndexedDataset data(golden(concat("type_", type)));
    EXPECT_EQ(data.num_tokens(), 4);
    expect_error(ErrorKind::kInput, {type, "not tokens"}, [&] { read_all(data, 0); });
  }
}

TEST(IndexedDataset, ReadsModes) {
  IndexedDataset data(golden("modes"));
  ASSERT_EQ(data.modes().size(), 3u);
  EXPECT_EQ(data.modes()[0], 0);
  EXPECT_EQ(data.modes()[1], 4);
  EXPECT_EQ(data.modes()[2], 1);
  EXPECT_EQ(IndexedDataset(golden("a")).modes().size(), 0u);
}

TEST(IndexedDataset, RefusesTokensBeyond32Bits) {
  TempFolder folder;
  Pair pair = pair_of({{{1, 0, 0, 0, 2, 0, 1, 0}}});  // two 64-bit values
  pair.idx[17] = 5;
  pair.idx[34] = 2;
  IndexedDataset data(pair.write(folder, "p"));
  Row row(2);
  expect_error(ErrorKind::kInput, {"p.bin", "token 1 of sequence 0", "4294967298"},
               [&] { data.read(0, 0, row); });
}

TEST(IndexedWriter, WritesTheBytesOfTheFormat) {
  TempFolder folder;
  write(folder.path("p"), kDocuments, TokenType::kU16);
  Pair expected = pair_of(kDocuments);
  EXPECT_EQ(read_file(folder.path("p.idx")), expected.idx);
  EXPECT_EQ(read_file(folder.path("p.bin")), expected.bin);
  EXPECT_EQ(list_directory(folder.path()).size(), 2u) << "temporary files are left";
}

TEST(IndexedWriter, WritesMegatronsBytes) {
  TempFolder folder;
  for (const char* name : {"a", "wide", "modes", "type_uint8", "type_int8", "type_int16",
                           "type_int32", "type_int64", "type_uint16"}) {
    IndexedDataset from(golden(name));
    std::string prefix = folder.path(name);
    IndexedDatasetWriter writer(prefix, from.type(), from.modes().size() > 0);
    for (std::int64_t d = 0; d < from.num_documents(); ++d) {
      auto at = static_cast<std::size_t>(d);
      for (std::int64_t i = from.documents()[at]; i < from.documents()[at + 1]; ++i) {
        auto mode =
            from.modes().size() > 0 ? from.modes()[static_cast<std::size_t>(i)] : std::int8_t{0};
        writer.add_sequence(read_all(from, i), mode);
      }
      writer.end_document();
    }
    writer.commit();
    EXPECT_EQ(read_file(prefix + ".idx"), read_file(golden(name) + ".idx")) << name;
    EXPECT_EQ(read_file(prefix + ".bin"), read_file(golden(name) + ".bin")) << name;
  }
}

TEST(IndexedWriter, JoinsAsMegatron) {
  TempFolder folder;
  IndexedDatasetWriter writer(folder.path("all"), TokenType::kU16);
  for (const char* name : {"a", "b", "c"}) writer.add_dataset(IndexedDataset(golden(name)));
  expect_error(ErrorKind::kInput, {"wide", "int32", "uint16"},
               [&] { writer.add_dataset(IndexedDataset(golden("wide"))); });
  expect_error(ErrorKind::kInput, {"modes", "has modes"}, [&] {
    IndexedDatasetWriter(folder.path("x"), TokenType::kU16)
        .add_dataset(IndexedDataset(golden("modes")));
  });
  writer.commit();
  EXPECT_EQ(read_file(folder.path("all.idx")), read_file(golden("merged.idx")));
  EXPECT_EQ(read_file(folder.path("all.bin")), read_file(golden("merged.bin")));
}

TEST(IndexedWriter, LeavesNothingWithoutCommit) {
  TempFolder folder;
  {
    IndexedDatasetWriter writer(folder.path("p"), TokenType::kU16);
    writer.add_sequence(Row{1, 2, 3});
    writer.end_document();
    EXPECT_FALSE(path_exists(folder.path("p.bin")));
    EXPECT_FALSE(path_exists(folder.path("p.idx")));
  }
  EXPECT_TRUE(list_directory(folder.path()).empty());
}

TEST(IndexedWriter, RefusesTokensThatDoNotFit) {
  TempFolder folder;
  IndexedDatasetWriter writer(folder.path("p"), TokenType::kU16);
  for (std::int32_t token : {-1, 65536}) {
    expect_error(ErrorKind::kInput, {concat("token ", token), "uint16"}, [&] {
      writer.add_sequence(Row{0, token});
    });
  }
  expect_error(ErrorKind::kIo, {"missing/folder"},
               [&] { IndexedDatasetWriter(folder.path("missing/folder/p"), TokenType::kU16); });
}

TEST(TokenType, IsChosenByTheVocabulary) {
  EXPECT_EQ(token_type_for(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65500), TokenType::kI32);
}

class HostileIndex : public testing::Test {
 protected:
  void expect_refused(const Pair& pair, const std::vector<std::string>& parts) {
    std::string prefix = pair.write(folder_, "hostile");
    expect_error(ErrorKind::kInput, parts, [&] { IndexedDataset data(prefix); });
  }
  template <class T>
  Pair with(std::size_t at, T value) {
    Pair pair = good_;
    std::memcpy(pair.idx.data() + at, &value, sizeof(T));
    return pair;
  }

  TempFolder folder_;
  Pair good_ = pair_of(kDocuments);  // 4 sequences, 5 bounds
  std::size_t lengths_ = 34, offsets_ = 34 + 16, bounds_ = 34 + 16 + 32;
};

TEST_F(HostileIndex, NamesTheFieldOfTheHeader) {
  expect_refused(with(0, 'X'), {"hostile.idx", "begins with", "no index"});
  expect_refused(with(9, std::uint64_t{2}), {"hostile.idx", "version 2"});
  expect_refused(with(17, std::uint8_t{0}), {"type code 0"});
  expect_refused(with(17, std::uint8_t{9}), {"type code 9"});
  for (std::uint64_t count : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{5},
                              std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    expect_refused(with(18, count), {"hostile.idx", concat(count, " sequences"), "cut or damaged"});
    expect_refused(with(26, count == 5 ? 6 : count), {"hostile.idx", "cut or damaged"});
  }
}

TEST_F(HostileIndex, NamesTheEntry) {
  expect_refused(with(lengths_, std::int32_t{-1}), {"hostile.idx", "sequence 0 has length -1"});
  expect_refused(with(lengths_ + 4, std::int32_t{2}),
                 {"sequence 2 begins at byte 8", "ends at 10"});
  expect_refused(with(lengths_ + 8, std::int32_t{0x7FFFFFFF}),
                 {"hostile.bin", "end within sequence 2"});
  expect_refused(with(offsets_ + 8, std::int64_t{-6}), {"sequence 1 begins at byte -6"});
  expect_refused(with(offsets_ + 8, std::int64_t{1} << 60), {"sequence 1 begins at byte"});
  expect_refused(with(bounds_, std::int64_t{1}), {"document 0 begins with sequence 1"});
  expect_refused(with(bounds_ + 8, std::int64_t{3}), {"document 1 has the sequences [3, 2)"});
  expect_refused(with(bounds_ + 16, std::int64_t{-1}), {"document 1 has the sequences [2, -1)"});
  expect_refused(with(bounds_ + 24, std::int64_t{9}), {"document 2", "[2, 9) of 4"});
  expect_refused(with(bounds_ + 32, std::int64_t{3}), {"documents end at sequence 3 of 4"});
}

TEST_F(HostileIndex, NoticesFilesThatAreCutOrDoNotMatch) {
  for (std::size_t size = 0; size < good_.idx.size(); ++size) {
    Pair pair{good_.idx.substr(0, size), good_.bin};
    expect_refused(pair, {"hostile.idx"});
  }
  expect_refused({good_.idx + "x", good_.bin}, {"hostile.idx"});
  for (std::size_t size = 0; size < good_.bin.size(); ++size) {
    expect_refused({good_.idx, good_.bin.substr(0, size)}, {"hostile.bin"});
  }
  expect_refused({good_.idx, good_.bin + "x"}, {"hostile.bin", "13 bytes", "end at 12"});
  expect_error(ErrorKind::kInput, {"nothing.idx"},
               [&] { IndexedDataset data(folder_.path("nothing")); });
}

// Both files may be empty, but only together.
TEST_F(HostileIndex, OfNothingIsADatasetWithoutSequences) {
  Pair nothing = pair_of({});
  IndexedDataset data(nothing.write(folder_, "nothing"));
  EXPECT_EQ(data.num_sequences(), 0);
  EXPECT_EQ(data.num_documents(), 0);
  EXPECT_EQ(data.num_tokens(), 0);
  Row none;
  expect_error(ErrorKind::kInternal, {"sequence 0"}, [&] { data.read(0, 0, none); });
  IndexedDataset hollow(pair_of({{}, {{}}, {{}, {}}}).write(folder_, "hollow"));
  EXPECT_EQ(hollow.num_sequences(), 3);
  EXPECT_EQ(hollow.num_documents(), 3);
  hollow.read(2, 0, none);
  expect_refused({nothing.idx, "x"}, {"hostile.bin", "1 bytes", "end at 0"});
  // No bounds at all, not even the first.
  Pair unbounded = nothing;
  unbounded.idx.resize(34);
  unbounded.idx[26] = 0;
  expect_refused(unbounded, {"hostile.idx", "0 document bounds"});
}

// The .bin file has another element width.
TEST_F(HostileIndex, NoticesAnotherType) {
  for (std::uint8_t code = 1; code <= 8; ++code) {
    if (code == 8 || code == 3) continue;  // 16 bits
    expect_refused(with(17, code), {"hostile"});
  }
}

// Offsets and lengths that match only if sums wrap around.
TEST_F(HostileIndex, DoesNotWrapAround) {
  Pair pair = with(lengths_, std::int32_t{-2147483647 - 1});
  expect_refused(pair, {"sequence 0 has length -2147483648"});
  pair = with(offsets_, std::int64_t{-1});
  expect_refused(pair, {"sequence 0 begins at byte -1"});
  // 2^64 / 12 and 2^64 / 8 sequences: the products wrap to small values.
  expect_refused(with(18, std::uint64_t{0x1555555555555556}), {"cut or damaged"});
  expect_refused(with(26, std::uint64_t{0x2000000000000005}), {"cut or damaged"});
}

// With any byte changed, the pair is refused or reads stay inside its files.
TEST_F(HostileIndex, SurvivesEveryDamagedByte) {
  std::mt19937 random(3);
  for (std::size_t at = 0; at < good_.idx.size(); ++at) {
    for (int trial = 0; trial < 8; ++trial) {
      Pair pair = good_;
      pair.idx[at] = static_cast<char>(random());
      std::string prefix = pair.write(folder_, "damaged");
      try {
        IndexedDataset data(prefix);
        for (std::int64_t i = 0; i < data.num_sequences(); ++i) read_all(data, i);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace bev
