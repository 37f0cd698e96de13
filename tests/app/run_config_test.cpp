#include "app/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/options.h"
#include "base/fields.h"
#include "models/families/family.h"

namespace bev {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunConfigTest : public testing::Test {
 protected:
  RunConfigTest() { run.fields(list); }
  // Resolves a small model with data and a length, changed by the flags.
  std::vector<std::string> resolve(std::vector<std::string> flags) {
    run.model.num_layers = 6;
    run.model.hidden_size = 48;
    run.model.num_attention_heads = 6;
    run.train.train_iters = 100;
    run.data.mock_data = true;
    run.model.vocab_size = 100;
    Options options = parse_options(list, flags);
    EXPECT_THAT(options.problems(), IsEmpty());
    return run.resolve();
  }
  // The same, starting from a fresh configuration.
  std::vector<std::string> resolve_anew(std::vector<std::string> flags) {
    run = RunConfig();
    return resolve(std::move(flags));
  }
  RunConfig run;
  FieldList list;
};

TEST_F(RunConfigTest, DerivesWhatIsNotGiven) {
  EXPECT_THAT(resolve({"--dp", "2", "--tp", "3", "--micro-batch-size", "4"}), IsEmpty());
  EXPECT_EQ(run.parallel.ranks, 6);
  EXPECT_EQ(run.batch.global_batch_size, 8);
  EXPECT_EQ(run.data.seq_length, 1024);
  EXPECT_EQ(run.model.max_position_embeddings, 1024);
  EXPECT_EQ(run.optim.lr_decay_iters, 100);
  EXPECT_EQ(run.optim.lr_decay_samples, 0);
  EXPECT_EQ(run.optim.start_weight_decay, 0.01);
  EXPECT_EQ(run.train.eval_interval, 0);
  EXPECT_EQ(run.train.eval_iters, 0);
}

TEST_F(RunConfigTest, AResidualStreamInFp32NeedsAModelOf16Bits) {
  EXPECT_THAT(resolve_anew({"--bf16", "--fp32-residual-connection"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--fp32-residual-connection"}),
              ElementsAre("--fp32-residual-connection: the run is in f32 throughout; add --bf16 or "
                          "--fp16, or leave it out"));
}

TEST_F(RunConfigTest, SharedSequencesExcludeWhatCouplesTheirRanks) {
  const std::vector<std::string> all = {"--hybrid-context-parallel",   "--dp", "2", "--cp", "2",
                                        "--max-seqlen-per-dp-cp-rank", "256"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), all.begin(), all.end());
    return resolve_anew(more);
  };
  EXPECT_THAT(with({"--global-batch-size", "3"}), IsEmpty());
  EXPECT_EQ(run.batch.global_batch_size, 3);
  EXPECT_THAT(with({"--num-experts", "4"}), ElementsAre(HasSubstr("excludes --num-experts")));
  EXPECT_THAT(with({"--pp", "2"}), Contains(HasSubstr("pipeline stages would wait")));
  EXPECT_THAT(with({"--cp-comm-type", "a2a"}), Contains(HasSubstr("heads are not exchanged")));
  EXPECT_THAT(with({"--seq-length", "2048"}),
              ElementsAre(HasSubstr("2048 tokens do not fit 4 ranks")));
  EXPECT_THAT(with({"--dp", "3"}), Contains(HasSubstr("6 ranks are no power of two; use 4 or 8")));
  EXPECT_THAT(resolve_anew({"--max-seqlen-per-dp-cp-rank", "256"}),
              ElementsAre(HasSubstr("does nothing without --hybrid-context-parallel")));
}

TEST_F(RunConfigTest, QkClipNeedsWeightsThatScaleLogits) {
  EXPECT_THAT(resolve_anew({"--qk-clip", "--qk-clip-alpha", "0.3"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--qk-clip-threshold", "50"}),
              ElementsAre("--qk-clip-threshold: does nothing without --qk-clip; add it"));
  EXPECT_THAT(resolve_anew({"--qk-clip", "--qk-layernorm"}),
              ElementsAre(HasSubstr("--qk-clip: excludes --qk-layernorm")));
  EXPECT_THAT(resolve_anew({"--qk-clip", "--lora-rank", "4"}),
              ElementsAre(HasSubstr("--lora-rank freezes")));
}

TEST_F(RunConfigTest, StateInBf16NeedsABf16ModelAndAdam) {
  const std::vector<std::string> all = {
      "--main-params-dtype", "bf16", "--main-grads-dtype", "bf16",
      "--exp-avg-dtype",     "bf16", "--exp-avg-sq-dtype", "bf16"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), all.begin(), all.end());
    return resolve_anew(more);
  };
  EXPECT_THAT(with({"--bf16"}), IsEmpty());
  EXPECT_EQ(run.optim.dtypes.exp_avg_sq, Dtype::kBf16);
  EXPECT_THAT(with({}),
              ElementsAre(HasSubstr("--main-params-dtype: bf16 needs a model in bf16; add --bf16"),
                          HasSubstr("--main-grads-dtype: bf16 needs a model in bf16")));
  EXPECT_THAT(with({"--bf16", "--optimizer", "sgd"}),
              ElementsAre(HasSubstr("--main-params-dtype: bf16 needs --optimizer adam"),
                          HasSubstr("--exp-avg-dtype"), HasSubstr("--exp-avg-sq-dtype")));
  EXPECT_THAT(resolve_anew({"--fp64", "--exp-avg-dtype", "bf16"}),
              ElementsAre(HasSubstr("--exp-avg-dtype")));
  EXPECT_THAT(resolve_anew({"--fp16", "--exp-avg-dtype", "bf16"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--exp-avg-dtype", "fp8", "--exp-avg-sq-dtype", "fp8"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--optimizer", "sgd", "--exp-avg-dtype", "fp8"}),
              ElementsAre(HasSubstr("--exp-avg-dtype: fp8 needs --optimizer adam")));
}

TEST_F(RunConfigTest, PatternsMustMatchAParameter) {
  EXPECT_THAT(
      resolve_anew({"--freeze", "decoder.layers.?.mlp.*", "embedding.*", "--param-group",
                    "*.bias:wd-mult=1", "*:lr=0.1:min-lr=0.01:lr-mult=2", "--decoupled-lr", "0.1"}),
      IsEmpty());
  EXPECT_EQ(run.optim.groups.freeze.size(), 2u);
  EXPECT_EQ(run.optim.groups.param_group.size(), 2u);
  EXPECT_THAT(resolve_anew({"--freeze", "decoder.layer.0.mlp.linear_fc1.weight", "layers.*"}),
              ElementsAre("--freeze: no parameter is called decoder.layer.0.mlp.linear_fc1.weight; "
                          "did you mean decoder.layers.0.mlp.linear_fc1.weight?",
                          HasSubstr("--freeze: no parameter is called layers.*; the model has "
                                    "decoder.final_layernorm.bias, ")));
  EXPECT_THAT(resolve_anew({"--train-only", "output_layer.weight"}),
              ElementsAre(HasSubstr("--train-only: no parameter is called output_layer.weight")));
  EXPECT_THAT(resolve_anew({"--head-lr-mult", "10"}),
              ElementsAre(HasSubstr("--head-lr-mult: no parameter is called output_layer.weight")));
  EXPECT_THAT(resolve_anew({"--head-lr-mult", "10", "--untie-embeddings-and-output-weights"}),
              IsEmpty());
}

TEST_F(RunConfigTest, GroupsMustBeReadable) {
  EXPECT_THAT(
      resolve_anew({"--param-group", "*", "*:lr-mult=x", "*:lrmult=1", "*:min-lr=0"}),
      ElementsAre("--param-group: '*': sets nothing; add for example :lr-mult=0.1 or :wd-mult=0",
                  "--param-group: '*:lr-mult=x': lr-mult: 'x' is not a number",
                  "--param-group: '*:lrmult=1': 'lrmult=1' is none of lr-mult=NUMBER, "
                  "wd-mult=NUMBER, lr=NUMBER, min-lr=NUMBER",
                  "--param-group: '*:min-lr=0': min-lr needs lr; give both"));
  EXPECT_THAT(resolve_anew({"--decoupled-lr", "0.1", "--decoupled-min-lr", "0.2"}),
              ElementsAre(HasSubstr("--decoupled-lr: 0.1 for embedding.word_embeddings.weight")));
  std::vector<std::string> many = {"--param-group"};
  for (int i = 0; i < 8; ++i) many.push_back("*:lr=0.1");
  EXPECT_THAT(resolve_anew(many),
              ElementsAre(HasSubstr("--param-group: 8 groups have an lr of their own; at most 7")));
}

TEST_F(RunConfigTest, AFractionOfOffloadNeedsOffload) {
  EXPECT_THAT(resolve({"--optimizer-offload-fraction", "0.5"}),
              ElementsAre(HasSubstr("does nothing without --optimizer-cpu-offload; add it")));
  EXPECT_THAT(resolve_anew({"--optimizer-cpu-offload", "--optimizer-offload-fraction", "0.5"}),
              IsEmpty());
  EXPECT_EQ(run.optim.offloaded_fraction(), 0.5);
  EXPECT_THAT(resolve_anew({"--optimizer-cpu-offload"}), IsEmpty());
  EXPECT_EQ(run.optim.offloaded_fraction(), 1);
}

TEST_F(RunConfigTest, OffloadIsByLayerOrByPartsThatTheModelHas) {
  const std::string fine = "--fine-grained-activation-offloading", parts = "--offload-modules";
  EXPECT_THAT(resolve_anew({"--cpu-offloading-num-layers", "6"}), IsEmpty());
  EXPECT_THAT(resolve_anew({fine, parts, "core_attn", "mlp_act"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--cpu-offloading-num-layers", "7"}),
              ElementsAre(HasSubstr("7 of the model's 6 layers")));
  EXPECT_THAT(resolve_anew({fine}), ElementsAre(HasSubstr("attn_norm qkv_linear core_attn")));
  EXPECT_THAT(resolve_anew({parts, "core_attn"}), ElementsAre(HasSubstr("needs " + fine)));
  EXPECT_THAT(resolve_anew({fine, parts, "core_attn", "--cpu-offloading-num-layers", "1"}),
              ElementsAre(HasSubstr("leave one of the two out")));
  EXPECT_THAT(resolve_anew({fine, parts, "moe_act"}), ElementsAre(HasSubstr("no experts")));
  EXPECT_THAT(resolve_anew({fine, parts, "mlp_act", "--num-experts", "4"}),
              ElementsAre(HasSubstr("expert_fc1, moe_act and expert_fc2")));
  EXPECT_THAT(resolve_anew({fine, parts, "core_attn", "--recompute-granularity", "full"}),
              ElementsAre(HasSubstr("attn_norm")));
}

TEST_F(RunConfigTest, DataParallelSizeComesFromTheRanks) {
  EXPECT_THAT(resolve({"--ranks", "12", "--tp", "2", "--pp", "3"}), IsEmpty());
  EXPECT_EQ(run.parallel.data_parallel_size, 2);
  EXPECT_EQ(run.batch.global_batch_size, 2);
}

TEST_F(RunConfigTest, SequenceParallelGoesOffWithoutTensorParallel) {
  EXPECT_THAT(resolve({"--sequence-parallel"}), IsEmpty());
  EXPECT_FALSE(run.parallel.sequence_parallel);
}

TEST_F(RunConfigTest, SequenceLengthFollowsTheModel) {
  run.model.max_position_embeddings = 131072;
  EXPECT_THAT(resolve({}), IsEmpty());
  EXPECT_EQ(run.data.seq_length, 4096);
  EXPECT_EQ(run.model.max_position_embeddings, 131072);
}

TEST_F(RunConfigTest, ValidationNeedsOneOfItsTwoNumbers) {
  EXPECT_THAT(resolve({"--eval-interval", "50"}), IsEmpty());
  EXPECT_EQ(run.train.eval_iters, 100);
  run = RunConfig();
  EXPECT_THAT(resolve({"--eval-iters", "5"}), IsEmpty());
  EXPECT_EQ(run.train.eval_interval, 1000);
  run = RunConfig();
  EXPECT_THAT(resolve({"--eval-iters", "0", "--eval-interval", "10"}), IsEmpty());
  EXPECT_EQ(run.train.eval_interval, 0);
}

TEST_F(RunConfigTest, EveryBatchSizeOfARunFillsAnInterleavedPipeline) {
  EXPECT_THAT(resolve({"--pp", "2", "--vpp", "3", "--global-batch-size", "8"}), IsEmpty());
  run = RunConfig();
  EXPECT_THAT(resolve({"--pp", "2", "--vpp", "3", "--rampup-batch-size", "4", "1", "100",
                       "--global-batch-size", "6"}),
              ElementsAre(HasSubstr("groups of 2 leave 1 of 5 micro-batches")));
}

TEST_F(RunConfigTest, AllBrokenRulesAreReportedTogether) {
  EXPECT_THAT(
      resolve({"--tp",
               "4",
               "--pp",
               "8",
               "--bf16",
               "--fp16",
               "--global-batch-size",
               "7",
               "--micro-batch-size",
               "2",
               "--train-samples",
               "5",
               "--text",
               "a",
               "--ep",
               "2",
               "--seq-length",
               "64",
               "--max-position-embeddings",
               "32"}),
      testing::UnorderedElementsAre(
          "--train-iters: 100 and --train-samples 5 both set the length; keep one",
          HasSubstr("--global-batch-size: 7 is not divisible by micro batch size "
                    "2 x data-parallel size 1 = 2; use 6 or 8"),
          "--tensor-model-parallel-size: 4 does not divide --num-attention-heads 6; use 1, 2, 3 or "
          "6",
          HasSubstr("--pipeline-model-parallel-size: 8 stages for --num-layers 6; use at most 6"),
          HasSubstr("--expert-model-parallel-size: ep 2 x etp 4 does not divide the 4 ranks"),
          HasSubstr("--expert-model-parallel-size: 2 needs a model with experts"),
          "--bf16: excludes --fp16; keep one",
          HasSubstr("--seq-length: 64 is above --max-position-embeddings 32"),
          "--text: excludes --mock-data; keep one", HasSubstr("--vocab-size: 100 is too small")));
}

TEST_F(RunConfigTest, RanksMustFit) {
  EXPECT_THAT(resolve({"--ranks", "7", "--tp", "2"}),
              Contains("--ranks: 7 is not a multiple of tp 2 x pp 1 x cp 1 = 2"));
  run = RunConfig();
  EXPECT_THAT(resolve({"--ranks", "8", "--tp", "2", "--dp", "3"}),
              Contains(HasSubstr("--ranks: 8 is not tp 2 x pp 1 x cp 1 x dp 3 = 6")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--ranks", "1", "--tp", "2"}), testing::Not(IsEmpty()));
}

TEST_F(RunConfigTest, RanksAreSharedOutOverProcesses) {
  struct Case {
    std::int64_t processes;
    std::vector<std::string> flags;
    std::int64_t ranks, dp;
  };
  for (const Case& c : {Case{4, {}, 1, 4},
                        {4, {"--tp", "2"}, 1, 2},
                        {2, {"--tp", "2", "--pp", "2"}, 2, 1},
                        {2, {"--dp", "6"}, 3, 6},
                        {2, {"--tp", "2", "--ranks", "3"}, 3, 3}}) {
    run = RunConfig();
    run.parallel.processes = c.processes;
    EXPECT_THAT(resolve(c.flags), IsEmpty());
    EXPECT_EQ(run.parallel.ranks, c.ranks);
    EXPECT_EQ(run.parallel.data_parallel_size, c.dp);
  }
  run = RunConfig();
  run.parallel.processes = 4;
  EXPECT_THAT(
      resolve({"--tp", "6"}),
      Contains("--ranks: 4 processes do not fit tp 6 x pp 1 x cp 1 = 6; start a multiple or "
               "a divisor of 6 processes, or give --ranks"));
  run = RunConfig();
  run.parallel.processes = 4;
  EXPECT_THAT(resolve({"--dp", "6"}),
              Contains(HasSubstr("dp 6 = 6 ranks cannot be shared out evenly over 4 processes")));
  run = RunConfig();
  run.parallel.processes = 2;
  EXPECT_THAT(resolve({"--ranks", "3", "--dp", "2"}),
              Contains(HasSubstr("--ranks: 3 x 2 processes is not tp 1 x pp 1 x cp 1 x dp 2 = 2")));
}

TEST_F(RunConfigTest, OneProcessHasRoomForSoManyRanks) {
  EXPECT_THAT(resolve({"--tp", "2", "--pp", "2", "--dp", "1024"}), IsEmpty());
  run = RunConfig();
  EXPECT_THAT(resolve({"--tp", "2", "--pp", "2", "--dp", "1025"}),
              ElementsAre("--ranks: tp 2 x pp 2 x cp 1 x dp 1025 = 4100 ranks are too many for the "
                          "threads of one process; use at most 4096"));
  run = RunConfig();
  run.train.dry_run = true;
  EXPECT_THAT(resolve({"--dp", "16384"}), IsEmpty());
  run = RunConfig();
  run.train.dry_run = true;
  EXPECT_THAT(resolve({"--dp", "16384", "--tp", "2", "--cp", "64"}),
              Contains(HasSubstr("2097152 ranks are too many; at most 1048576")));
  run = RunConfig();
  EXPECT_THAT(parse_options(list, std::vector<std::string>{"--distributed-timeout-minutes", "1e7"})
                  .problems(),
              ElementsAre(HasSubstr("--distributed-timeout-minutes")));
}

TEST_F(RunConfigTest, AReplayHasItsOwnBatchesAndNoValidation) {
  run.batch.replay = {3, 3, 5};
  EXPECT_THAT(
      resolve({"--token-batches", "f.json", "--no-mock-data", "--global-batch-size", "8",
               "--rampup-batch-size", "2,2,8", "--eval-interval", "5", "--eval-iters", "1"}),
      testing::UnorderedElementsAre(
          "--global-batch-size: a replay has the batch sizes of its file (--token-batches); leave "
          "it out",
          HasSubstr("--rampup-batch-size: a replay has the batch sizes of its file"),
          "--eval-interval: a replay has no validation data; leave it out",
          "--eval-iters: a replay has no validation data; leave it out"));
  run = RunConfig();
  run.batch.replay = {3, 3, 5};
  EXPECT_THAT(resolve({"--token-batches", "f.json", "--no-mock-data", "--step-batch-size-schedule",
                       "0:3", "--decrease-batch-size-if-needed"}),
              testing::IsSupersetOf({HasSubstr("--step-batch-size-schedule: a replay has"),
                                     HasSubstr("--decrease-batch-size-if-needed: a replay has")}));
}

TEST_F(RunConfigTest, SchedulesCountTheSamplesOfAReplay) {
  run.batch.replay = {3, 3, 5, 1};
  EXPECT_THAT(
      resolve({"--token-batches", "f.json", "--no-mock-data", "--dp", "2", "--micro-batch-size",
               "2", "--train-iters", "4", "--lr-warmup-iters", "2", "--lr", "1"}),
      IsEmpty());
  BatchSchedule batches(run.batch.spec(2, run.data.seq_length));
  LrSchedule schedule = lr_schedule(run.optim, batches);
  EXPECT_EQ(schedule.decay_steps, 12);
  EXPECT_EQ(schedule.warmup_steps, 6);
  EXPECT_EQ(weight_decay_schedule(run.optim, run.train, batches).steps, 12);
}

TEST_F(RunConfigTest, TensorParallelNeedsFittingGroups) {
  EXPECT_THAT(
      resolve_anew({"--tp", "3", "--num-query-groups", "2"}),
      ElementsAre(
          "--tensor-model-parallel-size: 3 does not divide --num-query-groups 2; use 1 or 2"));
  EXPECT_THAT(resolve_anew({"--tp", "6", "--num-query-groups", "2", "--kv-channels", "6"}),
              IsEmpty());
  EXPECT_THAT(resolve_anew({"--tp", "6", "--num-query-groups", "2", "--kv-channels", "4"}),
              ElementsAre("--tensor-model-parallel-size: 6 ranks with --num-query-groups 2 cut a "
                          "head of --kv-channels 4 into 3 unequal parts; use 1 or 2"));
}

TEST_F(RunConfigTest, ContextParallelRulesNameWhatWouldWork) {
  EXPECT_THAT(resolve_anew({"--cp", "4"}), IsEmpty());
  EXPECT_THAT(resolve_anew({"--cp", "4", "--cp-comm-type", "a2a"}),
              ElementsAre(HasSubstr("--cp-comm-type: a2a over 4 ranks needs heads that divide; a "
                                    "tensor-parallel rank has 6 and 6 for keys and values; use 1, "
                                    "2, 3 or 6 ranks, or p2p or allgather")));
  EXPECT_THAT(resolve_anew({"--cp", "2", "--cp-comm-type", "p2p", "a2a"}),
              ElementsAre(HasSubstr("--cp-comm-type: 2 kinds for --num-layers 6")));
  EXPECT_THAT(resolve_anew({"--cp", "4", "--cp-comm-type", "a2a+p2p"}),
              ElementsAre(HasSubstr("--hierarchical-context-parallel-sizes: missing")));
  EXPECT_THAT(resolve_anew({"--cp", "4", "--cp-comm-type", "a2a+p2p",
                            "--hierarchical-context-parallel-sizes", "2", "2"}),
              IsEmpty());
  EXPECT_THAT(resolve_anew({"--hierarchical-context-parallel-sizes", "2", "1"}),
              ElementsAre(HasSubstr("these sizes do not fit; a2a+p2p wants two whose product is "
                                    "--context-parallel-size 1")));
}

TEST_F(RunConfigTest, CopiesOfShardsMustDivideAndExist) {
  EXPECT_THAT(resolve_anew({"--dp", "4", "--num-distributed-optimizer-instances", "3"}),
              ElementsAre(HasSubstr("3 does not divide dp x cp = 4; use 1, 2 or 4"),
                          HasSubstr("nothing is shared out")));
}

TEST_F(RunConfigTest, ExpertGridMustDivideAStage) {
  EXPECT_THAT(
      resolve_anew({"--dp", "2", "--ep", "4", "--dry-run"}),
      ElementsAre(HasSubstr("ep 4 x etp 1 does not divide the 2 ranks of a pipeline stage")));
  EXPECT_THAT(resolve_anew({"--dp", "2", "--ep", "2", "--dry-run"}), IsEmpty());
}

TEST_F(RunConfigTest, ExpertsNeedNoSequenceParallelAndOverlapASharedOne) {
  EXPECT_THAT(resolve_anew({"--tp", "2", "--ep", "2", "--etp", "1", "--num-experts", "4"}),
              IsEmpty());
  EXPECT_EQ(run.parallel.moe_token_dispatcher, TokenDispatcher::kAllToAll);
  EXPECT_THAT(
      resolve_anew({"--num-experts", "4", "--moe-shared-expert-overlap"}),
      ElementsAre(HasSubstr("--moe-shared-expert-overlap: the model has no shared expert")));
}

TEST_F(RunConfigTest, OverlapOfExpertsNeedsExpertsAndTheirSchedule) {
  const char* overlap = "--overlap-moe-expert-parallel-comm";
  EXPECT_THAT(resolve_anew({"--dp", "2", "--ep", "2", "--num-experts", "4", overlap,
                            "--delay-wgrad-compute", "--moe-expert-rank-capacity-factor", "1.5"}),
              IsEmpty());
  EXPECT_THAT(resolve_anew({"--dp", "2", overlap}),
              ElementsAre(HasSubstr("the model has no experts")));
  EXPECT_THAT(resolve_anew({"--delay-wgrad-compute"}),
              ElementsAre(HasSubstr("goes with --overlap-moe-expert-parallel-comm")));
  EXPECT_THAT(resolve_anew({"--dp", "2", "--pp", "2", "--ep", "2", "--num-experts", "4", overlap,
                            "--pipeline-schedule", "zb-h1"}),
              ElementsAre(HasSubstr("needs --pipeline-schedule 1f1b")));
}

TEST_F(RunConfigTest, PaddingToACapacityNeedsOne) {
  const char* pad = "--moe-pad-expert-input-to-capacity";
  EXPECT_THAT(resolve_anew({"--num-experts", "4", pad}),
              ElementsAre(HasSubstr("there is no capacity; give --moe-expert-capacity-factor")));
  EXPECT_THAT(resolve_anew({"--num-experts", "4", pad, "--moe-expert-capacity-factor", "1.5"}),
              IsEmpty());
}

TEST_F(RunConfigTest, ScheduleUnitsMustAgree) {
  EXPECT_THAT(resolve({"--lr-warmup-samples", "10", "--lr-decay-samples", "50"}),
              ElementsAre("--lr-decay-samples: 50 does not go with --train-iters; give "
                          "--lr-decay-iters",
                          "--lr-warmup-samples: 10 does not go with --train-iters; give "
                          "--lr-warmup-iters"));
}

TEST_F(RunConfigTest, WarmUpIsSetOnceAndEndsInTime) {
  EXPECT_THAT(resolve({"--lr-warmup-iters", "10", "--lr-warmup-fraction", "0.1"}),
              ElementsAre("--lr-warmup-fraction: 0.1 and --lr-warmup-iters 10 both set the "
                          "warm-up; keep one"));
  run = RunConfig();
  EXPECT_THAT(resolve({"--lr-warmup-iters", "100"}),
              ElementsAre(HasSubstr("the warm-up takes 100 samples")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--lr", "1e-4", "--min-lr", "1e-3"}),
              ElementsAre(HasSubstr("--lr: 0.0001 is below --min-lr 0.001")));
}

TEST_F(RunConfigTest, WsdNeedsItsLength) {
  EXPECT_THAT(resolve({"--lr-decay-style", "wsd"}), ElementsAre(HasSubstr("--lr-wsd-decay-iters")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "10"}), IsEmpty());
}

TEST_F(RunConfigTest, WeightDecayNeedsAStyleForItsEnds) {
  EXPECT_THAT(resolve({"--start-weight-decay", "0", "--end-weight-decay", "0.1"}),
              ElementsAre(HasSubstr("use linear or cosine")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--weight-decay-incr-style", "linear", "--end-weight-decay", "0.1"}),
              Contains(HasSubstr("--start-weight-decay: an increasing weight decay needs both")));
}

TEST_F(RunConfigTest, StepScheduleEndsAtTheGlobalBatch) {
  EXPECT_THAT(resolve({"--step-batch-size-schedule", "0:4 1M:8", "--global-batch-size", "4"}),
              ElementsAre(HasSubstr("--global-batch-size: 4 is not 8, the last batch of")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--step-batch-size-schedule", "0:4 1M:8", "--global-batch-size", "8"}),
              IsEmpty());
  run = RunConfig();
  EXPECT_THAT(resolve({"--step-batch-size-schedule", "0:4 1M:nine"}),
              ElementsAre(HasSubstr("--step-batch-size-schedule: \"1M:nine\" is not")));
  run = RunConfig();
  EXPECT_THAT(resolve({"--step-batch-size-schedule", "0:4 1M:8"}), IsEmpty());
  EXPECT_EQ(run.batch.global_batch_size, 0);
}

TEST_F(RunConfigTest, ARunNeedsDataAndALength) {
  Options options = parse_options(list, std::vector<std::string>{"--num-layers", "1"});
  std::vector<std::string> problems = run.resolve();
  EXPECT_THAT(problems, Contains(HasSubstr("--train-iters: the run has no length")));
  EXPECT_THAT(problems, Contains(HasSubstr("--text: there is no data")));
  EXPECT_THAT(problems, Contains(HasSubstr("--hidden-size: is 0")));
}

TEST_F(RunConfigTest, ADryRunNeedsNeither) {
  run.train.dry_run = true;
  EXPECT_THAT(resolve({"--train-iters", "0", "--no-mock-data"}), IsEmpty());
}

TEST_F(RunConfigTest, BytesSetTheVocabulary) {
  run.model.vocab_size = 0;
  run.data.text = {"a.txt"};
  run.model.num_layers = run.model.hidden_size = run.model.num_attention_heads = 1;
  run.train.train_iters = 1;
  EXPECT_THAT(run.resolve(), IsEmpty());
  EXPECT_EQ(run.model.vocab_size, 256);
}

TEST_F(RunConfigTest, OddSplitsAreRefused) {
  EXPECT_THAT(resolve({"--split", "0,1,1"}),
              ElementsAre(HasSubstr("--split: '0,1,1' leaves nothing for training")));
  EXPECT_THAT(resolve({"--split", "a"}), ElementsAre(HasSubstr("--split: 'a'")));
  EXPECT_THAT(resolve({"--split", "98, 2"}), IsEmpty());
}

TEST_F(RunConfigTest, ScheduleNeedsNoModel) {
  Options options =
      parse_options(list, std::vector<std::string>{"--train-iters", "10", "--global-batch-size",
                                                   "8", "--lr-warmup-iters", "2", "--lr", "1"});
  EXPECT_THAT(run.resolve_schedule(), IsEmpty());
  BatchSchedule batches(run.batch.spec(run.parallel.data_parallel_size, run.data.seq_length));
  LrSchedule schedule = lr_schedule(run.optim, batches);
  EXPECT_EQ(schedule.decay_steps, 80);
  EXPECT_EQ(schedule.warmup_steps, 16);
  EXPECT_EQ(schedule.lr(8), 0.5);
  EXPECT_EQ(weight_decay_schedule(run.optim, run.train, batches).steps, 80);
}

TEST_F(RunConfigTest, SchedulesCountTheSamplesOfGrowingBatches) {
  Options options = parse_options(
      list, std::vector<std::string>{"--train-iters", "10", "--step-batch-size-schedule",
                                     "0:2 10:4", "--seq-length", "1", "--lr-decay-style", "WSD",
                                     "--lr-wsd-decay-iters", "2", "--lr-warmup-fraction", "0.1"});
  EXPECT_THAT(run.resolve_schedule(), IsEmpty());
  BatchSchedule batches(run.batch.spec(1, 1));
  LrSchedule schedule = lr_schedule(run.optim, batches);
  EXPECT_EQ(schedule.decay_steps, 30);  // 5 iterations of 2, 5 of 4
  EXPECT_EQ(schedule.wsd_decay_steps, 8);
  EXPECT_EQ(schedule.warmup_steps, 3);
}

TEST_F(RunConfigTest, ModelConflictsNameBothValues) {
  Options options = parse_options(
      list, std::vector<std::string>{"--num-layers", "2", "--hidden-size", "8", "--swiglu",
                                     "--hidden-dropout", "0.1", "--rope-scaling-type", "yarn"});
  run.model = ModelConfig();  // as read from the folder
  run.model.num_layers = 3;
  run.model.hidden_size = 8;
  run.model.gated = true;
  run.model.activation = Activation::kGelu;
  EXPECT_THAT(model_conflicts(options, list, run.model, false),
              ElementsAre("--num-layers: --num-layers 2 contradicts --hf-model, where it is 3; "
                          "leave it out",
                          "--swiglu: --activation silu contradicts --hf-model, where it is gelu; "
                          "leave it out"));
  EXPECT_EQ(run.model.num_layers, 3);
  EXPECT_EQ(run.model.activation, Activation::kGelu);
}

TEST_F(RunConfigTest, ExpertsOfAFolderMayNotBeContradicted) {
  Options options = parse_options(
      list, std::vector<std::string>{"--num-experts", "8", "--moe-router-topk", "1",
                                     "--moe-layer-freq", "[1]*32", "--moe-router-num-groups", "1",
                                     "--moe-aux-loss-coeff", "0.1", "--ffn-hidden-size", "14336"});
  run.model = preset("mixtral-8x7b");
  EXPECT_THAT(model_conflicts(options, list, run.model, false),
              ElementsAre("--moe-router-topk: --moe-router-topk 1 contradicts --hf-model, where it "
                          "is 2; leave it out"));
  EXPECT_EQ(run.model.moe.topk, 2);
}

TEST_F(RunConfigTest, RecomputedPartsAreThoseOfTheModel) {
  auto parts = [&](const std::string& part, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--recompute-activations", "--recompute-modules", part});
    return resolve_anew(more);
  };
  EXPECT_THAT(parts("core_attn,mlp,layernorm"), IsEmpty());
  EXPECT_THAT(parts("moe"), ElementsAre(HasSubstr("moe, but the model has no experts")));
  EXPECT_THAT(parts("moe_act"), ElementsAre(HasSubstr("no experts")));
  EXPECT_THAT(parts("moe,moe_act", {"--num-experts", "4"}), IsEmpty());
  EXPECT_THAT(parts("shared_experts", {"--num-experts", "4"}),
              ElementsAre(HasSubstr("no shared expert")));
  EXPECT_THAT(parts("shared_experts",
                    {"--num-experts", "4", "--moe-shared-expert-intermediate-size", "64"}),
              IsEmpty());
  EXPECT_THAT(parts("mla_up_proj"), ElementsAre(HasSubstr("no latent attention")));
}

TEST_F(RunConfigTest, ExactKernelsNeedScalesThatNoOtherTokenHasAShareIn) {
  const std::vector<std::string> exact = {"--exact", "--bf16", "--fp8-format", "hybrid"};
  EXPECT_THAT(resolve(exact), Contains(HasSubstr("--fp8-recipe blockwise")));
  EXPECT_THAT(resolve_anew({"--exact", "--bf16"}), IsEmpty());
}

TEST_F(RunConfigTest, PrecisionGivesTheDtype) {
  EXPECT_EQ(run.precision.model_dtype(), Dtype::kF32);
  run.precision.fp16 = true;
  EXPECT_EQ(run.precision.model_dtype(), Dtype::kF16);
  run.precision = {.bf16 = false, .fp16 = false, .fp64 = true};
  EXPECT_EQ(run.precision.model_dtype(), Dtype::kF64);
  EXPECT_THAT(resolve({"--device", "cuda"}), ElementsAre(HasSubstr("--fp64: is for the CPU")));
}

}  // namespace
}  // namespace bev
