// Mutation test of communication: every collective of a training step matters. If one is spoiled,
// on all ranks alike, the step fails or its result differs from that of one rank. What this test
// would not catch, no other comparison of layouts would.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/layouts.h"
#include "tests/support/mutant_world.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

TinyRun tiny_run() {
  TinyRun run;
  run.model = tiny_llama();
  run.model.num_attention_heads = 8;
  run.model.num_query_groups = 2;
  run.model.kv_channels = 4;
  run.model.qk_layernorm = true;
  run.model.add_bias_linear = true;
  run.model.untie_embeddings_and_output_weights = false;
  run.model.hidden_dropout = 0.1;
  run.model.attention_dropout = 0.1;
  run.steps = 2;
  run.timeout_seconds = 20;
  return run;
}

bool sums(const Exchange& exchange) {
  return exchange.collective == "sum" || exchange.collective == "reduce_scatter";
}

// Any collective can be left out. Only sums can be doubled with an effect: a maximum is idempotent,
// and a gather, an all-to-all or a message delivers the same data again. There are no other
// exceptions: every mutant listed here must be caught.
std::vector<Mutant> mutants_of(const std::set<Exchange>& exchanges) {
  std::vector<Mutant> mutants;
  for (const Exchange& exchange : exchanges) {
    mutants.push_back({exchange, Mutation::kRemoved});
    if (sums(exchange)) mutants.push_back({exchange, Mutation::kDoubled});
  }
  return mutants;
}

bool caught(const LayoutAnswer& expected, TinyRun run, const Mutant& mutant) {
  MutantFilter filter(mutant);
  run.filter = &filter;
  try {
    return !answer_difference(expected, run_tiny(run)).empty();
  } catch (const Error&) {
    return true;
  }
}

class ExchangeMutation : public testing::TestWithParam<const char*> {};

TEST_P(ExchangeMutation, OfAnyExchangeIsCaught) {
  TinyRun run = tiny_run();
  run.micro_batch_size = 4;
  LayoutAnswer expected = run_tiny(run);
  run.micro_batch_size = 1;
  run.parallel = parse_layouts(GetParam(), {}).front();
  MutantFilter listener;
  run.filter = &listener;
  ASSERT_EQ(answer_difference(expected, run_tiny(run)), "");
  std::vector<Mutant> mutants = mutants_of(listener.exchanges());
  EXPECT_GE(mutants.size(), 5u);
  for (const Mutant& mutant : mutants) {
    EXPECT_TRUE(caught(expected, run, mutant)) << to_text(mutant);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExchangeMutation,
                         testing::Values("tp2sp,pp2,dp2zero1", "tp2,cp2zero3", "cp2a2a,dp2",
                                         "pp2zbv,tp2", "tp4", "tp4sp,dp2zero2instances2",
                                         "tp2sptpoverlap,cp2allgather",
                                         "pp2vpp2,dp2zero3gradoverlapparamoverlap", "cp4a2a2p2p2"));

}  // namespace
}  // namespace bev::test
