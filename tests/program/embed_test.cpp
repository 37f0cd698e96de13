// embed, as a user calls it.
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
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = BEV_SOURCE_DIR "/tests/golden/models/";

class Embed : public testing::Test {
 protected:
  Embed() {
    folder_.write("rows.json", R"({"input_ids": [[5, 6, 7], [8], [9, 10, 3, 4, 11, 6, 2]]})");
  }

  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron embed ", words));
  }

  // The vectors of the file that a run writes.
  std::vector<std::vector<double>> vectors(const std::string& words) {
    Outcome outcome = run(words + " --output e.safetensors");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (outcome.code != 0) return {};
    SafetensorsFile file(folder_.path("e.safetensors"));
    TensorBytes tensor = file.tensor("embeddings");
    EXPECT_EQ(tensor.shape.ndim(), 2);
    auto rows = static_cast<std::size_t>(tensor.shape[0]);
    auto width = static_cast<std::size_t>(tensor.shape[1]);
    json line = json::parse(outcome.out);
    EXPECT_EQ(line["embeddings"], rows);
    EXPECT_EQ(line["dim"], width);
    tokens_ = line["tokens"];
    dtype_ = tensor.dtype;
    std::vector<std::vector<double>> out(rows, std::vector<double>(width));
    const std::byte* at = tensor.bytes.data();
    for (auto& row : out) {
      for (double& value : row) {
        float narrow = 0;
        if (dtype_ == Dtype::kF64) {
          std::memcpy(&value, at, sizeof value);
        } else {
          std::memcpy(&narrow, at, sizeof narrow);
          value = narrow;
        }
        at += size_of(dtype_);
      }
    }
    return out;
  }

  static void expect_near(const std::vector<std::vector<double>>& a,
                          const std::vector<std::vector<double>>& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].size(), b[i].size());
      for (std::size_t h = 0; h < a[i].size(); ++h) EXPECT_NEAR(a[i][h], b[i][h], tolerance);
    }
  }

  TempFolder folder_;
  std::int64_t tokens_ = 0;
  Dtype dtype_ = Dtype::kF32;
  std::string rows_ = concat("--hf-model ", kGolden, "llama_gqa --tokens rows.json ");
};

TEST_F(Embed, LayoutsAndPoolingsGiveTheSameFile) {
  for (std::string pooling : {"", "--pooling mean", "--pooling cls --normalize"}) {
    auto one = vectors(rows_ + "--fp64 " + pooling);
    ASSERT_EQ(one.size(), 3u);
    EXPECT_EQ(tokens_, 11);
    EXPECT_EQ(dtype_, Dtype::kF64);
    for (std::string layout : {"--tp 2", "--pp 2", "--dp 2", "--cp 2", "--tp 2 --pp 2 --dp 2"}) {
      expect_near(vectors(concat(rows_, "--fp64 ", pooling, " ", layout)), one, 1e-12);
    }
    expect_near(vectors(rows_ + pooling), one, 1e-4);
    EXPECT_EQ(dtype_, Dtype::kF32);
  }
}

TEST_F(Embed, PoolingsAreWhatTheySay) {
  auto last = vectors(rows_ + "--fp64"), mean = vectors(rows_ + "--fp64 --pooling mean");
  auto cls = vectors(rows_ + "--fp64 --pooling cls");
  expect_near({last[1], last[1]}, {mean[1], cls[1]}, 1e-12);  // a single token
  // In a causal model, the prefixes of a row give its tokens.
  folder_.write("rows.json", R"({"input_ids": [[5], [5, 6], [5, 6, 7]]})");
  auto prefixes = vectors(rows_ + "--fp64");
  for (std::size_t h = 0; h < mean[0].size(); ++h) {
    EXPECT_NEAR(mean[0][h], (prefixes[0][h] + prefixes[1][h] + prefixes[2][h]) / 3, 1e-12);
    EXPECT_NEAR(cls[0][h], prefixes[0][h], 1e-12);
    EXPECT_NEAR(last[0][h], prefixes[2][h], 1e-12);
  }
  for (const auto& row : vectors(rows_ + "--normalize --pooling mean")) {
    double squares = 0;
    for (double value : row) squares += value * value;
    EXPECT_NEAR(squares, 1, 1e-5);
  }
}

TEST_F(Embed, TextsComeFromJsonLines) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder_.write(concat("m/", name), read_file(concat(kGolden, "gpt2/", name)));
  }
  folder_.write("m/tokenizer.json", byte_tokenizer_json());
  folder_.write("t.jsonl", "\"A!\"\n\n{\"id\": 4, \"text\": \"B \"}\n{\"input\": \"$\"}\n");
  auto texts = vectors("--hf-model m --input t.jsonl --fp64");
  EXPECT_EQ(tokens_, 5);
  folder_.write("rows.json", R"({"input_ids": [[65, 33], [66, 32], [36]]})");
  expect_near(texts, vectors("--hf-model m --tokens rows.json --fp64"), 1e-12);
  // More rows than are read at a time.
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "\"A!\"\n";
  folder_.write("t.jsonl", many);
  auto all = vectors("--hf-model m --input t.jsonl --fp64 --dp 2");
  ASSERT_EQ(all.size(), 5000u);
  EXPECT_EQ(tokens_, 10000);
  expect_near({all.front(), all.back()}, {texts[0], texts[0]}, 1e-12);
}

TEST_F(Embed, SaysWhatIsWrong) {
  auto refuse = [&](const std::string& words, const std::vector<std::string>& parts) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part)) << words;
    EXPECT_FALSE(path_exists(folder_.path("o.safetensors"))) << words;
  };
  refuse("", {"--hf-model: is missing", "--input: is missing", "--output: is missing"});
  refuse(rows_ + "--input t.jsonl --output o.safetensors", {"--tokens: excludes --input"});
  refuse(rows_ + "--output o.safetensors --pooling sum", {"--pooling", "cls", "mean", "last"});
  folder_.write("rows.json", R"({"input_ids": [[5], [], [7]]})");
  refuse(rows_ + "--output o.safetensors", {"rows.json", "row 1"});
  folder_.write("t.jsonl", "\"A\"\n");
  refuse(concat("--hf-model ", kGolden, "gpt2 --input t.jsonl --output o.safetensors"),
         {"--input", "tokenizer.json", "--tokens"});
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder_.write(concat("m/", name), read_file(concat(kGolden, "gpt2/", name)));
  }
  folder_.write("m/tokenizer.json", byte_tokenizer_json());
  std::string texts = "--hf-model m --input t.jsonl --output o.safetensors --tp 2";
  folder_.write("t.jsonl", "\"A\"\n{\"text\": \"\"}\n");
  refuse(texts, {"t.jsonl:2", "gives no token"});
  folder_.write("t.jsonl", "\"A\"\n\n{\"texts\": 3}\n");
  refuse(texts, {"t.jsonl:3", "has no text"});
  folder_.write("t.jsonl", "\"A\"\n{\"text\"\n");
  refuse(texts, {"t.jsonl:2"});
  folder_.write("t.jsonl", "\n");
  refuse(texts, {"t.jsonl: has no text"});
  folder_.write("t.jsonl", concat("\"", std::string(400, 'x'), "\"\n"));
  refuse(texts, {"t.jsonl:1", "400 tokens", "positions"});
  refuse("--hf-model m --input none.jsonl --output o.safetensors", {"none.jsonl"});
}

}  // namespace
}  // namespace bev
