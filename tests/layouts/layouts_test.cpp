// Layout texts and their parser.
#include "verify/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

ParallelConfig only(const std::string& text) {
  std::vector<ParallelConfig> layouts = parse_layouts(text, ParallelConfig());
  EXPECT_EQ(layouts.size(), 1u);
  return layouts.front();
}

TEST(Layouts, EveryLayoutReadsAsItIsWritten) {
  std::set<std::string> seen;
  for (std::int64_t ranks : {1, 2, 6, 8}) {
    for (const ParallelConfig& layout : all_layouts(ranks, ParallelConfig())) {
      std::string text = layout_text(layout);
      EXPECT_TRUE(seen.insert(text).second) << text << " twice";
      if (ranks > 1) {
        EXPECT_EQ(layout_text(only(text)), text);
      }
    }
  }
}

TEST(Layouts, TokensMayBeJoinedOrNot) {
  ParallelConfig layout = only("tp2sptpoverlap,cp4a2a2p2p2pp4vpp2group6zbh1dp8zero3instances2");
  EXPECT_EQ(layout.tensor_model_parallel_size, 2);
  EXPECT_TRUE(layout.sequence_parallel);
  EXPECT_TRUE(layout.tp_comm_overlap);
  EXPECT_EQ(layout.context_parallel_size, 4);
  EXPECT_EQ(layout.cp_comm_type, std::vector<std::string>{"a2a+p2p"});
  EXPECT_EQ(layout.hierarchical_context_parallel_sizes, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(layout.pipeline_model_parallel_size, 4);
  EXPECT_EQ(layout.num_virtual_stages_per_pipeline_rank, 2);
  EXPECT_EQ(layout.microbatch_group_size, 6);
  EXPECT_EQ(layout.pipeline_schedule, PipelineSchedule::kZeroBubbleH1);
  EXPECT_EQ(layout.data_parallel_size, 8);
  EXPECT_EQ(layout.data_parallel_sharding_strategy, ShardingStrategy::kOptimGradsParams);
  EXPECT_EQ(layout.num_distributed_optimizer_instances, 2);
  EXPECT_EQ(parse_layouts("tp2sp,pp2  cp2a2a dp4zero3 ep2etp2", ParallelConfig()).size(), 4u);
}

TEST(Layouts, StagesMayBeNamedByLetters) {
  ParallelConfig layout = only("tp2,pp3[Et*2,|(t|)*1m*2|L]dp2zero1");
  EXPECT_EQ(layout.pipeline_model_parallel_layout, "Et*2,|(t|)*1m*2|L");
  EXPECT_EQ(layout.data_parallel_size, 2);
  EXPECT_EQ(layout_text(layout), "tp2,pp3[Et*2,|(t|)*1m*2|L],dp2zero1");
  expect_error(ErrorKind::kConfig, {"pp3[Ett|tL", "cannot read"}, [] { only("pp3[Ett|tL"); });
}

// Settings of the base other than parallelism are kept; its own parallelism is not.
TEST(Layouts, TheRestIsTheBases) {
  ParallelConfig base;
  base.tensor_model_parallel_size = 8;
  base.pipeline_model_parallel_layout = "Et|tL";
  base.overlap_grad_reduce = true;
  base.recompute_granularity = RecomputeGranularity::kFull;
  ParallelConfig layout = parse_layouts("dp2", base).front();
  EXPECT_EQ(layout_text(layout), "dp2");
  EXPECT_EQ(layout.pipeline_model_parallel_layout, "");
  EXPECT_EQ(layout.recompute_granularity, RecomputeGranularity::kFull);
}

TEST(Layouts, WhatCannotBeReadIsNamed) {
  for (const char* text :
       {"tp", "tp0", "tp65", "zero4", "cp2a2a2", "cp2a2a2p2p", "xyz", "tp2;pp2"}) {
    SCOPED_TRACE(text);
    expect_error(ErrorKind::kConfig, {"--layouts", text, "known are"},
                 [&] { parse_layouts(text, ParallelConfig()); });
  }
  expect_error(ErrorKind::kConfig, {"names no layout"},
               [] { parse_layouts("  ", ParallelConfig()); });
}

}  // namespace
}  // namespace bev
