#include "app/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "app/memory_fit.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// GPT-2 124M with the given flags, resolved.
RunConfig gpt2(std::vector<std::string> flags) {
  RunConfig run;
  run.train.dry_run = true;
  std::vector<std::string> all = {"--num-layers",          "12",  "--hidden-size", "768",
                                  "--num-attention-heads", "12",  "--vocab-size",  "50257",
                                  "--seq-length",          "1024"};
  all.insert(all.end(), flags.begin(), flags.end());
  FieldList list;
  run.fields(list);
  Options options = parse_options(list, all);
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_THAT(run.resolve(), IsEmpty());
  return run;
}

// Megatron's rank order: tp fastest, then cp, dp, pp; the expert mesh is over the ranks of a stage.
TEST(DryRun, NamesTheCoordinatesAndGroupsOfEveryRank) {
  using Ranks = std::vector<int>;
  std::vector<std::string> flags = {"--tp", "2",    "--pp", "2",     "--dp",
                                    "2",    "--ep", "2",    "--etp", "1"};
  json rank = json::parse(dry_run_json(gpt2(flags)))["ranks"][6];
  EXPECT_EQ(rank["etp"], 0);
  EXPECT_EQ(rank["ep"], 0);
  EXPECT_EQ(rank["edp"], 1);
  EXPECT_EQ(rank["groups"]["tp"], Ranks({6, 7}));
  EXPECT_EQ(rank["groups"]["dp"], Ranks({4, 6}));
  EXPECT_EQ(rank["groups"]["pp"], Ranks({2, 6}));
  EXPECT_EQ(rank["groups"]["ep"], Ranks({6, 7}));
  EXPECT_EQ(rank["groups"]["edp"], Ranks({4, 6}));
  EXPECT_EQ(rank["groups"]["embedding"], Ranks({2, 6}));
  EXPECT_THAT(dry_run_text(gpt2(flags)), HasSubstr("[0 4] [1 5] [2 6] [3 7]"));

  flags.push_back("--use-tp-pp-dp-mapping");
  rank = json::parse(dry_run_json(gpt2(flags)))["ranks"][6];
  EXPECT_EQ(rank["pp"], 1);
  EXPECT_EQ(rank["dp"], 1);
  EXPECT_EQ(rank["groups"]["pp"], Ranks({4, 6}));
  EXPECT_EQ(rank["groups"]["dp"], Ranks({2, 6}));
}

TEST(DryRun, JsonHasTheNumbersOfTheRun) {
  RunConfig run = gpt2({"--train-iters", "10", "--dp", "2", "--pp", "2", "--tp", "2", "--bf16",
                        "--global-batch-size", "8", "--device", "cpu"});
  json out = json::parse(dry_run_json(run));
  EXPECT_EQ(out["parameters"], 124439808);
  EXPECT_EQ(out["embedding_parameters"], (50257 + 1024) * 768);
  EXPECT_EQ(out["iterations"], 10);
  EXPECT_EQ(out["samples"], 80);
  EXPECT_EQ(out["tokens"], 80 * 1024);
  // 6 FLOPs per weight and token (without norms, biases and positions) and half of the S x S
  // scores.
  double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_DOUBLE_EQ(out["megatron_flops_per_iteration"].get<double>(),
                   6.0 * 8 * 1024 * (weights + 12.0 * 768 * 1024));
  // The exact count includes the diagonal of the scores.
  EXPECT_DOUBLE_EQ(out["flops_per_iteration"].get<double>(),
                   6.0 * 8 * 1024 * (weights + 12.0 * 768 * 1025));
  EXPECT_EQ(out["batch"]["last_global_batch_size"], 8);
  EXPECT_EQ(out["batch"]["last_micro_batches"], 4);
  ASSERT_EQ(out["ranks"].size(), 8u);
  const json& rank = out["ranks"][7];
  EXPECT_EQ(rank["rank"], 7);
  EXPECT_EQ(rank["tp"], 1);
  EXPECT_EQ(rank["cp"], 0);
  EXPECT_EQ(rank["dp"], 1);
  EXPECT_EQ(rank["pp"], 1);
  EXPECT_GT(rank["activations"], 0);
  EXPECT_EQ(rank["gradients"], 2 * rank["weights"].get<std::int64_t>());
  EXPECT_EQ(rank["total"].get<std::int64_t>(),
            rank["weights"].get<std::int64_t>() + rank["gradients"].get<std::int64_t>() +
                rank["optimizer"].get<std::int64_t>() + rank["activations"].get<std::int64_t>());
  EXPECT_TRUE(out["fits_machine"].is_boolean());
}

TEST(DryRun, JsonHasLayersAndStages) {
  RunConfig run = gpt2({"--pp", "2", "--pipeline-model-parallel-layout", "Ettt|ttttttt|ttm|L",
                        "--window-size", "5", "--window-attn-skip-freq", "3", "--mtp-num-layers",
                        "1", "--position-embedding-type", "rope", "--global-batch-size", "4"});
  json out = json::parse(dry_run_json(run));
  ASSERT_EQ(out["layers"].size(), 12u);
  EXPECT_EQ(out["layers"][0],
            (json{{"mixer", "attention"}, {"ffn", "mlp"}, {"window", 5}, {"rope", true}}));
  EXPECT_EQ(out["layers"][2]["window"], nullptr);
  auto stage = [](int number, int rank, int chunk, std::array<int, 2> layers) {
    return json{{"stage", number},        {"pp", rank},
                {"chunk", chunk},         {"first_layer", layers[0]},
                {"end_layer", layers[1]}, {"embedding", number == 0},
                {"head", number == 3},    {"mtp_depths", json::array()}};
  };
  json third = stage(2, 0, 1, {10, 12});
  third["mtp_depths"] = {1};
  EXPECT_EQ(out["stages"], json::array({stage(0, 0, 0, {0, 3}), stage(1, 1, 0, {3, 10}), third,
                                        stage(3, 1, 1, {12, 12})}));
  // A model by itself: the names of MLA and experts.
  run = gpt2({"--multi-latent-attention", "--position-embedding-type", "rope", "--num-experts", "4",
              "--moe-layer-freq", "0,1,1,1,1,1,1,1,1,1,1,1"});
  out = json::parse(dry_run_json(run));
  EXPECT_EQ(out["layers"][0],
            (json{{"mixer", "mla"}, {"ffn", "mlp"}, {"window", nullptr}, {"rope", true}}));
  EXPECT_EQ(out["layers"][1]["ffn"], "moe");
  EXPECT_EQ(out["stages"], json::array({json{{"stage", 0},
                                             {"pp", 0},
                                             {"chunk", 0},
                                             {"first_layer", 0},
                                             {"end_layer", 12},
                                             {"embedding", true},
                                             {"head", true},
                                             {"mtp_depths", json::array()}}}));
}

TEST(DryRun, SaysWhatOffloadedActivationsNeedOfTheHost) {
  const std::vector<std::string> flags = {"--recompute-granularity",     "full",
                                          "--cpu-offloading-num-layers", "12",
                                          "--min-offloaded-tensor-size", "786432"};
  RunConfig run = gpt2(flags);
  // The inputs of all layers but the last, whose backward follows immediately.
  EXPECT_EQ(json::parse(dry_run_json(run))["ranks"][0]["host_activations"], 11 * 1024 * 768 * 4);
  EXPECT_THAT(dry_run_text(run), HasSubstr("33.00 MiB  < most"));
  check_memory(run, {});
  run.model.hidden_size = 12288;
  run.model.num_attention_heads = 96;
  run.batch.micro_batch_size = run.batch.global_batch_size = 4096;
  expect_error(ErrorKind::kConfig, {"needs 2.06 TiB", "are free", "--cpu-offloading-num-layers"},
               [&] { check_memory(run, {}); });
}

TEST(DryRun, JsonHoldsTheConfigurationWithItsTypes) {
  json config = json::parse(dry_run_json(gpt2({"--adam-eps", "1e-7"})))["config"];
  EXPECT_EQ(config["num-layers"], 12);
  EXPECT_EQ(config["max-position-embeddings"], 1024);
  EXPECT_EQ(config["ffn-hidden-size"], 3072);
  EXPECT_EQ(config["num-query-groups"], 12);
  EXPECT_EQ(config["kv-channels"], 64);
  EXPECT_EQ(config["adam-eps"], 1e-7);
  EXPECT_EQ(config["sequence-parallel"], false);
  EXPECT_EQ(config["normalization"], "LayerNorm");
  EXPECT_EQ(config["recompute-modules"], json::array({"core_attn"}));
  EXPECT_EQ(config["window-attn-skip-freq"], json::array());
}

TEST(DryRun, ARunWithoutLengthHasNoTokens) {
  RunConfig run = gpt2({});
  json out = json::parse(dry_run_json(run));
  EXPECT_TRUE(out["iterations"].is_null());
  EXPECT_TRUE(out["tokens"].is_null());
  EXPECT_THAT(dry_run_text(run), HasSubstr("the run has no length"));
}

TEST(DryRun, TextShowsARampUpOfTheBatch) {
  std::string text = dry_run_text(gpt2({"--train-samples", "1000", "--global-batch-size", "16",
                                        "--rampup-batch-size", "4", "4", "300"}));
  EXPECT_THAT(text, HasSubstr("4 at first, 16 at last"));
}

TEST(DryRun, TextDumpsTheConfigurationAndMarksTheLargestRank) {
  std::string text = dry_run_text(gpt2({"--train-iters", "10", "--pp", "3", "--device", "cpu"}));
  EXPECT_THAT(text, HasSubstr("- optimizer -"));
  EXPECT_THAT(text, HasSubstr("  num-layers ..................................... 12\n"));
  EXPECT_THAT(text, HasSubstr("  text ........................................... none\n"));
  EXPECT_THAT(text, HasSubstr("124439808 (124.4M)"));
  EXPECT_THAT(text, HasSubstr("tp 1 x cp 1 x dp 1 x pp 3 = 3 ranks"));
  EXPECT_THAT(text, HasSubstr("  < most\n"));
  EXPECT_THAT(text, HasSubstr("memory of this machine ..."));
}

TEST(DryRun, TextSumsUpALargeMeshByStage) {
  std::string text = dry_run_text(gpt2({"--train-iters", "10", "--pp", "2", "--dp", "4096",
                                        "--use-distributed-optimizer", "--device", "cpu"}));
  EXPECT_THAT(text, HasSubstr("of each of the 2 stages the rank that needs most"));
  EXPECT_THAT(text, HasSubstr("does not fit"));
  EXPECT_LT(text.size(), 33000u);
}

TEST(DryRun, AModelForGpusIsNotComparedWithHostMemory) {
  RunConfig run = gpt2({"--device", "cuda"});
  EXPECT_THAT(dry_run_text(run), Not(HasSubstr("memory of this machine")));
  EXPECT_FALSE(json::parse(dry_run_json(run)).contains("fits_machine"));
}

TEST(DryRun, OffloadedStateIsCountedOnTheHost) {
  json plain = json::parse(dry_run_json(gpt2({"--bf16"})))["ranks"][0];
  json whole = json::parse(dry_run_json(gpt2({"--bf16", "--optimizer-cpu-offload"})))["ranks"][0];
  EXPECT_EQ(plain["host_optimizer"], 0);
  EXPECT_EQ(whole["host_optimizer"], plain["optimizer"]);
  EXPECT_EQ(whole["optimizer"], 0);
  std::string text = dry_run_text(gpt2({"--bf16", "--optimizer-cpu-offload"}));
  EXPECT_THAT(text, HasSubstr("on host\n"));
}

// Every setting that is named fits by the plan of its own dry run; more of them are joined only
// where none does alone.
TEST(DryRun, AdviceOnMemoryNamesWhatFits) {
  RunConfig run = gpt2({"--micro-batch-size", "8", "--device", "cpu"});
  auto needed = [&](const std::vector<std::string>& flags) {
    RunConfig other = gpt2(flags);
    return memory_fit(other, planned_memory(other), {}, 0).needed_bytes;
  };
  double small = needed({"--micro-batch-size", "1", "--global-batch-size", "8", "--device", "cpu"});
  std::string advice = memory_advice(run, {}, small);
  EXPECT_THAT(advice, HasSubstr(concat("--micro-batch-size 1: ", format_bytes(small))));
  EXPECT_THAT(memory_advice(run, {}, small - 1),
              Not(HasSubstr(concat("--micro-batch-size 1: ", format_bytes(small)))));
  double joined = needed({"--micro-batch-size", "1", "--global-batch-size", "8",
                          "--recompute-granularity", "full", "--recompute-method", "uniform",
                          "--recompute-num-layers", "1", "--device", "cpu"});
  advice = memory_advice(run, {}, joined);
  EXPECT_THAT(advice, HasSubstr("what would fit:\n  --micro-batch-size 1 "));
  EXPECT_THAT(advice, Not(HasSubstr("offload"))) << "the CPU has no other memory";
  advice = memory_advice(run, {}, 1e6);
  EXPECT_THAT(advice, HasSubstr("the least of the settings tried needs"));
  RunConfig least = gpt2({"--bf16", "--main-params-dtype", "bf16", "--main-grads-dtype", "bf16",
                          "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16",
                          "--recompute-granularity", "full", "--device", "cpu"});
  EXPECT_THAT(memory_advice(least, {}, 1e6), HasSubstr("\nuse a smaller model, or more ranks"));
}

TEST(DryRun, AdviceWithoutAPlanHasNoNumbers) {
  RunConfig run = gpt2({"--micro-batch-size", "8", "--device", "cpu"});
  run.optim.optimizer_offload_fraction = 0.5;  // cannot be planned without --optimizer-cpu-offload
  EXPECT_THAT(memory_advice(run, {}, 1e9),
              testing::StartsWith("\nless memory is needed with:\n  --micro-batch-size 1\n"));
}

TEST(DryRun, TheEssentialComesFirst) {
  std::string text = dry_run_text(gpt2({"--train-iters", "10", "--device", "cpu"}));
  EXPECT_THAT(text, testing::StartsWith("fits: "));
  EXPECT_LT(text.find("parameters: 124.4M (124439808)"), text.find("-----"));
  EXPECT_LT(text.find("run: 10 iterations take 10.24K tokens"), text.find("-----"));
}

TEST(DryRun, TooLittleHostMemoryIsSaidBeforeTheRun) {
  RunConfig run = gpt2({"--bf16", "--optimizer-cpu-offload"});
  Launch crowd;
  crowd.local_processes = 1 << 20;
  check_memory(run, {});
  expect_error(ErrorKind::kConfig, {"needs", "are free", "--optimizer-offload-fraction"},
               [&] { check_memory(run, crowd); });
  RunConfig plain = gpt2({"--device", "cpu"});
  expect_error(ErrorKind::kConfig, {"the run does not fit", "the least of the settings tried"},
               [&] { check_memory(plain, crowd); });
}

}  // namespace
}  // namespace bev
