// data samples --dataset bert|t5, as a user calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = BEV_SOURCE_DIR "/tests/golden/data/";

class MaskedSamples : public testing::Test {
 protected:
  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron data samples ", words));
  }
  static json golden(const std::string& dataset) {
    for (const json& entry : json::parse(read_file(kGolden + "masked_samples.json"))) {
      if (entry["flags"]["dataset"] == dataset) return entry["expected"];
    }
    return {};
  }

  TempFolder folder_;
  std::string data_ = concat(" --data-path ", kGolden, "masked_a --tokenizer ", kGolden,
                             "masked_vocab.txt --split 80,15,5 --seq-length 24 --seed 1234",
                             " --sizes 20,3,1 --dump 8 ");
};

TEST_F(MaskedSamples, AreMegatronCoresByDefault) {
  Outcome bert = run("--dataset bert --output bert.json --data-cache-path cache" + data_);
  ASSERT_EQ(bert.code, 0) << bert.err;
  EXPECT_EQ(json::parse(read_file(folder_.path("bert.json"))), golden("bert"));
  EXPECT_EQ(list_directory(folder_.path("cache")).size(), 3u);
  Outcome again = run("--dataset bert --data-cache-path cache" + data_);
  EXPECT_EQ(json::parse(again.out), golden("bert"));
  Outcome t5 = run("--dataset t5 --vocab-extra-ids 20" + data_);
  ASSERT_EQ(t5.code, 0) << t5.err;
  EXPECT_EQ(json::parse(t5.out), golden("t5"));
}

TEST_F(MaskedSamples, SayWhatIsWrong) {
  auto expect = [&](const std::string& words, const std::vector<std::string>& parts) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part)) << words;
  };
  expect("--dataset bart" + data_, {"--dataset", "gpt"});
  expect(concat("--dataset bert --eod-mask-loss --mock-data --sizes 1,1,1 --seq-length 16",
                " --vocab-size 9"),
         {"--tokenizer: is missing", "--eod-mask-loss: is for --dataset gpt", "--mock-data: is"});
  expect("--dataset bert --masking-permutation --masking-geometric" + data_,
         {"--masking-permutation: excludes --masking-geometric"});
  expect("--dataset bert --mask-prob 1" + data_, {"--mask-prob"});
  expect("--dataset bert --tokenizer none.txt --data-path x --seq-length 9 --sizes 1,0,0",
         {"none.txt"});
  expect("--dataset t5 --seq-length-dec 2 --mask-prob 0.9 --vocab-extra-ids 50" + data_,
         {"--decoder-seq-length is 2"});
  expect("--dataset bert --seed 2147483648" + data_.substr(0, data_.find(" --seed")) +
             " --sizes 1,0,0",
         {"--seed: 2147483648"});
}

}  // namespace
}  // namespace bev
