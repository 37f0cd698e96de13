// plan sequences: the balance of given lengths, compared with fixed context parallelism.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "base/error.h"
#include "base/text.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using nlohmann::json;

std::string plan(const std::string& words) {
  testing::internal::CaptureStdout();
  std::string problem;
  try {
    run_command(find_command("plan sequences"), split(words, ' '));
  } catch (const Error& error) {
    problem = error.what();
  }
  std::string out = testing::internal::GetCapturedStdout();
  return problem.empty() ? out : problem;
}

constexpr const char* kLengths =
    "--sequence-lengths 32768,700,800,8192,300,1200,4096,16000,2500,900,600,512";

TEST(PlanSequences, PrintsTheBalanceOfBoth) {
  const json told =
      json::parse(plan(concat("--dp 4 --cp 2 --max-seqlen-per-dp-cp-rank 8192 --json ", kLengths)));
  EXPECT_LE(told["flops_imbalance"], 1.1);
  EXPECT_GT(told["fixed_flops_imbalance"], 2);
  std::int64_t sequences = 0, longest = 0;
  for (const json& pack : told["packs"]) {
    sequences += std::ssize(pack["lengths"]);
    if (pack["lengths"][0] == 32768) longest = pack["ranks"];
  }
  EXPECT_EQ(sequences, 12);
  EXPECT_EQ(longest, 8);
  const std::string text =
      plan(concat("--dp 4 --cp 2 --max-seqlen-per-dp-cp-rank 8192 ", kLengths));
  EXPECT_NE(text.find("0 to 7      32768"), std::string::npos) << text;
  EXPECT_NE(text.find("largest rank's attention FLOPs over the mean: 1."), std::string::npos);
}

TEST(PlanSequences, RefusesWhatItCannotDivide) {
  EXPECT_NE(plan("--dp 3 --max-seqlen-per-dp-cp-rank 64 --sequence-lengths 5")
                .find("3 ranks are no power of two; use 2 or 4"),
            std::string::npos);
  const std::string missing = plan("--dp 2");
  EXPECT_NE(missing.find("--sequence-lengths: is missing"), std::string::npos) << missing;
  EXPECT_NE(missing.find("--max-seqlen-per-dp-cp-rank: is missing"), std::string::npos);
  EXPECT_NE(plan("--dp 2 --max-seqlen-per-dp-cp-rank 64 --sequence-lengths 5,200")
                .find("a sequence of 200 tokens does not fit 2 ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace bev
