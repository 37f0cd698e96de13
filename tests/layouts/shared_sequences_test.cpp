// Dynamic context parallelism: sequences of unequal length on blocks of ranks of unequal size give
// one rank's answer, in f64.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

constexpr std::int64_t kLengths[] = {23, 3, 9, 1, 14, 5, 2, 7};

// A sample for each length; the one of 9 tokens is two documents.
StepSamples uneven_samples(std::uint64_t seed) {
  StepSamples samples;
  for (std::int64_t length : kLengths) {
    samples.push_back(
        random_samples(29, 1, length, seed * 31 + static_cast<std::uint64_t>(length)).front());
  }
  samples[2].documents = {4, 5};
  return samples;
}

TinyRun uneven_run(const ModelConfig& model) {
  TinyRun run;
  run.model = model;
  run.model.vocab_size = 29;
  run.samples = uneven_samples;
  run.micro_batch_size = std::ssize(kLengths);
  return run;
}

void expect_one_ranks_answer(const TinyRun& single, const std::vector<std::string>& layouts) {
  const LayoutAnswer expected = run_tiny(single);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const std::string& layout : layouts) {
    for (std::int64_t tokens : {6, 12, 40}) {
      TinyRun run = single;
      run.parallel = parse_layouts(layout, {}).at(0);
      run.parallel.hybrid_context_parallel = true;
      run.parallel.max_seqlen_per_dp_cp_rank = tokens;
      const std::int64_t ranks =
          run.parallel.context_parallel_size * run.parallel.data_parallel_size;
      if (ranks * tokens < 2 * kLengths[0]) continue;
      EXPECT_EQ(answer_difference(expected, run_tiny(run)), "")
          << layout << " of " << tokens << " tokens";
    }
  }
}

TEST(SharedSequences, GiveOneRanksAnswer) {
  expect_one_ranks_answer(uneven_run(tiny_llama()),
                          {"dp2", "cp2", "dp4", "cp2,dp2", "cp8", "dp4allgather", "dp4zero1",
                           "cp2,dp4zero3", "tp2sp,dp4", "tp2,cp2,dp2zero2"});
}

// Random numbers follow the place of a token in its sample.
TEST(SharedSequences, KeepDropoutWindowsAndSinks) {
  expect_one_ranks_answer(uneven_run(uneven_llama()), {"dp4", "tp4sp,dp2"});
  expect_one_ranks_answer(uneven_run(tiny_gpt_oss()), {"dp4zero3"});
  TinyRun learned = uneven_run(uneven_gpt());
  expect_one_ranks_answer(learned, {"cp4"});
}

TEST(SharedSequences, ShareLatentsAndLaterTokens) {
  TinyRun latent = uneven_run(tiny_deepseek());
  latent.parallel.recompute_granularity = RecomputeGranularity::kFull;
  expect_one_ranks_answer(latent, {"dp4"});
  ModelConfig depths = tiny_llama();
  depths.mtp_num_layers = 2;
  expect_one_ranks_answer(uneven_run(depths), {"dp4zero2", "tp2sp,cp4"});
}

}  // namespace
}  // namespace bev::test
