#include "app/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "checkpoint/config_copy.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Args = std::vector<std::string>;

class OptionsTest : public testing::Test {
 protected:
  OptionsTest() { run.fields(list); }
  Options parse(const Args& args) { return parse_options(list, args); }
  Options parse_yaml(const std::string& content, Args more = {}) {
    file = folder.write("run.yaml", content);
    more.insert(more.begin(), {"--config", file});
    return parse(more);
  }
  TempFolder folder;
  std::string file;
  RunConfig run;
  FieldList list;
};

TEST_F(OptionsTest, ReadEveryFormOfAFlag) {
  Options options =
      parse({"--num-layers", "4", "--lr=2e-3", "--min_lr", "1e-5", "--bf16", "--no-causal", "--tp",
             "2", "--text", "a.txt", "b,c.txt", "--rampup-batch-size=2,2,100", "--progress=false",
             "--sequence-parallel", "true", "--disable-bias-linear"});
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_EQ(run.model.num_layers, 4);
  EXPECT_EQ(run.optim.lr, 2e-3);
  EXPECT_EQ(run.optim.min_lr, 1e-5);
  EXPECT_TRUE(run.precision.bf16);
  EXPECT_FALSE(run.model.causal);
  EXPECT_EQ(run.parallel.tensor_model_parallel_size, 2);
  EXPECT_THAT(run.data.text, ElementsAre("a.txt", "b,c.txt"));
  EXPECT_THAT(run.batch.rampup_batch_size, ElementsAre(2, 2, 100));
  EXPECT_FALSE(run.log.progress);
  EXPECT_TRUE(run.parallel.sequence_parallel);
  EXPECT_FALSE(run.model.add_bias_linear);
  EXPECT_TRUE(options.given("tensor-model-parallel-size"));
  EXPECT_FALSE(options.given("hidden-size"));
  EXPECT_EQ(options.find("lr")->origin, "--lr");
}

TEST_F(OptionsTest, WordsMayBelongToAFlag) {
  Options options = parse_options(list, Args{"a", "--num-layers", "4", "b"}, "text");
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_THAT(run.data.text, ElementsAre("a", "b"));
  EXPECT_EQ(run.model.num_layers, 4);
  EXPECT_THAT(parse_options(list, Args{"a", "--text", "b"}, "text").problems(),
              ElementsAre(HasSubstr("--text: given by name and as a without one")));
  EXPECT_THAT(parse_options(list, Args{"-a"}, "text").problems(),
              ElementsAre(HasSubstr("flags have two dashes")));
}

TEST_F(OptionsTest, ShorthandsFillWhatIsNotGiven) {
  EXPECT_THAT(parse({"--swiglu"}).problems(), IsEmpty());
  EXPECT_TRUE(run.model.gated);
  EXPECT_EQ(run.model.activation, Activation::kSilu);
  EXPECT_THAT(parse({"--swiglu", "--activation", "gelu_tanh"}).problems(), IsEmpty());
  EXPECT_EQ(run.model.activation, Activation::kGeluTanh);
  EXPECT_THAT(parse({"--group-query-attention", "--num-query-groups", "2"}).problems(), IsEmpty());
  EXPECT_EQ(run.model.num_query_groups, 2);
  EXPECT_TRUE(parse({"--use-distributed-optimizer"}).given("data-parallel-sharding-strategy"));
  EXPECT_EQ(run.parallel.data_parallel_sharding_strategy, ShardingStrategy::kOptim);
  run.model.gated = false;
  EXPECT_FALSE(parse({"--swiglu=false"}).given("gated"));
  EXPECT_FALSE(run.model.gated);
  EXPECT_THAT(parse({"--swiglu", "--squared-relu"}).problems(),
              ElementsAre("--squared-relu: sets --activation squared_relu, but --swiglu sets it to "
                          "silu; keep one"));
}

TEST_F(OptionsTest, CollectEveryProblem) {
  Options options =
      parse({"--hiden-size", "8", "--lr", "fast", "--num-layers", "--tp", "0", "stray", "-v",
             "--zzzzzzzzz", "--bf16=maybe", "--lr-decay-style", "cosin"});
  EXPECT_THAT(
      options.problems(),
      ElementsAre(
          "--hiden-size: unknown flag; did you mean --hidden-size?",
          "--num-layers: has no value; give integer >= 0",
          "'stray': belongs to no flag; leave it out",
          "'-v': belongs to no flag; flags have two dashes: --v",
          "--zzzzzzzzz: unknown flag; `bevatron help --search WORD` finds flags by their texts",
          "--lr: 'fast' is not a number", HasSubstr("--tp: 0 is out of range; it must be >= 1"),
          "--bf16: 'maybe' is neither true nor false",
          HasSubstr("--lr-decay-style: 'cosin' is not one of constant, linear, cosine")));
  expect_error(ErrorKind::kConfig, {"9 problems:\n  --hiden-size", "\n  --lr: 'fast'"},
               [&] { options.throw_problems(); });
}

// The flags of Megatron's script for Mixtral 8x7B, without the model's sizes.
TEST_F(OptionsTest, AScriptOfMegatronIsReadAsItIs) {
  Options options = parse({"--use-mcore-models",
                           "--disable-bias-linear",
                           "--no-masked-softmax-fusion",
                           "--no-position-embedding",
                           "--position-embedding-type",
                           "rope",
                           "--moe-grouped-gemm",
                           "--moe-permute-fusion",
                           "--moe-token-dispatcher-type",
                           "flex",
                           "--tokenizer-type",
                           "Llama2Tokenizer",
                           "--tokenizer-model",
                           "folder",
                           "--attention-backend",
                           "fused",
                           "--cuda-graph-impl",
                           "full_iteration",
                           "--recompute-modules",
                           "moe_act",
                           "layernorm",
                           "--wandb-project=Mixtral",
                           "--manual-gc",
                           "--num-experts",
                           "8"});
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_EQ(options.notes().size(), 9u);
  EXPECT_THAT(options.notes(), testing::Contains("--moe-grouped-gemm: is not needed: experts are "
                                                 "always computed together, and routing is one "
                                                 "kernel"));
  EXPECT_EQ(run.model.moe.num_experts, 8);
  EXPECT_EQ(run.data.tokenizer, "folder");
  EXPECT_EQ(run.parallel.moe_token_dispatcher, TokenDispatcher::kAllToAll);
  EXPECT_EQ(run.runtime.cuda_graph_impl, CudaGraphs::kLocal);
}

TEST_F(OptionsTest, FlagsOfMegatronThatMatterAreRefusedWithWhatToGive) {
  EXPECT_THAT(parse({"--yaml-cfg", "v.yaml", "--fp8-hybrid", "--lr", "1"}).problems(),
              ElementsAre(HasSubstr("--yaml-cfg: give --config FILE.yaml"),
                          "--fp8-hybrid: give --fp8-format hybrid"));
  Options yaml = parse_yaml("moe-grouped-gemm: true\nsft: true\n");
  EXPECT_THAT(yaml.notes(), ElementsAre(HasSubstr("run.yaml:1: moe-grouped-gemm: is not needed")));
  EXPECT_THAT(yaml.problems(), ElementsAre(HasSubstr("run.yaml:2: sft: give --sft-data")));
}

TEST_F(OptionsTest, FollowUpsOfAnUnreadValueAreLeftOut) {
  Options options = parse({"--num-layers", "many"});
  options.add_problems(std::vector<std::string>{"--num-layers: is 0", "--hidden-size: is 0"});
  EXPECT_THAT(options.problems(),
              ElementsAre("--num-layers: 'many' is not an integer", "--hidden-size: is 0"));
}

TEST_F(OptionsTest, OfAFlagGivenTwiceTheLastCountsAndBothAreNamed) {
  Options options = parse({"--lr", "1", "--lr", "2"});
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_THAT(options.notes(),
              ElementsAre("--lr: given twice, as --lr 1, then --lr 2; the last one counts"));
  EXPECT_EQ(run.optim.lr, 2);
  EXPECT_EQ(options.settings().size(), 1u);
  options = parse({"--tp", "1", "--tensor-model-parallel-size=2"});
  EXPECT_THAT(options.notes(), ElementsAre(HasSubstr("as --tp 1, then "
                                                     "--tensor-model-parallel-size 2;")));
  EXPECT_EQ(run.parallel.tensor_model_parallel_size, 2);
  options = parse({"--no-causal", "--causal"});
  EXPECT_THAT(options.notes(), ElementsAre(HasSubstr("as --no-causal, then --causal;")));
  EXPECT_TRUE(run.model.causal);
  options = parse({"--text", "a", "b", "--lr", "oops", "--text", "c", "--lr", "3"});
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_THAT(run.data.text, ElementsAre("c"));
  EXPECT_EQ(run.optim.lr, 3);
  EXPECT_THAT(parse({"--lr", "1", "--lr", "2", "--lr", "4"}).notes(),
              ElementsAre(HasSubstr("given 3 times, as --lr 1, then --lr 2, then --lr 4;")));
  EXPECT_THAT(parse({"--lr", "1", "--lr", "1"}).notes(), IsEmpty());
  run.model.gated = false;
  EXPECT_THAT(parse({"--swiglu", "--swiglu=false"}).notes(),
              ElementsAre(HasSubstr("as --swiglu, then --swiglu false;")));
  EXPECT_FALSE(run.model.gated);
}

TEST_F(OptionsTest, OddWordsAreHandled) {
  EXPECT_THAT(parse({"--lr", "-1"}).problems(),
              ElementsAre(HasSubstr("--lr: -1 is out of range; it must be >= 0")));
  EXPECT_THAT(parse({"--lr="}).problems(), ElementsAre("--lr: '' is not a number"));
  EXPECT_THAT(parse({"--"}).problems(), ElementsAre(HasSubstr("'--': belongs to no flag")));
  EXPECT_THAT(parse({"--=3"}).problems(), ElementsAre(HasSubstr("--: unknown flag")));
  EXPECT_THAT(parse({""}).problems(), ElementsAre(HasSubstr("'': belongs to no flag")));
  EXPECT_THAT(parse({"--no-lr"}).problems(), ElementsAre(HasSubstr("--no-lr: unknown flag")));
  EXPECT_THAT(parse({"--split=--a"}).problems(), IsEmpty());
  EXPECT_EQ(run.data.split, "--a");
  EXPECT_TRUE(parse({"--lr", "1", "-h"}).help());
}

TEST_F(OptionsTest, FlagGoesOverFileOverPresetOverDefault) {
  Options options =
      parse_yaml("num_layers: 2\nhidden-size: 64\noptimizer:\n  lr: 1e-3\n", {"--num-layers", "8"});
  EXPECT_THAT(options.problems(), IsEmpty());
  run.model = ModelConfig();  // as filled in by a preset
  run.model.num_layers = 99;
  run.model.num_attention_heads = 12;
  options.apply(list);
  EXPECT_EQ(run.model.num_layers, 8);
  EXPECT_EQ(run.model.hidden_size, 64);
  EXPECT_EQ(run.model.num_attention_heads, 12);
  EXPECT_EQ(run.optim.lr, 1e-3);
  EXPECT_EQ(options.find("lr")->origin, file + ":4");
}

TEST_F(OptionsTest, YamlTakesFlatNestedAndLists) {
  Options options = parse_yaml(
      "optimizer: sgd\n"
      "model: {swiglu: true, disable-bias-linear: yes, window-attn-skip-freq: [1, 0]}\n"
      "rope_scaling:\n  rope-scaling-type: yarn\n"
      "recompute-modules: [mlp, core_attn]\n"
      "no-check-for-nan-in-loss-and-grad: true\n"
      "text: one.txt\n");
  EXPECT_THAT(options.problems(), IsEmpty());
  EXPECT_EQ(run.optim.optimizer, OptimizerKind::kSgd);
  EXPECT_TRUE(run.model.gated);
  EXPECT_FALSE(run.model.add_bias_linear);
  EXPECT_THAT(run.model.window_layers, ElementsAre(1, 0));
  EXPECT_EQ(run.model.rope_scaling.kind, RopeScalingKind::kYarn);
  EXPECT_THAT(run.parallel.recompute_modules, ElementsAre("mlp", "core_attn"));
  EXPECT_FALSE(run.train.check_for_nan_in_loss_and_grad);
  EXPECT_THAT(run.data.text, ElementsAre("one.txt"));
  EXPECT_THAT(parse_yaml("").problems(), IsEmpty());
}

TEST_F(OptionsTest, YamlProblemsHaveLines) {
  Options options = parse_yaml(
      "hiden-size: 3\n"
      "lr: fast\n"
      "model:\n  lr: 1\n  num-layers: {a: 1}\n"
      "modle: {num-layers: 1}\n"
      "min-lr:\n"
      "seed: 1\nseed: 2\n"
      "num-layers: [1, 2]\n"
      "text: [[a]]\n"
      "? [x]\n: 1\n");
  EXPECT_THAT(options.problems(),
              testing::UnorderedElementsAre(
                  file + ":1: hiden-size: unknown key; did you mean hidden-size?",
                  file + ":2: lr: 'fast' is not a number",
                  file + ":4: lr: is not in section model; it belongs to optimizer",
                  file + ":5: num-layers: is a map; give a value",
                  HasSubstr(file + ":6: modle: is a map, but no section; the sections are model, "),
                  file + ":7: min-lr: is empty; give a value",
                  file + ":9: seed: given twice, as 1 (" + file + ":8) and 2; keep one",
                  file + ":10: num-layers: takes one value, not 2 (1 2)",
                  file + ":11: text: its list holds a list; only plain values can be in it",
                  HasSubstr("the key is not a name")));
}

TEST_F(OptionsTest, YamlOfANewerVersionIsRefused) {
  EXPECT_THAT(parse_yaml("version: 1\nnum-layers: 4\n").problems(), IsEmpty());
  EXPECT_EQ(run.model.num_layers, 4);
  Options newer = parse_yaml("num-layers: 5\nversion: 2\nwarp-factor: 9\n");
  EXPECT_THAT(newer.problems(),
              ElementsAre(file + ":2: version: 2 is newer than 1, which this program reads; use "
                                 "the program that the file was written for"));
  EXPECT_EQ(run.model.num_layers, 4);
  EXPECT_THAT(parse_yaml("version: new\n").problems(),
              ElementsAre(file + ":1: version: 'new' is not a version; give 1"));
}

// A renamed flag keeps its old name as an alias: on the command line, in files, and in the
// configurations that checkpoints store.
TEST(OptionAliases, OldNamesGoOn) {
  struct Renamed {
    std::int64_t count = 1;
    void fields(FieldList& list) {
      list.section("model");
      list.add("layer-count", count, "").alias("num-layers").alias("depth");
    }
  };
  TempFolder folder;
  std::string file = folder.write("old.yaml", "model:\n  num_layers: 3\n");
  for (const Args& args : {Args{"--num-layers", "3"}, Args{"--depth=3"}, Args{"--layer-count", "3"},
                           Args{"--config", file}}) {
    Renamed value;
    FieldList list;
    value.fields(list);
    Options options = parse_options(list, args);
    EXPECT_THAT(options.problems(), IsEmpty());
    EXPECT_EQ(value.count, 3);
    EXPECT_TRUE(options.given("layer-count"));
  }
  Renamed value;
  FieldList list;
  value.fields(list);
  apply_config({{"model", "num-layers", "7"}}, list, "manifest.json");
  EXPECT_EQ(value.count, 7);
  EXPECT_THAT(parse_options(list, Args{"--depth", "2", "--layer-count", "3"}).notes(),
              ElementsAre(HasSubstr("given twice, as --depth 2, then --layer-count 3")));
}

TEST_F(OptionsTest, YamlThatIsNoneIsRefused) {
  EXPECT_THAT(parse_yaml("a: [1, 2\nb: 3\n").problems(), ElementsAre(HasSubstr("is not YAML")));
  EXPECT_THAT(parse_yaml("a: 1\n\tb: 2\n").problems(), ElementsAre(HasSubstr("is not YAML")));
  EXPECT_THAT(parse_yaml("- 1\n").problems(), ElementsAre(HasSubstr(":1: is not a map of keys")));
  EXPECT_THAT(parse_yaml("just text\n").problems(), ElementsAre(HasSubstr("is not a map of keys")));
  EXPECT_THAT(parse_yaml("lr: 1\n---\nlr: 2\n").problems(),
              ElementsAre(HasSubstr("a second document starts")));
  // Here the YAML parser finds an endless number of documents.
  EXPECT_THAT(parse_yaml(",,,\n").problems(), ElementsAre(HasSubstr("a second document starts")));
  EXPECT_THAT(parse_yaml("lr: *nothing\n").problems(), ElementsAre(HasSubstr("is not YAML")));
  EXPECT_THAT(parse_yaml(std::string(20000, '[')).problems(),
              ElementsAre(HasSubstr("is not YAML")));
  EXPECT_THAT(parse_yaml(std::string("lr: \x00\xff\xfe 1", 9)).problems(), testing::SizeIs(1));
}

TEST_F(OptionsTest, AnchorsWorkUnlessTheyContainThemselves) {
  EXPECT_THAT(parse_yaml("hidden-size: &h 64\nffn-hidden-size: *h\n").problems(), IsEmpty());
  EXPECT_EQ(run.model.ffn_hidden_size, 64);
  EXPECT_THAT(parse_yaml("model: &m\n  num-layers: *m\n").problems(),
              ElementsAre(file + ":2: num-layers: is an anchor that contains itself"));
  EXPECT_THAT(parse_yaml("&r\nmodel: *r\n").problems(),
              ElementsAre(HasSubstr("model: is an anchor that contains itself")));
  EXPECT_THAT(
      parse_yaml("text: &t [*t]\n").problems(),
      ElementsAre(file + ":1: text: its list holds itself; only plain values can be in it"));
}

TEST_F(OptionsTest, AMissingFileIsOneOfTheProblems) {
  Options options = parse({"--config", folder.path("no.yaml"), "--lr", "x"});
  EXPECT_THAT(options.problems(),
              ElementsAre(HasSubstr("--config: "), "--lr: 'x' is not a number"));
  EXPECT_THAT(options.problems()[0], HasSubstr("no.yaml"));
  EXPECT_THAT(parse({"--config"}).problems(), ElementsAre("--config: has no value; give a file"));
  EXPECT_THAT(parse({"--config", folder.path()}).problems(), ElementsAre(HasSubstr("--config: ")));
  EXPECT_THAT(parse({"--config", "a", "--config", "b"}).problems(),
              ElementsAre("--config: given twice, as a and b; put all into one file"));
}

}  // namespace
}  // namespace bev
