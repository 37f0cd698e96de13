// Encoders as a user meets them: score, train on masked tokens, embed, fine-tuning, predict,
// evaluate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "tests/support/golden_encoders.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Encoders : public testing::Test {
 protected:
  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron ", words));
  }
  // The last line that a run prints; {} of a training run, which prints for people.
  json result(const std::string& words) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.err;
    if (outcome.code != 0) return {};
    if (words.starts_with("train")) return json::object();
    std::string_view out = trim(outcome.out);
    return json::parse(out.substr(out.find_last_of('\n') + 1));
  }
  void expect_refused(const std::string& words, const std::vector<std::string>& parts) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.out;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part)) << words;
  }
  std::vector<json> lines(const std::string& file) {
    std::vector<json> out;
    for (const std::string& line : split(read_file(folder_.path(file)), '\n')) {
      if (!line.empty()) out.push_back(json::parse(line));
    }
    return out;
  }

  TempFolder folder_;
};

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  TensorBytes tensor = file.tensor(name);
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

TEST_F(Encoders, AreScoredByBatches) {
  const std::string fixture = test::encoder_folder("bert_pairs");
  const json wanted = json::parse(read_file(join_path(fixture, "expected.json")));
  const SafetensorsFile theirs(join_path(fixture, "expected.safetensors"));
  for (const char* layout : {"", "--tp 2 --sequence-parallel --dp 2", "--pp 2 --cp 2"}) {
    json line = result(concat("score --hf-model ", fixture, " --batch ", fixture,
                              "/batch.json --grads-out g.safetensors --outputs "
                              "logits,seq_relationship_logits,last_hidden_state,pooler_output "
                              "--outputs-out o.safetensors ",
                              layout));
    EXPECT_NEAR(line["loss"], wanted["loss"].get<double>(), 2e-5) << layout;
    EXPECT_NEAR(line["losses"]["lm loss"].get<double>() + line["losses"]["sop loss"].get<double>(),
                wanted["loss"].get<double>(), 2e-5);
    EXPECT_NEAR(line["grad_norm"].get<double>() / wanted["grad_norm"].get<double>(), 1, 1e-4);
    const SafetensorsFile ours(folder_.path("o.safetensors"));
    for (const char* name :
         {"logits", "seq_relationship_logits", "last_hidden_state", "pooler_output"}) {
      EXPECT_EQ(ours.tensor(name).shape, theirs.tensor(name).shape) << name;
      const std::vector<float> a = floats(ours, name), b = floats(theirs, name);
      for (std::size_t i = 0; i < b.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4) << name;
    }
  }
}

TEST_F(Encoders, RefuseWhatTheyDoNotHave) {
  const std::string fixture = test::encoder_folder("bert_masked");
  const std::string score = concat("score --hf-model ", fixture, " --batch ");
  expect_refused(score + fixture + "/batch.json --outputs pooler_output --outputs-out o",
                 {"--outputs: the model has no pooler_output", "last_hidden_state, logits"});
  expect_refused(score + fixture + "/batch.json --logprobs", {"--logprobs", "encoder"});
  folder_.write("b.json", R"({"input_ids": [[5, 6]], "next_sentence_label": [1]})");
  expect_refused(score + folder_.path("b.json"), {"does not use next_sentence_label"});
  folder_.write("b.json", R"({"input_ids": [[5, 6]], "token_type_ids": [[0, 9]]})");
  expect_refused(score + folder_.path("b.json"), {"token_type_ids row 0 column 1", "outside"});
  expect_refused(
      concat("generate --hf-model ", fixture, " --prompt-tokens ", folder_.path("b.json")),
      {"bidirectional"});
}

TEST_F(Encoders, GiveTheSameUnderAllLayouts) {
  for (const char* name : {"bert_pairs", "megatron_bert_masked", "modernbert_masked",
                           "roberta_classes", "bert_tags", "bert_number"}) {
    json line =
        result(concat("verify --hf-model ", test::encoder_folder(name),
                      " --layouts \"tp2sp,pp2,dp2zero3 cp2,pp2 dp2zero1 cp2a2a,tp2\" --json"));
    EXPECT_EQ(line["ok"], true) << name << line.dump();
    EXPECT_EQ(line["layouts"].size(), 4u);
  }
  json line = result(concat("verify --hf-model ", test::encoder_folder("modernbert_mean"),
                            " --layouts \"tp2sp,pp2 dp2zero3\" --recompute-granularity full "
                            "--recompute-method uniform --recompute-num-layers 1 --json"));
  EXPECT_EQ(line["ok"], true) << line.dump();
  expect_refused(
      concat("verify --hf-model ", test::encoder_folder("modernbert_mean"), " --layouts cp2"),
      {"--context-parallel-size: 2", "mean over a sequence"});
}

TEST_F(Encoders, TrainOnMaskedSentences) {
  const std::string data = BEV_SOURCE_DIR "/tests/golden/data/";
  const std::string words = concat(
      "train --preset bert-tiny --num-layers 2 --hidden-size 32 --num-attention-heads 2 "
      "--ffn-hidden-size 48 --objective mlm --data-path ",
      data, "masked_a --tokenizer ", data,
      "masked_vocab.txt --split 80,15,5 --seq-length 24 --micro-batch-size 4 --lr 1e-2 "
      "--train-iters 120 --eval-interval 120 --eval-iters 2 --fp64 --loss-svg none ");
  result(words + "--metrics-out one.jsonl --export-hf model");
  std::vector<double> losses;
  for (const json& row : lines("one.jsonl")) {
    if (!row.contains("split")) losses.push_back(row["loss"]);
  }
  ASSERT_EQ(losses.size(), 120u);
  auto sum_of_ten = [&](std::size_t begin) {
    auto first = losses.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::accumulate(first, first + 10, 0.0);
  };
  EXPECT_LT(sum_of_ten(110), 0.92 * sum_of_ten(0));
  // The head of pairs is asked for, and a layout changes nothing.
  result(words + "--bert-binary-head --metrics-out pairs.jsonl");
  result(words +
         "--bert-binary-head --metrics-out layout.jsonl --tp 2 --dp 2 --micro-batch-size 2");
  std::vector<json> pairs = lines("pairs.jsonl"), layout = lines("layout.jsonl");
  ASSERT_EQ(pairs.size(), layout.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_NEAR(pairs[i]["loss"].get<double>(), layout[i]["loss"].get<double>(), 1e-9) << i;
  }
  EXPECT_THAT(pairs.front().dump(), HasSubstr("sop"));
  EXPECT_EQ(json::parse(read_file(folder_.path("model/config.json")))["architectures"][0],
            "BertForMaskedLM");
  expect_refused("train --preset gpt2-124m --objective mlm --mock-data --train-iters 1",
                 {"--objective: mlm needs an encoder", "--data-path: is missing"});
  expect_refused("train --preset bert-tiny --mock-data --train-iters 1",
                 {"--objective: is missing; the model is an encoder"});
}

TEST_F(Encoders, LearnClassesAndPredictThem) {
  std::string train, test;
  const char* good[] = {"a fine day", "this is fine", "fine and new", "the fine one"};
  const char* bad[] = {"a sad day", "this is sad", "sad and old", "the sad one"};
  for (int i = 0; i < 4; ++i) {
    train += json{{"sentence", good[i]}, {"mood", "good"}}.dump() + "\n";
    train += json{{"sentence", bad[i]}, {"mood", "bad"}}.dump() + "\n";
  }
  test = "id,sentence,mood\n7,\"the fine, new day\",good\n8,the sad day,bad\n";
  folder_.write("train.jsonl", train);
  folder_.write("test.csv", test);
  const std::string columns = " --text-column sentence --label-column mood ";
  result(
      concat("train --preset bert-tiny --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
             "--ffn-hidden-size 48 --objective classification --data train.jsonl --tokenizer ",
             BEV_SOURCE_DIR "/tests/golden/tokenizers/bert.json", columns,
             "--seq-length 24 --micro-batch-size 8 --lr 2e-2 --epochs 30 --loss-svg none "
             "--class-weights 1,2 --export-hf model"));
  const json config = json::parse(read_file(folder_.path("model/config.json")));
  EXPECT_EQ(config["architectures"][0], "BertForSequenceClassification");
  EXPECT_EQ(config["id2label"], (json{{"0", "bad"}, {"1", "good"}}));
  result(concat("predict --hf-model model --input test.csv --output p.jsonl", columns));
  std::vector<json> found = lines("p.jsonl");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0]["id"], "7");
  EXPECT_EQ(found[0]["label"], "good");
  EXPECT_EQ(found[1]["label_id"], 0);
  EXPECT_NEAR(found[1]["scores"][0].get<double>() + found[1]["scores"][1].get<double>(), 1, 1e-9);
  json metrics = result(concat("evaluate --hf-model model --data test.csv --dp 2", columns,
                               "--metrics accuracy,f1,matthews"));
  EXPECT_EQ(metrics["examples"], 2);
  EXPECT_EQ(metrics["metrics"]["accuracy"], 1.0);
  EXPECT_EQ(metrics["confusion"], (json{{1, 0}, {0, 1}}));
  folder_.write("r.jsonl",
                "{\"id\": \"8\", \"label\": \"bad\"}\n{\"id\": \"7\", \"label\": \"bad\"}\n");
  json files = result("evaluate --predictions p.jsonl --references r.jsonl --metrics accuracy");
  EXPECT_EQ(files["metrics"]["accuracy"], 0.5);
  expect_refused(concat("predict --hf-model model --input test.csv --output p.jsonl"),
                 {"no column 'text'"});
}

TEST_F(Encoders, LearnTagsNumbersAndSpans) {
  const std::string begin = concat(
      "train --preset bert-tiny --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
      "--ffn-hidden-size 48 --tokenizer ",
      BEV_SOURCE_DIR "/tests/golden/tokenizers/bert.json ",
      "--seq-length 32 --micro-batch-size 4 --lr 2e-2 --epochs 40 --loss-svg none ");
  folder_.write("tags.jsonl",
                R"({"tokens": ["the", "day", "is", "new"], "tags": ["O", "B-T", "O", "O"]})"
                "\n"
                R"({"tokens": ["a", "new", "day"], "tags": ["O", "O", "B-T"]})"
                "\n");
  result(begin + "--objective token-classification --data tags.jsonl --export-hf tagger");
  json tags = result("evaluate --hf-model tagger --data tags.jsonl --metrics accuracy,f1");
  EXPECT_EQ(tags["metrics"]["f1"], 1.0);
  folder_.write("numbers.tsv", "text\tlabel\na new day\t1.5\nan old day\t-0.5\n");
  result(begin + "--objective regression --data numbers.tsv --export-hf scorer");
  json numbers = result("evaluate --hf-model scorer --data numbers.tsv --metrics pearson,mse");
  EXPECT_GT(numbers["metrics"]["pearson"].get<double>(), 0.99);
  EXPECT_LT(numbers["metrics"]["mse"].get<double>(), 0.1);
  folder_.write("spans.jsonl",
                R"({"question": "which day", "context": "It was a new day, they say.", )"
                R"("answers": {"text": ["new day"], "answer_start": [9]}})"
                "\n"
                R"({"question": "who", "context": "they saw it", "answers": "they"})"
                "\n");
  result(begin + "--objective spans --data spans.jsonl --export-hf reader");
  json spans = result("evaluate --hf-model reader --data spans.jsonl --metrics exact_match,f1");
  EXPECT_EQ(spans["metrics"]["exact_match"], 1.0);
}

TEST_F(Encoders, EmbedWithTheFoldersPooling) {
  const std::string fixture = test::encoder_folder("bert_bare");
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder_.write(concat("model/", name), read_file(join_path(fixture, name)));
  }
  folder_.write("rows.json", R"({"input_ids": [[5, 6, 7], [8, 9]]})");
  auto vectors = [&](const std::string& words) {
    result(concat("embed --hf-model model --tokens rows.json --output e.safetensors ", words));
    return floats(SafetensorsFile(folder_.path("e.safetensors")), "embeddings");
  };
  const std::vector<float> first = vectors(""), mean = vectors("--pooling mean");
  EXPECT_EQ(first, vectors("--pooling cls"));
  folder_.write("model/1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  EXPECT_EQ(mean, vectors(""));
  EXPECT_NE(mean, first);
  folder_.write("model/1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  expect_refused("embed --hf-model model --tokens rows.json --output e",
                 {"pooling_mode_max_tokens", "--pooling"});
}

}  // namespace
}  // namespace bev
