#include "data/token_file.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Rows = std::vector<TokenRow>;

TokenRows rows_of(std::string_view text, std::int64_t vocab_size = 100) {
  TempFolder folder;
  return read_token_rows(folder.write("tokens.json", text), vocab_size);
}
std::vector<GlobalBatch> batches_of(std::string_view text, std::int64_t vocab_size = 100) {
  TempFolder folder;
  return read_token_batches(folder.write("tokens.json", text), vocab_size);
}
void expect_rows_refused(std::string_view text, std::vector<std::string> parts) {
  parts.push_back("tokens.json");
  expect_error(ErrorKind::kInput, parts, [&] { rows_of(text); });
}
void expect_batches_refused(std::string_view text, std::vector<std::string> parts) {
  parts.push_back("tokens.json");
  expect_error(ErrorKind::kInput, parts, [&] { batches_of(text); });
}

TEST(TokenRows, ReadsUnequalRowsAndLabels) {
  TokenRows rows = rows_of(
      R"({"labels": [[-100, 2, 3], [-100]], "input_ids": [[0, 99, 5], [7]], "note": {"a": [1.5]}})");
  EXPECT_EQ(rows.input_ids, (Rows{{0, 99, 5}, {7}}));
  EXPECT_EQ(rows.labels, (Rows{{-100, 2, 3}, {-100}}));
}

TEST(TokenRows, WithoutLabelsTheyAreTheIds) {
  for (const char* text :
       {R"({"input_ids": [[1, 2], [3]]})", R"({"input_ids": [[1, 2], [3]], "labels": null})"}) {
    EXPECT_EQ(rows_of(text).labels, (Rows{{1, 2}, {3}}));
  }
}

TEST(TokenRows, ReadsIdsUpToTheLargestVocabulary) {
  TokenRows rows = rows_of(R"({"input_ids": [[2147483647]]})", std::int64_t{1} << 31);
  EXPECT_EQ(rows.input_ids[0][0], 2147483647);
}

TEST(TokenRows, NamesTheBadEntry) {
  expect_rows_refused(R"({"input_ids": [[1, 2], [3, 100]]})",
                      {"input_ids row 1 column 1", "100 is outside [0, 100)"});
  expect_rows_refused(R"({"input_ids": [[-1]]})", {"row 0 column 0", "-1 is outside"});
  expect_rows_refused(R"({"input_ids": [[-100]]})", {"-100 is outside"});
  expect_rows_refused(R"({"input_ids": [[4294967296]]})", {"outside"});
  expect_rows_refused(R"({"input_ids": [[9223372036854775808]]})",
                      {"9223372036854775808 is outside"});
  expect_rows_refused(R"({"input_ids": [[18446744073709551516]]})",
                      {"outside"});  // -100 in 64 bits
  expect_rows_refused(R"({"input_ids": [[99999999999999999999999]]})", {"not a whole number"});
  expect_rows_refused(R"({"input_ids": [[1, -99999999999999999999999]]})",
                      {"column 1", "not a whole number"});
  for (const char* value :
       {"1.0", "1e1", "\"1\"", "true", "null", "[1]", "{\"a\":1}", "1e300", "\"\\u001b[2J\""}) {
    expect_rows_refused(concat(R"({"input_ids": [[5, 6, )", value, "]]}"),
                        {"row 0 column 2", "not a whole number"});
  }
}

TEST(TokenRows, RefusesBadLabels) {
  expect_rows_refused(R"({"input_ids": [[1, 2]], "labels": [[1, -99]]})",
                      {"labels row 0 column 1", "-99 is outside [0, 100) and not -100"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "labels": [[1, 100]]})",
                      {"labels row 0 column 1"});
  expect_rows_refused(R"({"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3, 4]]})",
                      {"labels row 1", "2 entries, input_ids has 1"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "labels": [[1, 2], [1, 2]]})",
                      {"2 rows, input_ids has 1"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "labels": []})", {"labels", "empty"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "labels": [1, 2]})", {"labels row 0"});
}

TEST(TokenRows, AcceptsOnlyAMaskOfOnes) {
  EXPECT_EQ(rows_of(R"({"input_ids": [[1, 2]], "attention_mask": [[1, 1]]})").input_ids,
            (Rows{{1, 2}}));
  expect_rows_refused(R"({"input_ids": [[1, 2]], "attention_mask": [[1, 0]]})",
                      {"attention_mask", "leave padding out", "row 0 column 1"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "attention_mask": [[1]]})", {"attention_mask"});
  expect_rows_refused(R"({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]})",
                      {"attention_mask row 0 column 1", "2 is outside [0, 2)"});
}

TEST(TokenRows, RefusesWhatIsNotATokenFile) {
  expect_rows_refused("", {"not valid JSON"});
  expect_rows_refused(R"({"input_ids": [[1, 2)", {"not valid JSON"});
  expect_rows_refused(R"({"input_ids": [[NaN]]})", {"not valid JSON", "line 1"});
  expect_rows_refused(R"({"input_ids": [[1e999]]})", {"not valid JSON"});
  expect_rows_refused(R"({"input_ids": [[1]], "input_ids": [[2]]})", {"'input_ids' appears twice"});
  expect_rows_refused(R"({"input_ids": )" + std::string(1'000'000, '['), {"deeper"});
  expect_rows_refused("[[1, 2]]", {"not a JSON object but array"});
  expect_rows_refused("null", {"not a JSON object"});
  expect_rows_refused("{}", {"no 'input_ids'"});
  expect_rows_refused(R"({"ids": [[1]]})", {"no 'input_ids'"});
  expect_rows_refused(R"({"input_ids": []})", {"input_ids", "empty"});
  expect_rows_refused(R"({"input_ids": [[1], []]})", {"row 1", "empty"});
  expect_rows_refused(R"({"input_ids": [1, 2]})", {"row 0", "expected a list of ids, got number"});
  expect_rows_refused(R"({"input_ids": {"0": [1]}})", {"expected a list of rows, got object"});
  expect_rows_refused(R"({"input_ids": "12"})", {"got string"});
  expect_error(ErrorKind::kInput, {"/nowhere.json"}, [] { read_token_rows("/nowhere.json", 10); });
}

TEST(TokenBatches, ReadsBatchesInOrder) {
  std::vector<GlobalBatch> read = batches_of(R"({"batches": [[[1, 2, 7], [3, 4]], [[5]]]})");
  ASSERT_EQ(read.size(), 2u);
  ASSERT_EQ(read[0].samples.size(), 2u);
  EXPECT_EQ(read[0].columns, 3);
  EXPECT_EQ(read[0].samples[0].tokens, (TokenRow{1, 2, 7}));
  EXPECT_EQ(read[0].samples[0].targets, (TokenRow{2, 7, -1}));
  EXPECT_EQ(read[0].samples[0].weights, (std::vector<float>{1, 1, 0}));
  EXPECT_EQ(read[0].samples[1].tokens, (TokenRow{3, 4}));
  ASSERT_EQ(read[1].samples.size(), 1u);
  EXPECT_EQ(read[1].samples[0].tokens, (TokenRow{5}));
}

TEST(TokenBatches, NamesTheBadEntry) {
  expect_batches_refused(R"({"batches": [[[1, 2]], [[1], [2, 3, 100]]]})",
                         {"batches entry 1 row 1 column 2", "100 is outside"});
  expect_batches_refused(R"({"batches": [[[-100]]]})", {"outside"});
  expect_batches_refused(R"({"batches": [[[1]], []]})", {"entry 1", "empty"});
  expect_batches_refused(R"({"batches": [[1]]})", {"entry 0 row 0", "list of ids"});
  expect_batches_refused(R"({"batches": [[[[1]]]]})", {"entry 0 row 0 column 0"});
  expect_batches_refused(R"({"batches": []})", {"empty"});
  expect_batches_refused(R"({"input_ids": [[1]]})", {"no 'batches'"});
}

}  // namespace
}  // namespace bev
