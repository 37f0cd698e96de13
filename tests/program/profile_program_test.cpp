// --profile-trace and --log-memory-interval from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Outcome train(const TempFolder& folder, const std::string& more) {
  return run_shell(
      folder, concat(BEV_BINARY_DIR,
                     "/bevatron train --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
                     "--ffn-hidden-size 48 --seq-length 16 --mock-data --vocab-size 64 --lr 1e-3 "
                     "--device cpu --train-iters 4 ",
                     more));
}

TEST(ProfileProgram, WritesATraceOfTheStepsThatWereAskedFor) {
  TempFolder folder;
  Outcome run = train(folder,
                      "--tp 2 --profile-trace deep/trace.json --profile-step-start 1 "
                      "--profile-step-end 3");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("2 steps in"));
  EXPECT_THAT(run.err, HasSubstr("of it behind computation"));
  json file = json::parse(read_file(folder.path("deep/trace.json")));
  std::set<std::pair<int, int>> steps;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "step") steps.emplace(event["pid"], event["args"]["iteration"]);
  }
  EXPECT_EQ(steps, (std::set<std::pair<int, int>>{{0, 2}, {0, 3}, {1, 2}, {1, 3}}));
}

TEST(ProfileProgram, ARunThatIsShorterThanTheWindowWritesWhatThereWas) {
  TempFolder folder;
  Outcome run = train(folder, "--profile-trace t.json --profile-step-start 2");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("2 steps in"));
}

TEST(ProfileProgram, ABadPathOrWindowIsAnErrorBeforeTraining) {
  TempFolder folder;
  folder.write("file", "");
  for (const char* flags :
       {"--profile-trace file/trace.json --profile-step-start 1", "--profile-trace trace.json",
        "--profile-trace trace.json --profile-step-start 2 --profile-step-end 2"}) {
    Outcome run = train(folder, flags);
    EXPECT_NE(run.code, 0) << flags;
    EXPECT_THAT(run.err, Not(HasSubstr("iteration        1"))) << flags;
    EXPECT_THAT(run.err, ContainsRegex("file/trace.json|cannot create|--profile-step"));
  }
}

TEST(ProfileProgram, MemoryIsReportedAsMegatronDoes) {
  TempFolder folder;
  Outcome run = train(folder, "--tp 2 --dp 2 --log-memory-interval 2");
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(run.err,
                ContainsRegex(concat("\\[Rank ", rank,
                                     "\\] \\(after 4 iterations\\) memory \\(MB\\) \\| allocated: "
                                     "[0-9.]+ \\| max allocated: [0-9.]+ \\| reserved: [0-9.]+ "
                                     "\\| max reserved: [0-9.]+")));
  }
  EXPECT_THAT(run.err, Not(HasSubstr("[Rank 2]"))) << "it has what rank 0 has";
  EXPECT_THAT(run.err, ContainsRegex("\n  activations +[0-9.]+"));
}

}  // namespace
}  // namespace bev
