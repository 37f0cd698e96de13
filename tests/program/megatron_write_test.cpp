// `convert` between Megatron's checkpoints, ours and Hugging Face folders. What is written as
// torch_dist is byte for byte what megatron-core loaded when tests/golden/megatron/check_written.py
// made written.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "bridge/torch/zip_archive.h"
#include "tests/program/megatron_runs.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// All files of a step with their sizes and checksums.
json files_of(const std::string& step) {
  json files = json::object();
  for (const std::string& name : list_directory(step)) {
    std::string content = read_file(join_path(step, name));
    files[name] = {content.size(), crc32_of(std::as_bytes(std::span(content)))};
  }
  return files;
}

json golden_cases() {
  return json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/megatron/written.json"))["cases"];
}

std::string model_folder(const std::string& name) {
  return concat(BEV_SOURCE_DIR, "/tests/golden/models/", name);
}

// Equal tensors and position. A run in fp32 has no master weights of its own; Megatron keeps them.
void expect_same_state(const TempFolder& folder, const std::string& one, const std::string& other) {
  Outcome compared = bevatron(folder, concat("checkpoint diff ", one, " ", other, " --json"));
  json differences = json::parse(compared.out);
  for (const json& tensor : differences["tensors"]) {
    EXPECT_THAT(tensor["name"].get<std::string>(), StartsWith("optimizer.main/"));
    EXPECT_TRUE(tensor.contains("problem")) << tensor;
  }
  EXPECT_EQ(differences["state"], json::object()) << compared.out;
}

TEST(MegatronWriting, GivesTheBytesThatMegatronLoads) {
  int cases = 0;
  for (const json& golden : golden_cases()) {
    TempFolder folder;
    bool run = golden.contains("load");
    std::string name = run ? golden["load"] : golden["hf_model"];
    if (run) unpack(folder, name);
    std::string source = run ? concat("--load ", name) : concat("--hf-model ", model_folder(name));
    Outcome written =
        bevatron(folder, concat("convert ", source, " --save out --ckpt-format torch_dist ",
                                golden["flags"].get<std::string>()));
    ASSERT_EQ(written.code, 0) << written.err;
    std::string step = golden["step"];
    EXPECT_EQ(files_of(folder.path("out/" + step)), golden["files"]) << name;
    ++cases;
  }
  EXPECT_GE(cases, 8);
}

// megatron-core trained on from these bytes, under several layouts: as if it had never stopped.
TEST(MegatronWriting, LetsMegatronGoOnWithTheSameLosses) {
  int layouts = 0;
  for (const json& golden : golden_cases()) {
    if (!golden.contains("load")) continue;
    TempFolder folder;
    std::string name = golden["load"];
    unpack(folder, name);
    json expected = json::parse(read_file(folder.path(name + "/expected.json")))["losses"];
    for (const auto& [layout, losses] : golden["losses"].items()) {
      ASSERT_EQ(losses.size(), expected.size());
      for (std::size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i].get<double>(), expected[i].get<double>(), 1e-5) << name << layout;
      }
      ++layouts;
    }
  }
  EXPECT_GE(layouts, 12);
}

// megatron-core's loss of a Hugging Face model that was written for it.
TEST(MegatronWriting, OfAHuggingFaceModelGivesItsLoss) {
  for (const json& golden : golden_cases()) {
    if (!golden.contains("hf_model")) continue;
    TempFolder folder;
    folder.write("t.json", json{{"input_ids", golden["tokens"]}}.dump());
    std::string model = model_folder(golden["hf_model"]);
    Outcome direct =
        bevatron(folder, concat("score --tokens t.json --device cpu --hf-model ", model));
    ASSERT_EQ(direct.code, 0) << direct.err;
    double loss = json::parse(direct.out)["loss"];
    EXPECT_NEAR(loss, golden["loss"].get<double>(), 1e-5);
    Outcome written =
        bevatron(folder, concat("convert --save out --ckpt-format torch_dist --hf-model ", model));
    ASSERT_EQ(written.code, 0) << written.err;
    Outcome back = bevatron(folder, "score --tokens t.json --device cpu --load out");
    ASSERT_EQ(back.code, 0) << back.err;
    EXPECT_EQ(json::parse(back.out)["loss"], loss);
  }
}

class MegatronConversions : public testing::TestWithParam<const char*> {};

// Megatron's folder as ours and as Megatron's again: no bit changes, and the run goes on.
TEST_P(MegatronConversions, KeepTheState) {
  TempFolder folder;
  std::string name = GetParam();
  unpack(folder, name);
  for (const std::string& words :
       {concat("convert --load ", name, " --save own"),
        std::string("convert --load own --save dist --ckpt-format torch_dist --tp 2 --pp 2"),
        std::string("convert --load dist --save again")}) {
    Outcome done = bevatron(folder, words);
    ASSERT_EQ(done.code, 0) << words << done.err;
  }
  expect_same_state(folder, name, "own");
  expect_same_state(folder, "own", "again");
  EXPECT_EQ(bevatron(folder, "checkpoint verify dist").code, 0);
  json shown = json::parse(bevatron(folder, "checkpoint inspect dist --json").out);
  EXPECT_EQ(shown["format"], "Megatron torch_dist");
  EXPECT_EQ(shown["layout"], "tp 2, pp 2, etp 2");
  EXPECT_LT(difference(folder, name, "--load again"), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, MegatronConversions,
                         testing::Values("gpt", "gqa", "moe_mixed", "moe_buckets", "legacy", "fsdp",
                                         "plain", "pp_buckets"));

TEST(MegatronWriting, RefusesModelsThatMegatronCannotDescribe) {
  TempFolder folder;
  EXPECT_THAT(bevatron(folder, concat("convert --save out --ckpt-format torch_dist --hf-model ",
                                      model_folder("llama_rope_yarn")))
                  .err,
              HasSubstr("--rope-scaling-type"));
  Outcome refused = bevatron(
      folder,
      concat("convert --save out --ckpt-format torch_dist --hf-model ", model_folder("gemma2")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("Megatron's arguments cannot express"));
  EXPECT_THAT(refused.err, HasSubstr("--norm-placement"));
  EXPECT_FALSE(path_exists(folder.path("out")));
  // What Megatron lacks is named one by one.
  for (const auto& [model, flag] :
       {std::pair("olmo2", "--norm-placement"), std::pair("granite", "--residual-multiplier"),
        std::pair("smollm3", "--no-rope-freq"), std::pair("phi", "--add-head-bias")}) {
    Outcome other = bevatron(
        folder,
        concat("convert --save out --ckpt-format torch_dist --hf-model ", model_folder(model)));
    EXPECT_EQ(other.code, 2) << model;
    EXPECT_THAT(other.err, HasSubstr(flag)) << model;
  }
}

TEST(MegatronWriting, RefusesToMixWithAnotherRun) {
  TempFolder folder;
  unpack(folder, "gqa");
  Outcome first = bevatron(folder, "convert --load gqa --save out --ckpt-format torch_dist");
  ASSERT_EQ(first.code, 0) << first.err;
  for (const char* flags : {"", "--ckpt-format torch_dist"}) {
    Outcome refused = bevatron(folder, concat("convert --load gqa --save out ", flags));
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("already; give another folder"));
  }
  EXPECT_THAT(bevatron(folder, "convert --load gqa --save gqa").err,
              HasSubstr("is the folder that is read"));
}

// Weights of Hugging Face as a run of ours, which a training goes on from and which is exported
// again.
TEST(Conversions, OfHuggingFaceWeightsMakeARun) {
  TempFolder folder;
  std::string model = model_folder("llama_gqa");
  Outcome made = bevatron(folder, concat("convert --save run --hf-model ", model));
  ASSERT_EQ(made.code, 0) << made.err;
  Outcome trained = bevatron(
      folder,
      "train --load run --finetune --save tuned --mock-data --train-iters 1 --seq-length 8 "
      "--micro-batch-size 1 --lr 1e-4 --device cpu --loss-svg ''");
  EXPECT_EQ(trained.code, 0) << trained.err;
  Outcome exported = bevatron(folder, "convert --load run --export-hf hf");
  ASSERT_EQ(exported.code, 0) << exported.err;
  Outcome direct = bevatron(folder, concat("convert --export-hf direct --hf-model ", model));
  ASSERT_EQ(direct.code, 0) << direct.err;
  EXPECT_EQ(read_file(folder.path("hf/model.safetensors")),
            read_file(folder.path("direct/model.safetensors")));
}

}  // namespace
}  // namespace bev
