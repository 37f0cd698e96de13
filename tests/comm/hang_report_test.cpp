// Hang reports from hand-written records.
#include "comm/hang_report.h"

#include <gtest/gtest.h>

namespace bev {
namespace {

WaitRecord computing(int rank, const Activity::Snapshot& doing = {}) {
  WaitRecord record;
  record.rank = rank;
  record.doing = doing;
  return record;
}

WaitRecord waiting(int rank, std::vector<int> absent, const Activity::Snapshot& doing = {}) {
  WaitRecord record = computing(rank, doing);
  record.collective = "all_reduce";
  record.label = "tp input";
  record.group = "tp";
  record.data = "[4, 8] f32";
  record.absent = std::move(absent);
  record.seconds = 1.5;
  return record;
}

const Activity::Snapshot kInAttention = {12, 2, 5, "forward", "attention"};

TEST(HangReport, HasALinePerRankAndNamesTheOneThatNeverCame) {
  std::vector<WaitRecord> ranks = {waiting(0, {3}, {12, 3, -1, "backward", ""}), waiting(1, {0}),
                                   computing(2), computing(3, kInAttention)};
  EXPECT_EQ(hang_report(ranks),
            "rank 0 waits 1.50 s for rank 3 in all_reduce of tp input (group tp, [4, 8] f32), in "
            "step 12, backward of micro-batch 3\n"
            "rank 1 waits 1.50 s for rank 0 in all_reduce of tp input (group tp, [4, 8] f32)\n"
            "rank 2 computes\n"
            "rank 3 is in step 12, forward of micro-batch 2, layer 5, op attention\n"
            "rank 3 never came: it is in step 12, forward of micro-batch 2, layer 5, op attention");
}

TEST(HangReport, SaysWhatIsKnownOfARankAndNoMore) {
  auto line = [](const Activity::Snapshot& doing) {
    std::string text = hang_report(std::vector{computing(1, doing)});
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(line({}), "rank 1 computes");
  EXPECT_EQ(line({0, -1, -1, "", ""}), "rank 1 is in step 0");
  EXPECT_EQ(line({3, -1, -1, "optimizer", ""}), "rank 1 is in step 3, optimizer");
  EXPECT_EQ(line({-1, 0, -1, "", ""}), "rank 1 is in micro-batch 0");
  EXPECT_EQ(line({-1, -1, -1, "", "norm"}), "rank 1 is in op norm");
  EXPECT_EQ(line({-1, -1, 0, "", "norm"}), "rank 1 is in layer 0, op norm");
}

TEST(HangReport, NamesEveryCulpritOnceAndWhatBecameOfIt) {
  std::vector<WaitRecord> ranks = {waiting(0, {1, 2, 3}), computing(1), computing(2), computing(3),
                                   waiting(4, {1, 7})};
  ranks[1].ended = true;
  ranks[2].known = false;
  std::string text = hang_report(ranks);
  EXPECT_NE(text.find("\nrank 1 has ended\nrank 2 is not heard of\nrank 3 computes\n"),
            std::string::npos)
      << text;
  // Rank 7 is missing, without a record.
  EXPECT_EQ(text.substr(text.rfind('\n') + 1),
            "rank 1 never came: it has ended; rank 2 never came: it is not heard of; rank 3 never "
            "came: it computes; rank 7 never came: it is not heard of");
}

TEST(HangReport, ARankThatNobodyMissesIsNotBlamed) {
  std::vector<WaitRecord> ranks = {computing(0, kInAttention), waiting(1, {2}), computing(2)};
  std::string text = hang_report(ranks);
  EXPECT_EQ(text.substr(text.rfind('\n') + 1), "rank 2 never came: it computes");
}

TEST(HangReport, ACircleIsNamedWithoutTheRanksThatLeadToIt) {
  std::vector<WaitRecord> ranks = {waiting(0, {3}), waiting(1, {3}), waiting(2, {1}),
                                   waiting(3, {2})};
  std::string text = hang_report(ranks);
  EXPECT_EQ(text.substr(text.rfind('\n') + 1),
            "rank 1, rank 2, rank 3 wait for each other: their collectives differ in order");
}

TEST(HangReport, ABarrierHasNoData) {
  WaitRecord record = waiting(0, {1});
  record.collective = "barrier";
  record.label = "start";
  record.data = "";
  EXPECT_EQ(hang_report(std::vector{record, computing(1)}),
            "rank 0 waits 1.50 s for rank 1 in barrier of start (group tp)\nrank 1 computes\n"
            "rank 1 never came: it computes");
}

TEST(HangReport, NobodyWaits) {
  EXPECT_EQ(hang_report({}), "no rank waits for another");
  EXPECT_EQ(hang_report(std::vector{computing(0)}), "rank 0 computes\nno rank waits for another");
}

}  // namespace
}  // namespace bev
