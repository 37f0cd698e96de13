// Checkpoints that megatron-core wrote (tests/golden/megatron): a run that goes on has Megatron's
// losses, and folders that are not whole are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/program/megatron_runs.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::string_view kStep = "iter_0000003";

struct Continued {
  const char* name;
  double tolerance;
};

class MegatronRuns : public testing::TestWithParam<Continued> {};

// Weights, moments, schedules and position are right: otherwise losses part at once.
TEST_P(MegatronRuns, GoOnWithTheSameLosses) {
  TempFolder folder;
  unpack(folder, GetParam().name);
  EXPECT_LT(difference(folder, GetParam().name, ""), GetParam().tolerance);
}

// bf16 rounds in other places than Megatron.
constexpr Continued kRuns[] = {
    {"gpt", 1e-5},     {"gqa", 1e-5},         {"fsdp", 1e-5},       {"moe_mixed", 1e-5},
    {"moe_etp", 1e-5}, {"moe_buckets", 1e-5}, {"singleton", 1e-5},  {"pp_buckets", 1e-5},
    {"plain", 1e-5},   {"legacy", 1e-5},      {"legacy_moe", 1e-5}, {"legacy_dist", 1e-5},
    {"qk_bf16", 5e-3}, {"legacy_bf16", 5e-3},
};
INSTANTIATE_TEST_SUITE_P(All, MegatronRuns, testing::ValuesIn(kRuns),
                         [](const auto& one) { return std::string(one.param.name); });

struct Relaid {
  const char *name, *layout;
};

class MegatronLayouts : public testing::TestWithParam<Relaid> {};

// Written under one layout, continued under another.
TEST_P(MegatronLayouts, GoOnWithTheSameLosses) {
  TempFolder folder;
  unpack(folder, GetParam().name);
  EXPECT_LT(difference(folder, GetParam().name, GetParam().layout), 1e-5);
}

constexpr Relaid kLayouts[] = {
    {"gpt", "--tp 2"},
    {"gpt", "--pp 2 --dp 2 --use-distributed-optimizer"},
    {"gqa", "--tp 2 --sequence-parallel --pp 2"},
    {"gqa", "--cp 2"},
    {"legacy", "--pp 2 --num-virtual-stages-per-pipeline-rank 2"},
    {"legacy_moe", "--tp 2 --ep 2 --etp 1"},
    {"pp_buckets", "--pp 4"},
    {"moe_mixed", "--ranks 4 --ep 2 --etp 2 --tp 2"},
    {"moe_etp", "--ranks 4 --tp 2 --ep 2 --etp 2"},
    {"moe_buckets", "--ranks 4 --tp 2 --ep 2 --use-distributed-optimizer"},
};
INSTANTIATE_TEST_SUITE_P(All, MegatronLayouts, testing::ValuesIn(kLayouts));

// megatron-core 0.16.1 saves fully_reshardable state shifted if there are several buckets.
TEST(MegatronFolders, WithStateOfOtherElementsGiveTheWeightsAlone) {
  TempFolder folder;
  unpack(folder, "shifted");
  Outcome refused = bevatron(folder,
                             "train --load shifted --batches shifted/expected.json "
                             "--train-iters 13 --device cpu --loss-svg ''");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("belongs to other elements"));
  EXPECT_THAT(refused.err, HasSubstr("--no-load-optim"));
  Outcome weights = bevatron(folder,
                             "train --load shifted --batches shifted/expected.json "
                             "--train-iters 4 --device cpu --loss-svg '' --no-load-optim");
  EXPECT_EQ(weights.code, 0) << weights.err;
}

TEST(MegatronFolders, AreShownWithWhatIsIgnored) {
  TempFolder folder;
  unpack(folder, "gqa");
  Outcome shown = bevatron(folder, "checkpoint inspect gqa --json");
  ASSERT_EQ(shown.code, 0) << shown.err;
  json out = json::parse(shown.out);
  EXPECT_EQ(out["format"], "Megatron torch_dist");
  EXPECT_EQ(out["layout"], "tp 2");
  EXPECT_EQ(out["state"]["iteration"], 3);
  EXPECT_EQ(out["state"]["consumed_samples"], 24);
  EXPECT_EQ(out["state"]["scheduled_samples"], 24);
  EXPECT_EQ(out["state"]["updates"], 3);
  EXPECT_EQ(out["config"]["model"]["num-query-groups"], "2");
  EXPECT_EQ(out["config"]["optimizer"]["adam-beta2"], "0.95");
  EXPECT_THAT(out["ignored"].dump(), HasSubstr("rng_state"));
  EXPECT_THAT(out["tensors"].dump(), HasSubstr("optimizer.exp_avg_sq/output_layer.weight"));
  EXPECT_EQ(bevatron(folder, "checkpoint verify gqa").code, 0);
}

TEST(MegatronFolders, AreExported) {
  TempFolder folder;
  unpack(folder, "gqa");
  write_file(folder.path("t.json"), R"({"input_ids": [[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]]})");
  Outcome exported = bevatron(folder, "convert --load gqa --export-hf hf");
  ASSERT_EQ(exported.code, 0) << exported.err;
  json config = json::parse(read_file(folder.path("hf/config.json")));
  EXPECT_EQ(config["model_type"], "llama");
  Outcome theirs = bevatron(folder, "score --hf-model hf --tokens t.json --device cpu");
  Outcome ours = bevatron(folder, "score --load gqa --tokens t.json --device cpu");
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  ASSERT_EQ(ours.code, 0) << ours.err;
  EXPECT_EQ(json::parse(theirs.out)["loss"], json::parse(ours.out)["loss"]);
}

struct Damage {
  const char *run, *command, *complaint;
};

class DamagedMegatronFolders : public testing::TestWithParam<Damage> {};

TEST_P(DamagedMegatronFolders, AreRefusedByName) {
  TempFolder folder;
  const Damage& damage = GetParam();
  unpack(folder, damage.run);
  std::string step = concat(damage.run, "/", kStep);
  ASSERT_EQ(run_shell(folder, concat("cd ", step, " && ", damage.command)).code, 0);
  for (const std::string& command :
       {concat("checkpoint inspect ", step), concat("convert --load ", step, " --export-hf out")}) {
    Outcome refused = bevatron(folder, command);
    EXPECT_EQ(refused.code, 2) << command << refused.out;
    EXPECT_THAT(refused.err, HasSubstr(damage.complaint));
  }
}

const Damage kDamages[] = {
    {"gqa", "truncate -s 1000 __0_0.distcp", "__0_0.distcp: is truncated"},
    {"gqa", "rm __1_0.distcp", "__1_0.distcp: is missing"},
    {"gqa", "ln -sf /nowhere __1_0.distcp", "__1_0.distcp"},
    {"gqa", "rm __1_0.distcp && mkfifo __1_0.distcp", "__1_0.distcp"},
    {"gqa", "rm __1_0.distcp && mkdir __1_0.distcp", "__1_0.distcp"},
    {"gqa", "cp __0_0.distcp __7_0.distcp", "the folder mixes two saves"},
    {"gqa", "sed -i s/__1_0.distcp/..x_0.distcp/ .metadata", "no file in here"},
    {"gqa", "sed -i s/__1_0.distcp/___0.distcp/ .metadata", ".metadata"},
    {"gqa", "sed -i s/float32/float33/ .metadata", "torch.float33"},
    {"gqa", R"(printf '\200\002cos\nsystem\n(X\003\000\000\000hi!tR.' > .metadata)", "os.system"},
    {"gqa", "sed -i s/argparse/argparsf/ common.pt", "common.pt: corrupt"},
    {"gqa", "rm .metadata", "has no .metadata"},
    {"gqa", "rm common.pt", "common.pt"},
    {"gqa", "truncate -s 2000 .metadata", ".metadata: pickle: is truncated"},
    {"gqa", "truncate -s 300 common.pt", "common.pt: is no whole zip archive"},
    {"gqa", "mkdir mp_rank_00", "mixes two of Megatron's formats"},
    {"legacy_dist", "rm -r mp_rank_01", "mp_rank_01/model_optim_rng.pt: is missing"},
    {"legacy_dist", "cp -r mp_rank_01 mp_rank_07", "mp_rank_07 does not belong to a save of 2"},
    {"legacy_dist", "truncate -s 5000 mp_rank_01/model_optim_rng.pt", "is no whole zip archive"},
};
INSTANTIATE_TEST_SUITE_P(All, DamagedMegatronFolders, testing::ValuesIn(kDamages));

// Each file of another save with as many ranks, in turn.
TEST(MegatronFolders, WithAFileOfAnotherSaveAreRefused) {
  for (const char* file : {".metadata", "common.pt", "__0_0.distcp", "__1_1.distcp"}) {
    TempFolder folder;
    unpack(folder, "gqa");
    unpack(folder, "gpt");
    std::string step = concat("gqa/", kStep);
    ASSERT_EQ(run_shell(folder, concat("cp gpt/", kStep, "/", file, " ", step)).code, 0);
    Outcome refused = bevatron(folder, concat("convert --load ", step, " --export-hf out"));
    EXPECT_EQ(refused.code, 2) << file;
    EXPECT_THAT(refused.err, HasSubstr(step)) << file;
    EXPECT_FALSE(path_exists(folder.path("out"))) << file;
  }
}

TEST(MegatronFolders, OfAnotherIterationThanTheirNameAreRefused) {
  TempFolder folder;
  unpack(folder, "gqa");
  ASSERT_EQ(run_shell(folder, "mv gqa/iter_0000003 gqa/iter_0000005").code, 0);
  Outcome refused = bevatron(folder, "checkpoint inspect gqa/iter_0000005");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("iter_0000005: holds iteration 3"));
}

// Links to the files of a checkpoint are followed: many stores are trees of them.
TEST(MegatronFolders, OfLinksAreRead) {
  TempFolder folder;
  unpack(folder, "gqa");
  ASSERT_EQ(run_shell(folder, concat("mv gqa/", kStep, " store && mkdir gqa/", kStep, " && ln -s ",
                                     "$PWD/store/* $PWD/store/.metadata gqa/", kStep))
                .code,
            0);
  EXPECT_EQ(bevatron(folder, "checkpoint verify gqa").code, 0);
}

// Arguments become flags; flags that are given override them, and what differs is listed.
TEST(MegatronFolders, GiveTheirArgumentsWithUseCheckpointArgs) {
  TempFolder folder;
  unpack(folder, "gqa");
  const std::string words =
      "train --load gqa --batches gqa/expected.json --train-iters 13 --device cpu --loss-svg '' "
      "--num-layers 2 --hidden-size 8 --num-attention-heads 4 --use-checkpoint-args "
      "--adam-beta2 0.9 --metrics-out m.jsonl";
  Outcome run = bevatron(folder, words);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("--adam-beta2"));
  EXPECT_THAT(run.err, HasSubstr("0.95"));
  std::map<int, double> losses = losses_of(folder.path("m.jsonl"));
  json expected = json::parse(read_file(folder.path("gqa/expected.json")));
  EXPECT_NEAR(losses[4], expected["losses"][0].get<double>(), 1e-5);
  EXPECT_GT(std::abs(losses[13] - expected["losses"][9].get<double>()), 1e-5);
}

}  // namespace
}  // namespace bev
