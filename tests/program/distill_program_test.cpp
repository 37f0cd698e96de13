// Distillation as a user runs it: train --objective distill.
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

// A student and a teacher of another size.
class Distillation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = std::make_unique<TempFolder>();
    std::string text;
    for (int i = 0; i < 400; ++i) text += concat("line ", i * i % 97, " of ", i % 7, "\n");
    models_->write("book.txt", text);
    make("student",
         "--num-layers 4 --hidden-size 32 --num-query-groups 2 --train-iters 1 --seed 3");
    make("teacher",
         "--num-layers 3 --hidden-size 48 --num-query-groups 4 --train-iters 30 --seed 4");
  }
  static void TearDownTestSuite() { models_.reset(); }
  static void make(const char* name, const char* sizes) {
    Outcome run = run_shell(
        *models_,
        concat(BEV_BINARY_DIR, "/bevatron train --family llama --ffn-hidden-size 64 ",
               "--num-attention-heads 4 --text book.txt --split 1,0,0 --seq-length 24 ",
               "--micro-batch-size 8 --lr 1e-2 --loss-svg '' --export-hf ", name, " ", sizes));
    ASSERT_EQ(run.code, 0) << run.err;
  }

  Outcome train(const std::string& more) const {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron train --hf-model ",
                                     models_->path("student"), " --objective distill ",
                                     "--lr 1e-2 --lr-decay-style constant --loss-svg '' ",
                                     "--metrics-out m.jsonl ", more));
  }
  std::vector<json> metrics(const std::string& more) const {
    Outcome run = train(more);
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<json> out;
    for (const std::string& line : split(read_file(folder_.path("m.jsonl")), '\n')) {
      if (!line.empty()) out.push_back(json::parse(line));
    }
    return out;
  }
  static std::string text_data() {
    return concat("--text ", models_->path("book.txt"), " --data-cache-path ",
                  models_->path("cache"),
                  " --split 1,0,0 --seq-length 24 --micro-batch-size 2 "
                  "--global-batch-size 8 ");
  }
  static std::string by_teacher() { return concat(text_data(), "--teacher-model ", teacher()); }
  static std::string teacher() { return models_->path("teacher"); }

  static std::unique_ptr<TempFolder> models_;
  TempFolder folder_;
};
std::unique_ptr<TempFolder> Distillation::models_;

// Logits [B][S][V] of a model as JSON.
json logits_of(const TempFolder& folder, const std::string& model) {
  Outcome run = run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron score --hf-model ", model,
                                         " --batch rows.json --logits-out l.safetensors"));
  EXPECT_EQ(run.code, 0) << run.err;
  SafetensorsFile file(folder.path("l.safetensors"));
  TensorBytes tensor = file.tensor("logits");
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  json out = json::array();
  auto at = values.begin();
  for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
    json rows = json::array();
    for (std::int64_t s = 0; s < tensor.shape[1]; ++s, at += tensor.shape[2]) {
      rows.push_back(std::vector<float>(at, at + tensor.shape[2]));
    }
    out.push_back(rows);
  }
  return out;
}

// The loss of a step is that of the objective on the logits of both models.
TEST_F(Distillation, TheLossIsThatOfTheLogits) {
  json rows{{"input_ids", {{76, 105, 110, 101, 32}, {52, 50, 32, 111, 102}}},
            {"labels", {{76, 105, 110, 101, 32}, {-100, -100, 32, 111, 102}}}};
  write_file(folder_.path("rows.json"), rows.dump());
  write_file(folder_.path("batches.json"), json{{"batches", {rows}}}.dump());
  struct Case {
    const char *flags, *settings;
  };
  const Case cases[] = {
      {"", "{}"},
      {"--divergence reverse_kl --distill-temperature 2 --temperature-squared true",
       R"({"divergence": "reverse_kl", "temperature": 2, "temperature_squared": true})"},
      {"--divergence jsd --jsd-beta 0.3 --distill-alpha 0.6",
       R"({"divergence": "jsd", "jsd_beta": 0.3, "alpha": 0.6})"},
      {"--distill-top-k 4 --distill-tail ghost", R"({"top_k": 4, "tail": "ghost"})"},
      {"--distill-top-k 4 --distill-tail renormalise", R"({"top_k": 4, "tail": "renormalise"})"}};
  json student = logits_of(folder_, models_->path("student"));
  json teachers = logits_of(folder_, teacher());
  for (const Case& one : cases) {
    SCOPED_TRACE(one.flags);
    json input = json::parse(one.settings);
    input["student_logits"] = student;
    input["teacher_logits"] = teachers;
    // A token has the loss of the one that follows.
    input["labels"] = {{105, 110, 101, 32, -100}, {-100, 32, 111, 102, -100}};
    input["mask"] = {{1, 1, 1, 1, 0}, {0, 1, 1, 1, 0}};
    write_file(folder_.path("in.json"), input.dump());
    Outcome run =
        run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron objective distill --input in.json"));
    ASSERT_EQ(run.code, 0) << run.err;
    json expected = json::parse(run.out);
    json found = metrics(concat("--batches batches.json --train-iters 1 --fp64 --teacher-model ",
                                teacher(), " ", one.flags))
                     .at(0);
    EXPECT_NEAR(found["loss"].get<double>(), expected["loss"].get<double>(), 1e-5);
    EXPECT_NEAR(found["divergence"].get<double>(), expected["metrics"]["divergence"].get<double>(),
                1e-5);
  }
}

TEST_F(Distillation, LayoutsGiveOneRanksLosses) {
  const std::string run = concat(
      "--fp64 --train-iters 3 --distill-temperature 1.5 --distill-alpha 0.7 ", by_teacher(), " ");
  std::vector<json> expected = metrics(run);
  ASSERT_EQ(expected.size(), 3U);
  for (const char* layout :
       {"--tp 2", "--tp 4", "--tp 2 --sequence-parallel", "--pp 2", "--cp 2",
        "--dp 2 --data-parallel-sharding-strategy optim_grads_params", "--tp 2 --pp 2"}) {
    SCOPED_TRACE(layout);
    std::vector<json> found = metrics(concat(run, layout));
    ASSERT_EQ(found.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      for (const char* key : {"loss", "divergence", "cross entropy", "grad_norm"}) {
        double wanted = expected[i][key];
        EXPECT_NEAR(found[i][key].get<double>(), wanted, 1e-9 * std::max(1.0, wanted)) << key;
      }
    }
  }
}

// The teacher's likeliest tokens on disk give the losses of the teacher itself, whatever the
// layout.
TEST_F(Distillation, StoredLogitsGiveTheTeachersLosses) {
  const std::string run = concat(
      "--fp64 --train-iters 3 --distill-temperature 1.5 --distill-alpha 0.7 --distill-tail ghost ",
      text_data());
  const std::string top = concat("--distill-top-k 6 --teacher-model ", teacher());
  std::vector<json> expected = metrics(concat(run, top, " --logits-save-dir kept"));
  ASSERT_EQ(expected.size(), 3U);
  for (const char* layout :
       {"", "--tp 2", "--tp 4", "--tp 2 --sequence-parallel", "--pp 2", "--cp 2",
        "--dp 2 --data-parallel-sharding-strategy optim_grads_params", "--micro-batch-size 4"}) {
    SCOPED_TRACE(layout);
    std::vector<json> found = metrics(concat(run, "--logits-load-dir kept ", layout));
    ASSERT_EQ(found.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      for (const char* key : {"loss", "divergence", "cross entropy", "grad_norm"}) {
        EXPECT_NEAR(found[i][key].get<double>(), expected[i][key].get<double>(), 1e-6) << key;
      }
    }
  }
  // Written in another layout they are the same.
  metrics(concat(run, top, " --logits-save-dir apart --cp 2 --tp 2"));
  std::vector<json> found = metrics(concat(run, "--logits-load-dir apart"));
  EXPECT_NEAR(found.at(2)["loss"].get<double>(), expected[2]["loss"].get<double>(), 1e-6);
  metrics(concat(run, top, " --logits-save-dir half --logits-save-dtype fp16"));
  found = metrics(concat(run, "--logits-load-dir half"));
  EXPECT_NEAR(found.at(2)["loss"].get<double>(), expected[2]["loss"].get<double>(), 1e-3);
  // Fewer tokens than were kept.
  expected = metrics(concat(run, "--distill-top-k 3 --teacher-model ", teacher()));
  found = metrics(concat(run, "--distill-top-k 3 --logits-load-dir kept"));
  EXPECT_NEAR(found.at(2)["loss"].get<double>(), expected[2]["loss"].get<double>(), 1e-6);
  auto fails = [&](const std::string& words, const std::string& why) {
    Outcome failed = train(words);
    EXPECT_EQ(failed.code, 2) << words;
    EXPECT_THAT(failed.err, HasSubstr(why)) << words;
  };
  fails(concat("--train-iters 1 --logits-load-dir kept ", text_data()), "--distill-temperature");
  fails(concat(run, "--distill-top-k 7 --logits-load-dir kept"), "--distill-top-k");
  fails(concat(run, "--logits-load-dir kept --seq-length 20"), "has nothing of a sample of 20");
  fails(concat(run, "--distill-top-k 5 --logits-save-dir kept --teacher-model ", teacher()),
        "holds logits whose top-k is 6, and this run's is 5");
}

TEST_F(Distillation, AModelHasNothingToLearnFromItself) {
  json found = metrics(concat("--fp64 --train-iters 1 ", text_data(), "--teacher-model ",
                              models_->path("student")))[0];
  EXPECT_NEAR(found["loss"].get<double>(), 0, 1e-15);
  EXPECT_NEAR(found["grad_norm"].get<double>(), 0, 1e-12);
}

TEST_F(Distillation, TheStudentComesCloserToTheTeacher) {
  for (const char* divergence : {"forward_kl", "reverse_kl", "jsd"}) {
    std::vector<json> found =
        metrics(concat("--train-iters 25 --divergence ", divergence, " ", by_teacher()));
    ASSERT_EQ(found.size(), 25U);
    EXPECT_LT(found[24]["divergence"].get<double>(), 0.6 * found[0]["divergence"].get<double>())
        << divergence;
  }
}

TEST_F(Distillation, BadInputIsNamed) {
  auto fails = [&](const std::string& words, const std::string& why) {
    Outcome run = train(concat("--train-iters 1 ", words));
    EXPECT_EQ(run.code, 2) << words;
    EXPECT_THAT(run.err, HasSubstr(why));
  };
  fails("--mock-data --seq-length 8", "--teacher-model: is missing");
  fails(concat("--mock-data --seq-length 8 --teacher-model ", BEV_SOURCE_DIR,
               "/tests/golden/models/gpt2"),
        "has a vocabulary of");
  fails(concat(by_teacher(), " --divergence kl"), "--divergence");
  fails(concat(by_teacher(), " --logits-save-dir kept"), "give --distill-top-k");
  fails(concat(by_teacher(), " --logits-load-dir kept"), "takes the place of --teacher-model");
  fails(concat(text_data(), " --logits-load-dir kept"), "kept: has no logits.json");
  fails(concat(by_teacher(), " --logits-save-dtype fp16"), "needs --logits-save-dir");
}

}  // namespace
}  // namespace bev
