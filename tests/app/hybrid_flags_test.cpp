// Flags of models whose layers differ in kind: Megatron's patterns, and what layouts and other
// flags go with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/choose_model.h"
#include "app/options.h"
#include "app/run_config.h"
#include "base/fields.h"

namespace bev {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Chosen {
  RunConfig run;
  std::vector<std::string> problems;
};

Chosen choose(std::vector<std::string> flags) {
  Chosen chosen;
  FieldList list;
  chosen.run.fields(list);
  const std::vector<std::string> small = {
      "--hidden-size", "64", "--num-attention-heads", "4", "--vocab-size", "100", "--mock-data",
      "--train-iters", "10", "--seq-length",          "64"};
  flags.insert(flags.begin(), small.begin(), small.end());
  Options options = parse_options(list, flags);
  choose_model(chosen.run, list, options);
  chosen.problems = options.problems();
  return chosen;
}

TEST(HybridFlags, PatternsHaveTheirLayersAndStages) {
  Chosen chosen = choose({"--hybrid-layer-pattern", "M-M*-"});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_EQ(chosen.run.model.num_layers, 5);
  EXPECT_EQ(chosen.run.parallel.pipeline_model_parallel_layout, "");
  chosen = choose({"--hybrid-override-pattern", "M-|M*|E-/"});
  EXPECT_THAT(chosen.problems, IsEmpty());
  EXPECT_EQ(chosen.run.model.hybrid_layer_pattern, "M-M*E-");
  EXPECT_EQ(chosen.run.model.num_layers, 6);
  EXPECT_EQ(chosen.run.parallel.pipeline_model_parallel_layout, "Ett|tt|ttL");
  chosen = choose({"--hybrid-layer-pattern", "||MM*"});
  EXPECT_EQ(chosen.run.parallel.pipeline_model_parallel_layout, "E||tttL");
}

TEST(HybridFlags, PartsBehindASlashAndTwoNamesOfStagesAreRefused) {
  EXPECT_THAT(choose({"--hybrid-layer-pattern", "MM/*E"}).problems,
              ElementsAre(HasSubstr("multi-token prediction behind '/'")));
  EXPECT_THAT(choose({"--hybrid-layer-pattern", "M|M", "--pipeline-model-parallel-layout", "Et|tL"})
                  .problems,
              ElementsAre(HasSubstr("both name the stages")));
}

std::vector<std::string> resolved(std::vector<std::string> flags) {
  flags.insert(flags.begin(),
               {"--hybrid-layer-pattern", "MM*-", "--mamba-num-heads", "8", "--mamba-head-dim",
                "16", "--mamba-num-groups", "2", "--position-embedding-type", "none"});
  Chosen chosen = choose(flags);
  EXPECT_THAT(chosen.problems, IsEmpty());
  return chosen.run.resolve();
}

TEST(HybridFlags, HeadsOfBothKindsDivideByTensorParallelRanks) {
  EXPECT_THAT(resolved({}), IsEmpty());
  EXPECT_THAT(resolved({"--tp", "4"}), IsEmpty());  // more ranks than groups
  EXPECT_THAT(resolved({"--tp", "8"}),
              Contains(HasSubstr("8 does not divide --num-attention-heads 4; use 1, 2 or 4")));
  EXPECT_THAT(resolved({"--tp", "4", "--mamba-num-heads", "6"}),
              Contains(HasSubstr("4 does not divide --mamba-num-heads 6")));
}

TEST(HybridFlags, ExactKernelsAndGpusAreRefused) {
  EXPECT_THAT(resolved({"--exact"}), Contains(HasSubstr("--exact: Mamba layers")));
  EXPECT_THAT(resolved({"--device", "cuda"}),
              Contains(HasSubstr("--device: the kernels of Mamba")));
}

TEST(HybridFlags, LimitsOfGatedDeltaLayersAreNamed) {
  auto problems = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--hybrid-layer-pattern", "gag*", "--linear-num-key-heads", "2",
                                 "--linear-num-value-heads", "4"});
    Chosen chosen = choose(flags);
    EXPECT_THAT(chosen.problems, IsEmpty());
    return chosen.run.resolve();
  };
  EXPECT_THAT(problems({"--tp", "2", "--attention-output-gate"}), IsEmpty());
  EXPECT_THAT(problems({"--tp", "4"}),
              Contains(HasSubstr("4 does not divide --linear-num-key-heads 2; use 1 or 2")));
  EXPECT_THAT(problems({"--exact"}), Contains(HasSubstr("--exact: gated delta layers")));
  EXPECT_THAT(problems({"--device", "cuda"}),
              Contains(HasSubstr("--device: the kernels of gated delta layers")));
  EXPECT_THAT(problems({"--linear-num-value-heads", "3"}),
              Contains(HasSubstr("--linear-num-value-heads: 3 is no multiple")));
}

}  // namespace
}  // namespace bev
