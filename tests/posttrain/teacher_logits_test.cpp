// A teacher's likeliest tokens on disk.
#include "posttrain/teacher_logits.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

const std::vector<std::int32_t> kFirst = {5, 6, 7}, kSecond = {5, 6};

DocumentLogits logits_of(std::size_t tokens, double base) {
  DocumentLogits out;
  for (std::size_t t = 0; t < tokens; ++t) {
    out.ids.insert(out.ids.end(), {static_cast<std::int32_t>(t), 9});
    out.logps.insert(out.logps.end(), {base - 0.25, base - 1, base - 2});
  }
  return out;
}

LogitFormat format_of(Dtype dtype = Dtype::kF32) {
  return {.top_k = 2, .vocab_size = 10, .temperature = 1.5, .dtype = dtype};
}

TEST(TeacherLogits, ComeBackByTheTokensOfTheirDocument) {
  TempFolder folder;
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    const std::string path = folder.path(std::string(name_of(dtype)));
    {
      TeacherLogits written(path, format_of(dtype), 0);
      written.add(kFirst, logits_of(3, 0));
      TeacherLogits other(path, format_of(dtype), 1);
      other.add(kSecond, logits_of(2, -0.5));
      other.add(kSecond, logits_of(2, -4));  // there already
    }
    TeacherLogits read(path);
    EXPECT_EQ(read.format().top_k, 2);
    EXPECT_EQ(read.format().temperature, 1.5);
    EXPECT_EQ(read.format().dtype, dtype);
    EXPECT_EQ(read.find(kFirst).ids, logits_of(3, 0).ids);
    EXPECT_EQ(read.find(kFirst).logps, logits_of(3, 0).logps);
    EXPECT_EQ(read.find(kSecond).logps, logits_of(2, -0.5).logps);
    EXPECT_FALSE(read.has(std::vector<std::int32_t>{6, 5}));
    expect_error(ErrorKind::kInput, {"has nothing of a sample of 2 tokens, the first of them 6"},
                 [&] {
                   read.find(std::vector<std::int32_t>{6, 5});
                 });
  }
}

TEST(TeacherLogits, GoOnWhereARunWasKilled) {
  TempFolder folder;
  const std::string path = folder.path("kept"), file = join_path(path, "rank_00000_0000.bin");
  {
    TeacherLogits written(path, format_of(), 0);
    written.add(kFirst, logits_of(3, 0));
    written.add(kSecond, logits_of(2, 0));
  }
  std::string bytes = read_file(file);
  write_file(file, bytes.substr(0, bytes.size() - 3));
  {
    TeacherLogits again(path, format_of(), 0);
    EXPECT_TRUE(again.has(kFirst));
    EXPECT_FALSE(again.has(kSecond));
    again.add(kSecond, logits_of(2, 0));
  }
  EXPECT_EQ(TeacherLogits(path).find(kSecond).logps, logits_of(2, 0).logps);
  expect_error(ErrorKind::kInput, {"holds logits whose temperature is 1.5"}, [&] {
    LogitFormat other = format_of();
    other.temperature = 1;
    TeacherLogits(path, other, 0);
  });
  bytes[60] = static_cast<char>(bytes[60] ^ 1);
  write_file(file, bytes);
  expect_error(ErrorKind::kInput, {"rank_00000_0000.bin: byte 0: the record is damaged"},
               [&] { TeacherLogits(path).find(kFirst); });
  write_file(file, "junk" + bytes);
  expect_error(ErrorKind::kInput, {"byte 0: is no record of logits"}, [&] { TeacherLogits{path}; });
  write_file(join_path(path, "logits.json"), "{}");
  expect_error(ErrorKind::kInput, {"is no header of logits"}, [&] { TeacherLogits{path}; });
}

}  // namespace
}  // namespace bev::test
