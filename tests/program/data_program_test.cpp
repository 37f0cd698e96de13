// Token files through the program: inspecting, merging, sampling, training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "data/indexed/indexed_writer.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class DataProgram : public testing::Test {
 protected:
  DataProgram() {
    for (const char* name : {"p", "q"}) {
      IndexedDatasetWriter writer(folder_.path(name), TokenType::kU16);
      for (std::int32_t document = 0; document < 60; ++document) {
        std::vector<std::int32_t> tokens;
        for (std::int32_t i = 0; i < 20 + document % 7; ++i) {
          tokens.push_back((document * 7 + i) % 90 + 1);
        }
        tokens.push_back(0);
        writer.add_sequence(tokens);
        writer.end_document();
      }
      writer.commit();
    }
  }

  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron ", words));
  }
  Outcome train(const std::string& words, int iterations = 12) {
    return run(
        "train --family llama --num-layers 1 --hidden-size 16 --num-attention-heads 2 "
        "--ffn-hidden-size 24 --position-embedding-type rope --normalization RMSNorm --swiglu "
        "--disable-bias-linear --seq-length 16 --micro-batch-size 2 --global-batch-size 4 "
        "--lr 1e-2 --loss-svg '' --metrics-out metrics --train-iters " +
        concat(iterations, " ", words));
  }
  std::vector<double> losses() {
    std::vector<double> out;
    for (const std::string& line :
         split(std::string(trim(read_file(folder_.path("metrics")))), '\n')) {
      out.push_back(json::parse(line)["loss"]);
    }
    return out;
  }

  TempFolder folder_;
};

TEST_F(DataProgram, TrainsOnTokenFiles) {
  Outcome plain =
      train("--data-path p --vocab-size 91 --split 9,1,0 --eval-interval 6 --eval-iters 1");
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("validation"));
  std::vector<double> first = losses();
  EXPECT_LT(first.back(), first.front() - 0.2);
  // The same samples with and without a cache, whichever rank reads them.
  Outcome again = train(
      "--data-path p --vocab-size 91 --split 9,1,0 --eval-interval 6 --eval-iters 1 "
      "--data-cache-path cache --dp 2");
  ASSERT_EQ(again.code, 0) << again.err;
  std::vector<double> second = losses();
  ASSERT_EQ(second.size(), first.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(second[i], first[i], 1e-4) << i;
  EXPECT_EQ(list_directory(folder_.path("cache")).size(), 2u);
}

TEST_F(DataProgram, TrainsOnBlendsAndSeparateDocuments) {
  write_file(folder_.path("words"), "0.3 p\n0.7\tq\n");
  Outcome blend = train(
      "--data-args-path words --vocab-size 91 --reset-position-ids --reset-attention-mask "
      "--eod-mask-loss --eod-id 0");
  EXPECT_EQ(blend.code, 0) << blend.err;
  Outcome own = train("--train-data-path p q p --valid-data-path q --vocab-size 91");
  EXPECT_EQ(own.code, 0) << own.err;
  std::vector<double> by_flags = losses();
  write_file(folder_.path("splits.json"),
             R"({"train": ["p", "q", "p"], "valid": " q\n", "test": null})");
  Outcome by_file = train("--per-split-data-args-path splits.json --vocab-size 91");
  EXPECT_EQ(by_file.code, 0) << by_file.err;
  EXPECT_EQ(losses(), by_flags);
}

TEST_F(DataProgram, ResetsPositionsAndAttentionApart) {
  std::vector<std::vector<double>> curves;
  for (const char* flags : {"", "--reset-position-ids", "--reset-attention-mask",
                            "--reset-position-ids --reset-attention-mask"}) {
    std::string words = concat("--data-path p --split 1 --vocab-size 91 --eod-id 0 ", flags);
    Outcome whole = train(words);
    ASSERT_EQ(whole.code, 0) << whole.err;
    curves.push_back(losses());
    // Parts of a sequence have the same positions.
    ASSERT_EQ(train(words + " --context-parallel-size 2").code, 0);
    std::vector<double> cut = losses();
    ASSERT_EQ(cut.size(), curves.back().size());
    for (std::size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i], curves.back()[i], 1e-4);
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(curves[i], curves[j]) << i << " and " << j;
  }
}

TEST_F(DataProgram, ReadsTheSameSamplesWhateverTheWorkers) {
  const std::string words =
      "--data-path p --split 1 --vocab-size 91 --dataloader-type cyclic --num-workers ";
  std::vector<double> expected;
  for (const char* workers :
       {"0", "1", "5 --prefetch-factor 1", "3 --dp 2 --no-data-sharding", "0 --no-data-sharding"}) {
    Outcome outcome = train(words + workers);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> got = losses();
    if (expected.empty()) expected = got;
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4) << workers;
  }
}

TEST_F(DataProgram, SaysWhatIsWrongWithTheData) {
  auto expect = [&](const std::string& words, const char* part) {
    Outcome outcome = train(words);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect("--data-path p --vocab-size 50", "outside of a vocabulary of 50");
  expect("--data-path nothing --vocab-size 91", "nothing.idx: no such file");
  expect("--data-path p.bin --vocab-size 91", "without their endings");
  expect("--data-path 0.5 p q --vocab-size 91", "weights stand before all of them or before none");
  expect("--data-path p", "--vocab-size: is 0; give a number >= 1, or --tokenizer");
  expect("--data-path p --vocab-size 91 --fim-rate 0.9", "--fim-data: is missing");
  EXPECT_THAT(train("--data-path p q p --vocab-size 91", 5000).err, HasSubstr("in one epoch"));
  expect("--data-path p --split 1,0,0 --eval-iters 2 --vocab-size 91", "validation split (1,0,0)");
  expect("--data-path p --text x --vocab-size 300", "--text: excludes --data-path");
  expect("--data-path p --train-data-path q --vocab-size 91", "--data-path: excludes");
  expect("--valid-data-path p --vocab-size 91", "--train-data-path: is missing");
  expect("--train-data-path p --split 9,1,0 --vocab-size 91", "--split: excludes");
  expect("--train-data-path p --per-split-data-args-path s.json --vocab-size 91",
         "--per-split-data-args-path: excludes --train-data-path");
  write_file(folder_.path("s.json"), R"({"train": ["p"], "dev": ["q"]})");
  expect("--per-split-data-args-path s.json --vocab-size 91", "'dev' is not train, valid or test");
  write_file(folder_.path("s.json"), R"({"train": [["p"]]})");
  expect("--per-split-data-args-path s.json --vocab-size 91", "train: array where a prefix");
  write_file(folder_.path("s.json"), R"({"valid": ["p"]})");
  expect("--per-split-data-args-path s.json --vocab-size 91", "there is no train data");
  expect("--data-path p --eod-mask-loss --vocab-size 91", "--eod-id: is missing");
  expect("--mock-data --eod-mask-loss --vocab-size 91", "--eod-mask-loss: is for");
  expect("--data-path 1 p x q --vocab-size 91", "'x' stands where a weight");
}

TEST_F(DataProgram, PrintsSamplesAsMegatronCoreGivesThem) {
  std::string golden = BEV_SOURCE_DIR "/tests/golden/data/";
  json entry = json::parse(read_file(golden + "samples.json"))[0];
  Outcome outcome = run(concat("data samples --data-path ", golden,
                               "a --split 80,15,5 --seq-length 8 --seed 1234 --sizes 20,3,1 "
                               "--dump 6 --vocab-size 300 --eod-id 0 --output out.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(read_file(folder_.path("out.json"))), entry["expected"]);
  Outcome empty = run("data samples --data-path p --split 1,0,0 --seq-length 8 --sizes 5,1,0");
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("validation split (1,0,0)"));
  Outcome bad = run("data samples --sizes 5,-1,x");
  EXPECT_EQ(bad.code, 2);
  for (const char* part : {"--data-path: is missing", "--seq-length: is missing", "'-1'", "'x'"}) {
    EXPECT_THAT(bad.err, HasSubstr(part));
  }
}

TEST_F(DataProgram, TokenizeNamesTheReaderOfPlainText) {
  folder_.write("plain.txt", "just text");
  Outcome outcome = run("tokenize --tokenizer byte --input plain.txt");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("preprocess reads other files"));
}

TEST_F(DataProgram, ShowsAndJoinsTokenFiles) {
  ASSERT_EQ(run("data merge --input p q --output-prefix new/all").code, 0);
  json info = json::parse(run("data info --json --data-path new/all").out);
  EXPECT_EQ(info["documents"], 120);
  EXPECT_EQ(info["tokens"],
            2 * json::parse(run("data info --json --data-path p").out)["tokens"].get<int>());
  EXPECT_THAT(run("data info --data-path p q").out, HasSubstr("60 documents (0 empty)"));
  json shown = json::parse(run("data show --json --data-path new/all --document 60").out);
  EXPECT_EQ(shown, json::parse(run("data show --json --data-path p").out.replace(12, 1, "60")));
  EXPECT_EQ(run("data show --data-path p --document 60").code, 2);
  Outcome stranger = run("data show --data-path p --tokenizer null:5");
  EXPECT_EQ(stranger.code, 2);
  EXPECT_THAT(stranger.err, HasSubstr("the tokenizer null:5 has 6"));
  EXPECT_EQ(run("data merge --input p --output-prefix p").code, 2);
  folder_.write("broken.idx", "MMIDIDX");
  folder_.write("broken.bin", "");
  Outcome broken = run("data merge --input p broken --output-prefix joined");
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("broken.idx"));
  for (const std::string& name : list_directory(folder_.path())) {
    EXPECT_FALSE(name.starts_with("joined")) << name;
  }
}

}  // namespace
}  // namespace bev
