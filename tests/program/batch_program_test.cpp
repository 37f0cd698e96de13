// Batches of named fields: score --batch and train --batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Outcome bevatron(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron ", words));
}

std::string golden(const std::string& name) {
  return BEV_SOURCE_DIR "/tests/golden/models/" + name;
}

struct Scores {
  json line;
  Shape shape;  // of the logits
  std::vector<float> logits;

  std::vector<float> at(std::int64_t row, std::int64_t column) const {
    std::int64_t width = shape[2];
    auto begin = logits.begin() + (row * shape[1] + column) * width;
    return {begin, begin + width};
  }
};

Scores score(const TempFolder& folder, const std::string& words) {
  Scores scores;
  Outcome run = bevatron(folder, concat("score --logits-out l.safetensors ", words));
  EXPECT_EQ(run.code, 0) << words << "\n" << run.err;
  if (run.code != 0) return scores;
  scores.line = json::parse(run.out);
  SafetensorsFile file(folder.path("l.safetensors"));
  TensorBytes logits = file.tensor("logits");
  scores.shape = logits.shape;
  scores.logits.resize(logits.bytes.size() / sizeof(float));
  std::memcpy(scores.logits.data(), logits.bytes.data(), logits.bytes.size());
  return scores;
}

Scores score_batch(const TempFolder& folder, const std::string& model, const json& batch,
                   const std::string& more = "") {
  write_file(folder.path("b.json"), batch.dump());
  return score(folder, concat("--hf-model ", model, " --batch b.json ", more));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

void expect_zeros(const std::vector<float>& values) {
  EXPECT_EQ(values, std::vector<float>(values.size()));
}

const json kRows = {{5, 9, 17, 3, 88, 41, 2}, {11, 6, 4}, {7, 7, 30, 21, 9}};

// The rows padded with masked tokens on either side, seven in total.
json padded(const char* side) {
  json batch = {{"input_ids", json::array()}, {"attention_mask", json::array()}};
  for (const json& row : kRows) {
    json ids = json::array(), mask = json::array();
    std::size_t padding = 7 - row.size();
    auto pad = [&] {
      for (std::size_t i = 0; i < padding; ++i) {
        ids.push_back(i + 1);
        mask.push_back(0);
      }
    };
    if (std::string_view(side) == "left") pad();
    for (const json& id : row) {
      ids.push_back(id);
      mask.push_back(1);
    }
    if (std::string_view(side) == "right") pad();
    batch["input_ids"].push_back(ids);
    batch["attention_mask"].push_back(mask);
  }
  return batch;
}

TEST(BatchProgram, WithoutAMaskABatchIsItsTokensToTheBit) {
  TempFolder folder;
  for (const char* name : {"llama_gqa", "gpt2", "mistral_window_mqa"}) {
    SCOPED_TRACE(name);
    const std::string model = concat("--hf-model ", golden(name)),
                      file = golden(concat(name, "/tokens.json"));
    Scores tokens = score(folder, concat(model, " --grads-out t.safetensors --tokens ", file));
    Scores batch = score(folder, concat(model, " --grads-out b.safetensors --batch ", file));
    EXPECT_EQ(tokens.line, batch.line);
    EXPECT_TRUE(tokens.shape == batch.shape);
    EXPECT_EQ(tokens.logits, batch.logits);
    EXPECT_TRUE(read_file(folder.path("t.safetensors")) == read_file(folder.path("b.safetensors")));
  }
}

TEST(BatchProgram, PaddingChangesNothingAndHasNoLogits) {
  TempFolder folder;
  for (const char* name : {"llama_gqa", "mistral_window_mqa"}) {
    SCOPED_TRACE(name);
    Scores plain = score_batch(folder, golden(name), {{"input_ids", kRows}});
    Scores right = score_batch(folder, golden(name), padded("right"));
    Scores left = score_batch(folder, golden(name), padded("left"));
    EXPECT_EQ(right.line, plain.line);
    EXPECT_EQ(right.logits, plain.logits);
    EXPECT_EQ(left.line["tokens"], plain.line["tokens"]);
    EXPECT_NEAR(left.line["loss"].get<double>(), plain.line["loss"].get<double>(), 1e-5);
    ASSERT_TRUE(left.shape == plain.shape);
    for (std::int64_t row = 0; row < 3; ++row) {
      auto length = std::ssize(kRows[static_cast<std::size_t>(row)]);
      for (std::int64_t column = 0; column < 7 - length; ++column) {
        expect_zeros(left.at(row, column));
        expect_zeros(right.at(row, length + column));
      }
      for (std::int64_t column = 0; column < length; ++column) {
        EXPECT_LT(largest_difference(left.at(row, 7 - length + column), plain.at(row, column)),
                  1e-4);
      }
    }
  }
}

// A copy of gpt2 whose learned positions are those of the given columns.
std::string moved_positions(const TempFolder& folder, const std::vector<std::size_t>& columns) {
  std::string content = read_file(golden("gpt2/model.safetensors"));
  SafetensorsFile file(golden("gpt2/model.safetensors"));
  TensorBytes table = file.tensor("transformer.wpe.weight");
  std::string bytes(reinterpret_cast<const char*>(table.bytes.data()), table.bytes.size());
  std::size_t begin = content.find(bytes), row = bytes.size() / 48;
  EXPECT_NE(begin, content.npos);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    content.replace(begin + i * row, row, bytes.substr(columns[i] * row, row));
  }
  make_directories(folder.path("moved"));
  write_file(folder.path("moved/config.json"), read_file(golden("gpt2/config.json")));
  write_file(folder.path("moved/model.safetensors"), content);
  return "moved";
}

// Checked by learned positions: a masked row is equal to the row of the remaining tokens at their
// columns.
TEST(BatchProgram, TokensStayInTheirColumnsWhateverIsMasked) {
  TempFolder folder;
  struct Case {
    json mask;
    std::vector<std::size_t> kept;
    json labels;  // of the row of remaining tokens: those of masked ones are ignored
  };
  const Case cases[] = {{{0, 0, 1, 1, 1, 1}, {2, 3, 4, 5}, {17, 3, 88, 41}},
                        {{1, 1, 0, 1, 0, 1}, {0, 1, 3, 5}, {5, 9, -100, -100}},
                        {{0, 1, 0, 0, 1, 1}, {1, 4, 5}, {9, -100, 41}}};
  const json ids = {5, 9, 17, 3, 88, 41};
  for (const Case& row : cases) {
    SCOPED_TRACE(row.mask.dump());
    Scores masked = score_batch(
        folder, golden("gpt2"),
        {{"input_ids", json::array({ids})}, {"attention_mask", json::array({row.mask})}});
    json kept = json::array();
    for (std::size_t column : row.kept) kept.push_back(ids[column]);
    Scores plain =
        score_batch(folder, moved_positions(folder, row.kept),
                    {{"input_ids", json::array({kept})}, {"labels", json::array({row.labels})}});
    EXPECT_EQ(masked.line["loss"], plain.line["loss"]);
    EXPECT_EQ(masked.line["tokens"], plain.line["tokens"]);
    EXPECT_EQ(masked.shape[1], 6);
    for (std::size_t i = 0; i < row.kept.size(); ++i) {
      EXPECT_EQ(masked.at(0, static_cast<std::int64_t>(row.kept[i])),
                plain.at(0, static_cast<std::int64_t>(i)));
    }
    for (std::int64_t column = 0; column < 6; ++column) {
      if (row.mask[static_cast<std::size_t>(column)] == 0) expect_zeros(masked.at(0, column));
    }
  }
}

TEST(BatchProgram, LayoutsScoreMaskedBatchesAlike) {
  TempFolder folder;
  json batch = padded("left");
  batch["attention_mask"][0] = {1, 0, 1, 1, 0, 0, 1};  // with holes
  for (const char* name : {"llama_gqa", "gpt2"}) {
    Scores one = score_batch(folder, golden(name), batch);
    for (const char* layout : {"--tp 2 --sequence-parallel", "--pp 2", "--cp 2",
                               "--cp 2 --cp-comm-type a2a", "--dp 2", "--pp 2 --dp 2 --cp 2"}) {
      SCOPED_TRACE(concat(name, " ", layout));
      Scores many = score_batch(folder, golden(name), batch, layout);
      EXPECT_EQ(many.line["tokens"], one.line["tokens"]);
      EXPECT_NEAR(many.line["loss"].get<double>(), one.line["loss"].get<double>(), 1e-5);
      EXPECT_NEAR(many.line["grad_norm"].get<double>(), one.line["grad_norm"].get<double>(), 1e-4);
      ASSERT_TRUE(many.shape == one.shape);
      EXPECT_LT(largest_difference(many.logits, one.logits), 1e-4);
    }
  }
}

// Trains a small model in f64; returns the metrics without timings.
json train(const TempFolder& folder, const std::string& words) {
  Outcome run = bevatron(
      folder, concat("train --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size "
                     "64 --max-position-embeddings 16 --lr 0.01 --fp64 --loss-svg= "
                     "--metrics-out m.jsonl ",
                     words));
  EXPECT_EQ(run.code, 0) << run.err;
  json rows = json::array();
  for (const std::string& line :
       split(std::string(trim(read_file(folder.path("m.jsonl")))), '\n')) {
    json row = json::parse(line);
    rows.push_back({row["iteration"], row["loss"], row["grad_norm"], row["batch_size"]});
  }
  return rows;
}

TEST(BatchProgram, TrainsOnBatchesAsOnTheirTokens) {
  TempFolder folder;
  const json rows = json::array({json::array({{1, 2, 3, 4}, {5, 6}}), json::array({{7, 8, 9}}),
                                 json::array({{9, 8}, {4, 4, 4}, {1, 2, 60}})});
  json batches = json::array(), masked = json::array();
  for (const json& batch : rows) {
    batches.push_back({{"input_ids", batch}});
    json ids = batch, mask = json::array();
    for (json& row : ids) {
      json ones = json::array();
      for (std::size_t i = 0; i < 6; ++i) {
        ones.push_back(i < row.size() ? 1 : 0);
        if (i >= row.size()) row.push_back(63);
      }
      mask.push_back(ones);
    }
    masked.push_back({{"input_ids", ids}, {"attention_mask", mask}});
  }
  write_file(folder.path("t.json"), json::object({{"batches", rows}}).dump());
  write_file(folder.path("b.json"), json::object({{"batches", batches}}).dump());
  write_file(folder.path("m.json"), json::object({{"batches", masked}}).dump());
  json expected = train(folder, "--token-batches t.json");
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(train(folder, "--batches b.json"), expected);
  EXPECT_EQ(train(folder, "--batches m.json"), expected);
  // A stopped run resumes with the next batch.
  EXPECT_EQ(train(folder, "--batches m.json --save run --exit-interval 2").size(), 2u);
  EXPECT_EQ(train(folder, "--batches m.json --load run"), expected);
  json two = train(folder, "--batches m.json --dp 2");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(two[i][1].get<double>(), expected[i][1].get<double>(), 1e-10);
    EXPECT_EQ(two[i][3], expected[i][3]);
  }
}

TEST(BatchProgram, TheFirstLossOfABatchIsThatOfScore) {
  TempFolder folder;
  json batch = padded("left");
  batch["labels"] = batch["input_ids"];
  batch["labels"][0] = {5, -100, 17, -100, 88, 1, 2};
  Scores scores = score_batch(folder, golden("llama_gqa"), batch, "--fp64");
  write_file(folder.path("t.json"), json::object({{"batches", {batch, batch}}}).dump());
  Outcome run = bevatron(folder, concat("train --hf-model ", golden("llama_gqa"),
                                        " --batches t.json --fp64 --loss-svg= --train-iters 1 "
                                        "--metrics-out m.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  json metrics = json::parse(split(read_file(folder.path("m.jsonl")), '\n')[0]);
  EXPECT_NEAR(metrics["loss"].get<double>(), scores.line["loss"].get<double>(), 1e-12);
  EXPECT_NEAR(metrics["grad_norm"].get<double>(), scores.line["grad_norm"].get<double>(), 1e-9);
}

TEST(BatchProgram, BadBatchesAreRefusedByName) {
  TempFolder folder;
  write_file(folder.path("good.json"), R"({"input_ids": [[1, 2, 3]]})");
  write_file(folder.path("hole.json"),
             R"({"input_ids": [[1, 2], [1, 2, 3]], "attention_mask": [[1, 1], [1, 0, 1]]})");
  write_file(folder.path("unused.json"), R"({"input_ids": [[1]], "token_type_ids": [[0]]})");
  write_file(folder.path("unknown.json"), R"({"input_ids": [[1]], "label": [[0]]})");
  write_file(folder.path("batches.json"), R"({"batches": [{"input_ids": [[1, 2], [1, 2, 3]],
             "attention_mask": [[1, 1], [1, 0, 1]]}]})");
  write_file(folder.path("empty.json"), R"({"input_ids": [[1]], "attention_mask": [[0]]})");
  std::vector<int> mask(49, 0);
  mask[48] = 1;
  write_file(folder.path("beyond.json"),
             json{{"input_ids", {std::vector<int>(49, 1)}}, {"attention_mask", {mask}}}.dump());
  const std::string gpt2 = concat("score --hf-model ", golden("gpt2"), " "),
                    window = concat(" --hf-model ", golden("mistral_window_mqa"), " "),
                    tiny =
                        "train --num-layers 1 --hidden-size 8 --num-attention-heads 1 "
                        "--vocab-size 64 --train-iters 1 ";
  struct Case {
    std::string words;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {gpt2, {"--tokens: is missing", "--batch"}},
      {gpt2 + "--tokens good.json --batch good.json", {"--batch: excludes --tokens"}},
      {gpt2 + "--batch none.json", {"none.json"}},
      {gpt2 + "--batch unused.json", {"unused.json", "does not use token_type_ids"}},
      {gpt2 + "--batch unknown.json", {"'label' is no field", "did you mean labels?"}},
      {gpt2 + "--batch empty.json", {"attention_mask row 0", "all tokens are masked"}},
      {gpt2 + "--batch beyond.json", {"49", "48 learned positions"}},
      {"score" + window + "--batch hole.json",
       {"hole.json: attention_mask row 1 column 1", "a window of"}},
      {"train" + window + "--batches batches.json",
       {"batches.json: batches entry 0: attention_mask row 1 column 1", "a window of"}},
      {tiny + "--batches good.json", {"good.json", "no 'batches'"}},
      {tiny + "--batches batches.json --token-batches good.json", {"--token-batches", "--batches"}},
      {tiny + "--batches batches.json --mock-data", {"--mock-data", "--batches"}},
      {tiny + "--batches batches.json --global-batch-size 2",
       {"--global-batch-size: a replay has the batch sizes of its file (--batches)"}},
      {tiny + "--batches batches.json --eval-interval 1", {"--eval-interval: a replay"}},
      {"train --num-layers 1 --batches batches.json", {"--num-attention-heads"}},
  };
  for (const Case& bad : cases) {
    Outcome run = bevatron(folder, bad.words);
    EXPECT_EQ(run.code, 2) << bad.words << "\n" << run.err;
    for (const std::string& part : bad.says) EXPECT_THAT(run.err, HasSubstr(part)) << bad.words;
    EXPECT_EQ(run.err.find("bug in bevatron"), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace bev
