#include "data/batch_file.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Ids = std::vector<std::int32_t>;
using Weights = std::vector<float>;

const BatchFormat kFormat = {100, {kInputIds, kLabels, kAttentionMask}};

GlobalBatch batch_of(std::string_view text) {
  TempFolder folder;
  return read_batch(folder.write("batch.json", text), kFormat);
}
void expect_refused(std::string_view text, std::vector<std::string> parts) {
  parts.push_back("batch.json: ");
  expect_error(ErrorKind::kInput, parts, [&] { batch_of(text); });
}

TEST(BatchFile, ReadsUnequalRowsAndShiftsLabels) {
  GlobalBatch batch =
      batch_of(R"({"input_ids": [[1, 2, 3], [7]], "labels": [[5, -100, 99], [-100]]})");
  EXPECT_EQ(batch.columns, 3);
  EXPECT_EQ(batch.hole, "");
  ASSERT_EQ(batch.samples.size(), 2u);
  const TokenSample& first = batch.samples[0];
  EXPECT_EQ(first.tokens, (Ids{1, 2, 3}));
  EXPECT_EQ(first.targets, (Ids{-1, 99, -1}));
  EXPECT_EQ(first.weights, (Weights{0, 1, 0}));
  EXPECT_EQ(first.documents, Ids{3});
  EXPECT_EQ(first.positions, Ids{});
  EXPECT_EQ(batch.samples[1].targets, Ids{-1});
  EXPECT_EQ(batch_of(R"({"input_ids": [[1, 2]], "labels": null, "attention_mask": null})")
                .samples[0]
                .targets,
            (Ids{2, -1}));
}

// The targets of the masked token and of its predecessor are dropped too.
TEST(BatchFile, MaskedTokensAreLeftOutAndTheOthersKeepTheirColumns) {
  struct Case {
    const char* mask;
    Ids tokens, targets, positions;
    const char* hole;
  };
  const Case cases[] = {
      {"[1, 1, 1, 1, 1]", {1, 2, 3, 4, 5}, {2, 3, 4, 5, -1}, {}, ""},
      {"[1, 1, 1, 0, 0]", {1, 2, 3}, {2, 3, -1}, {}, ""},
      {"[0, 0, 1, 1, 1]", {3, 4, 5}, {4, 5, -1}, {2, 3, 4}, ""},
      {"[0, 1, 1, 1, 0]", {2, 3, 4}, {3, 4, -1}, {1, 2, 3}, ""},
      {"[1, 1, 0, 1, 1]", {1, 2, 4, 5}, {2, -1, 5, -1}, {0, 1, 3, 4}, "row 0 column 2"},
      {"[0, 1, 0, 0, 1]", {2, 5}, {-1, -1}, {1, 4}, "row 0 column 2"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.mask);
    GlobalBatch batch =
        batch_of(concat(R"({"input_ids": [[1, 2, 3, 4, 5]], "attention_mask": [)", row.mask, "]}"));
    const TokenSample& sample = batch.samples.at(0);
    EXPECT_EQ(batch.columns, 5);
    EXPECT_EQ(sample.tokens, row.tokens);
    EXPECT_EQ(sample.targets, row.targets);
    EXPECT_EQ(sample.positions, row.positions);
    EXPECT_EQ(sample.documents, Ids{static_cast<std::int32_t>(row.tokens.size())});
    ASSERT_EQ(sample.weights.size(), row.targets.size());
    for (std::size_t i = 0; i < row.targets.size(); ++i) {
      EXPECT_EQ(sample.weights[i], row.targets[i] < 0 ? 0 : 1);
    }
    EXPECT_TRUE(batch.hole.ends_with(row.hole)) << batch.hole;
    EXPECT_EQ(batch.hole.empty(), std::string_view(row.hole).empty());
  }
}

TEST(BatchFile, NamesTheFirstHole) {
  GlobalBatch batch = batch_of(
      R"({"input_ids": [[1, 2], [3, 4, 5, 6]], "attention_mask": [[1, 0], [0, 1, 0, 1]]})");
  EXPECT_TRUE(batch.hole.ends_with("batch.json: attention_mask row 1 column 2")) << batch.hole;
}

TEST(BatchFile, NamesBadMasks) {
  expect_refused(R"({"input_ids": [[1, 2]], "attention_mask": [[1, 2]]})",
                 {"attention_mask row 0 column 1", "2 is outside [0, 2)"});
  expect_refused(R"({"input_ids": [[1, 2]], "attention_mask": [[1, true]]})",
                 {"attention_mask row 0 column 1", "not a whole number"});
  expect_refused(R"({"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [0]]})",
                 {"attention_mask row 1", "all tokens are masked"});
  expect_refused(R"({"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [1, 1]]})",
                 {"attention_mask row 1", "2 entries, input_ids has 1"});
  expect_refused(R"({"input_ids": [[1, 2]], "attention_mask": [1, 1]})", {"attention_mask row 0"});
}

TEST(BatchFile, NamesBadIdsAndLabels) {
  expect_refused(R"({"input_ids": [[1], [2, 100]]})",
                 {"input_ids row 1 column 1", "100 is outside [0, 100)"});
  expect_refused(R"({"input_ids": [[1, 2]], "labels": [[1, -99]]})",
                 {"labels row 0 column 1", "and not -100"});
  expect_refused(R"({"labels": [[1, 2]]})", {"no 'input_ids'"});
  expect_refused(R"({"input_ids": null})", {"input_ids", "got null"});
}

TEST(BatchFile, RefusesFieldsThatTheModelDoesNotUse) {
  for (const char* name :
       {"token_type_ids", "next_sentence_label", "class_labels", "start_positions", "end_positions",
        "decoder_input_ids", "pairs", "rows", "rollouts", "settings"}) {
    expect_refused(concat(R"({"input_ids": [[1]], ")", name, R"(": null})"),
                   {concat("does not use ", name), "input_ids, labels, attention_mask"});
  }
  expect_refused(R"({"input_ids": [[1]], "attention_masks": [[1]]})",
                 {"'attention_masks' is no field", "did you mean attention_mask?"});
  expect_refused(R"({"input_ids": [[1]], "x\u001b": 1})",
                 {"'x\\x1b'", "those of this model have input_ids"});
  const std::vector<FieldId> fewer = {kInputIds};
  TempFolder folder;
  expect_error(ErrorKind::kInput, {"does not use labels"}, [&] {
    read_batch(folder.write("batch.json", R"({"input_ids": [[1]], "labels": [[1]]})"),
               {100, fewer});
  });
}

TEST(BatchFile, ReadsBatchesInOrder) {
  TempFolder folder;
  std::string path = folder.write(
      "batch.json",
      R"({"batches": [{"input_ids": [[1, 2]]}, {"input_ids": [[3], [4]], "attention_mask": [[1], [1]]}]})");
  std::vector<GlobalBatch> batches = read_batches(path, kFormat);
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].samples[0].tokens, (Ids{1, 2}));
  EXPECT_EQ(batches[1].samples[1].tokens, Ids{4});
  EXPECT_EQ(batches[1].columns, 1);
}

TEST(BatchFile, NamesTheBadBatch) {
  auto refused = [](std::string_view text, std::vector<std::string> parts) {
    TempFolder folder;
    std::string path = folder.write("batch.json", text);
    parts.push_back("batch.json: ");
    expect_error(ErrorKind::kInput, parts, [&] { read_batches(path, kFormat); });
  };
  refused(R"({"batches": [{"input_ids": [[1]]}, {"input_ids": [[1, 200]]}]})",
          {"batches entry 1: input_ids row 0 column 1", "200"});
  refused(R"({"batches": [{"input_ids": [[1]], "pairs": []}]})", {"batches entry 0", "pairs"});
  refused(R"({"batches": [[[1]]]})", {"batches entry 0", "an object of fields, got array"});
  refused(R"({"batches": []})", {"empty"});
  refused(R"({"input_ids": [[1]]})", {"no 'batches'"});
}

}  // namespace
}  // namespace bev
