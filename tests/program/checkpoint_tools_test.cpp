// Inspecting and exporting checkpoints from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "checkpoint/checksum.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A bf16 run that saves iterations 2 and 4; created once for all tests, which copy what they
// change.
class CheckpointTools : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string text;
    for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
    write_file(folder_->path("corpus.txt"), text);
    ASSERT_EQ(train("--save run --save-interval 2 --export-hf exported --tp 2 --dp 2").code, 0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static Outcome run(const std::string& words) {
    return run_shell(*folder_, concat(BEV_BINARY_DIR, "/bevatron ", words));
  }
  static Outcome train(const std::string& words, int ffn_size = 48, int iterations = 4) {
    return run(
        "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
        "--num-query-groups 2 --position-embedding-type rope "
        "--normalization RMSNorm --swiglu --disable-bias-linear --max-position-embeddings 64 "
        "--seq-length 32 --micro-batch-size 2 --global-batch-size 4 --text corpus.txt --bf16 "
        "--split 1,0,0 --lr 1e-3 --loss-svg '' " +
        concat("--ffn-hidden-size ", ffn_size, " --train-iters ", iterations, " ", words));
  }
  // A copy of iteration 4 that a test may damage.
  static std::string copy_step(const std::string& name) {
    fs::copy(path("run/iter_0000004"), path(name));
    return name;
  }
  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string file(const std::string& name) { return read_file(path(name)); }

  static TempFolder* folder_;
};
TempFolder* CheckpointTools::folder_ = nullptr;

// Changes one byte; if `knows`, the checksum in the manifest is updated.
void change_byte(const std::string& folder, const std::string& shard, std::size_t at, char byte,
                 bool knows) {
  std::string bytes = read_file(join_path(folder, shard));
  bytes.at(at) = byte;
  write_file(join_path(folder, shard), bytes);
  if (!knows) return;
  json manifest = json::parse(read_file(join_path(folder, "manifest.json")));
  for (json& entry : manifest["shards"]) {
    if (entry["file"] != shard) continue;
    entry["xxh3"][0] = checksum_text(checksum(std::as_bytes(std::span(bytes))));
  }
  write_file(join_path(folder, "manifest.json"), manifest.dump());
}

TEST_F(CheckpointTools, VerifyTellsGoodFromDamaged) {
  Outcome good = run("checkpoint verify run");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("run/iter_0000002: "));
  EXPECT_THAT(good.out, HasSubstr("run/iter_0000004: "));
  EXPECT_THAT(good.out, Not(HasSubstr("damaged")));

  std::string damaged = copy_step("damaged");
  std::size_t last = file("damaged/shard_00001.safetensors").size() - 1;
  change_byte(path(damaged), "shard_00001.safetensors", last, '\x55', false);
  fs::remove(path("damaged/shard_00002.safetensors"));
  fs::resize_file(path("damaged/shard_00003.safetensors"), 1000);
  Outcome bad = run("checkpoint verify damaged");
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.out, HasSubstr("shard_00001.safetensors: corrupt"));
  EXPECT_THAT(bad.out, HasSubstr("shard_00002.safetensors: No such file"));
  EXPECT_THAT(bad.out, HasSubstr("shard_00003.safetensors: has 1000 bytes"));
  EXPECT_THAT(bad.out, Not(HasSubstr("shard_00000")));
  json line = json::parse(run("checkpoint verify damaged --json").out);
  EXPECT_EQ(line["problems"].size(), 3u);
}

TEST_F(CheckpointTools, InspectMeasuresWhatIsStored) {
  Outcome got = run("checkpoint inspect run --json");
  ASSERT_EQ(got.code, 0) << got.err;
  json all = json::parse(got.out);
  EXPECT_EQ(all["state"]["iteration"], 4);
  EXPECT_EQ(all["state"]["consumed_samples"], 16);
  EXPECT_EQ(all["config"]["model"]["hidden-size"], "32");
  // The export has the same weights, unsharded.
  SafetensorsFile exported(path("exported/model.safetensors"));
  TensorBytes norm = exported.tensor("model.norm.weight");
  double least = 1e9, most = -1e9, squares = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, norm.bytes.data() + 2 * i, 2);
    auto value = static_cast<double>(std::bit_cast<float>(bits));
    least = std::min(least, value);
    most = std::max(most, value);
    squares += value * value;
  }
  bool found = false;
  for (const json& tensor : all["tensors"]) {
    EXPECT_EQ(tensor["nans"], 0) << tensor;
    if (tensor["name"] != "decoder.final_layernorm.weight") continue;
    found = true;
    EXPECT_EQ(tensor["min"], least);
    EXPECT_EQ(tensor["max"], most);
    EXPECT_DOUBLE_EQ(tensor["norm"], std::sqrt(squares));
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(run("checkpoint inspect run --ckpt-step 2").out, HasSubstr("iteration 2, 8 samples"));
}

TEST_F(CheckpointTools, InspectCountsNanAndDiffFindsThem) {
  std::string step = copy_step("with_nan");
  // The last tensor of a shard is a weight in bf16; 0x7fff is a NaN.
  std::string shard = "shard_00000.safetensors";
  std::size_t last = file("with_nan/" + shard).size() - 1;
  change_byte(path(step), shard, last - 1, '\xff', true);
  change_byte(path(step), shard, last, '\x7f', true);
  json all = json::parse(run("checkpoint inspect with_nan --json").out);
  int nans = 0;
  for (const json& tensor : all["tensors"]) nans += tensor["nans"].get<int>();
  EXPECT_EQ(nans, 1);

  Outcome same = run("checkpoint diff with_nan with_nan");
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("equal"));
  Outcome other = run("checkpoint diff run/iter_0000004 with_nan --json");
  EXPECT_EQ(other.code, 3);
  json difference = json::parse(other.out);
  EXPECT_TRUE(difference["state"].empty() && difference["config"].empty());
  ASSERT_EQ(difference["tensors"].size(), 1u);
  EXPECT_EQ(difference["tensors"][0]["differing"], 1);
}

TEST_F(CheckpointTools, DiffComparesPositionConfigurationAndShapes) {
  ASSERT_EQ(train("--save wider", 64, 5).code, 0);
  Outcome got = run("checkpoint diff run wider");
  EXPECT_EQ(got.code, 3);
  EXPECT_THAT(got.out, HasSubstr("--ffn-hidden-size"));
  EXPECT_THAT(got.out, HasSubstr("consumed_samples"));
  EXPECT_THAT(got.out, HasSubstr("linear_fc2.weight: bf16 [32, 48] in the first, bf16 [32, 64]"));
}

TEST_F(CheckpointTools, ConvertWritesWhatTheRunExported) {
  ASSERT_EQ(run("convert --load run --export-hf again").code, 0);
  EXPECT_EQ(list_directory(path("again")), list_directory(path("exported")));
  for (const std::string& name : list_directory(path("exported"))) {
    EXPECT_TRUE(file("again/" + name) == file("exported/" + name)) << name;
  }
  ASSERT_EQ(run("convert --load run/iter_0000002 --export-hf earlier").code, 0);
  EXPECT_FALSE(file("earlier/model.safetensors") == file("exported/model.safetensors"));
}

// In a wider dtype the master weights are exported, which were never rounded.
TEST_F(CheckpointTools, ConvertTakesTheMainParameters) {
  ASSERT_EQ(run("convert --load run --export-hf wide --dtype f32").code, 0);
  ASSERT_EQ(run("convert --hf-model wide --export-hf rounded --dtype bf16").code, 0);
  EXPECT_TRUE(file("rounded/model.safetensors") == file("exported/model.safetensors"));
  ASSERT_EQ(run("convert --hf-model exported --export-hf widened --dtype f32").code, 0);
  EXPECT_FALSE(file("widened/model.safetensors") == file("wide/model.safetensors"));
}

// Exports after every save; at the end the folder has the last one.
TEST_F(CheckpointTools, SaveHfIsWhatAnExportWouldBe) {
  Outcome got = train("--save beside --save-interval 1 --save-hf model/latest --pp 2");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.err, HasSubstr("exported beside/iter_0000004 to model/latest"));
  ASSERT_EQ(run("convert --load beside --export-hf converted").code, 0);
  for (const std::string& name : list_directory(path("converted"))) {
    EXPECT_TRUE(file("model/latest/" + name) == file("converted/" + name)) << name;
  }
  EXPECT_EQ(list_directory(path("model")), std::vector<std::string>{"latest"});
  got = train("--save beside --save-hf corpus.txt");
  EXPECT_EQ(got.code, 2) << got.err;
}

TEST_F(CheckpointTools, ConvertOfDamagedOnesWritesNothing) {
  std::string step = copy_step("broken");
  change_byte(path(step), "shard_00000.safetensors", 5000, '\x55', false);
  Outcome got = run("convert --load broken --export-hf nothing");
  EXPECT_EQ(got.code, 2);
  EXPECT_THAT(got.err, HasSubstr("shard_00000.safetensors: corrupt"));
  EXPECT_FALSE(path_exists(path("nothing")));
  json manifest = json::parse(file("run/iter_0000004/manifest.json"));
  manifest["config"]["model"]["num-layers"] = "3";
  write_file(path("broken/manifest.json"), manifest.dump());
  got = run("convert --load broken --export-hf nothing");
  EXPECT_EQ(got.code, 2);
  EXPECT_THAT(got.err, HasSubstr("decoder.layers.2.mlp.linear_fc1.weight is missing"));
}

TEST_F(CheckpointTools, SayWhatIsMissing) {
  for (const char* words :
       {"checkpoint verify", "checkpoint inspect run exported", "checkpoint diff run",
        "checkpoint verify nowhere", "checkpoint verify corpus.txt", "checkpoint inspect exported",
        "checkpoint inspect run --ckpt-step 3", "checkpoint look run",
        "convert --load nowhere --export-hf x", "convert --export-hf x"}) {
    Outcome got = run(words);
    EXPECT_EQ(got.code, 2) << words;
    EXPECT_THAT(got.err, testing::StartsWith("error: ")) << words;
  }
  EXPECT_THAT(run("checkpoint inspect run --ckpt-step 3").err, HasSubstr("there are 2, 4"));
}

}  // namespace
}  // namespace bev
