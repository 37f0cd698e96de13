// The first hour of a new user: training runs, their reports and evaluation.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/program/first_hour.h"

namespace bev::first_hour {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// tiny_train on one thread with the learning rate 1e-3.
std::string small_run(const std::string& more) {
  return tiny_train("--lr 1e-3 --num-threads 1 " + more);
}

std::vector<json> rows_of(const TempFolder& folder, const std::string& file) {
  std::vector<json> rows;
  for (const std::string& line : split(read_file(folder.path(file)), '\n')) {
    if (!line.empty()) rows.push_back(json::parse(line));
  }
  return rows;
}

// "iteration/split/name" of the evaluations in a metrics file.
std::vector<std::string> evaluations_in(const std::vector<json>& rows) {
  std::vector<std::string> found;
  for (const json& row : rows) {
    if (!row.contains("split")) continue;
    double loss = row.at("loss");
    EXPECT_NEAR(row.at("perplexity"), std::exp(loss), 1e-9 * std::exp(loss));
    found.push_back(concat(row.at("iteration").get<int>(), "/", row.at("split").get<std::string>(),
                           "/", row.at("name").get<std::string>()));
  }
  return found;
}

std::string replace_once(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

// The word after the last `before` in a text.
std::string word_after(const std::string& text, const std::string& before) {
  std::size_t at = text.rfind(before);
  if (at == std::string::npos) return "";
  at += before.size();
  return text.substr(at, text.find_first_of(" |,<\n", at) - at);
}

std::vector<std::string> steps_in(const TempFolder& folder, const std::string& name) {
  std::vector<std::string> steps = list_directory(folder.path(name));
  std::erase_if(steps, [](const std::string& step) { return !step.starts_with("iter_"); });
  return steps;
}

TEST(FirstHour, AFullDiskUnderReportsEndsNoRun) {
  TempFolder folder;
  write_corpus(folder);
  Outcome outcome = bevatron(folder, small_run("--train-iters 12 --save S "
                                               "--metrics-out /dev/full --loss-svg /dev/full "
                                               "--profile-trace /dev/full"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* flag : {"metrics-out /dev/full", "loss-svg", "profile-trace"}) {
    EXPECT_THAT(outcome.err, HasSubstr(concat("warning: --", flag,
                                              ": cannot write /dev/full: No "
                                              "space left on device")));
  }
  EXPECT_THAT(outcome.err, HasSubstr("(10 times now)"));  // said again, but rarely
  EXPECT_EQ(rows_of(folder, "S/metrics.jsonl").size(), 12u);
  EXPECT_EQ(steps_in(folder, "S"), (std::vector<std::string>{"iter_0000012"}));
  EXPECT_FALSE(path_exists("/dev/full.tmp"));

  // A limit that files reach in the middle of a record; checkpoints would not fit either.
  outcome = bevatron(folder,
                     small_run("--train-iters 40 --data-cache-path S/cache --metrics-out m.jsonl "
                               "--tensorboard-dir tb"),
                     "ulimit -f 8;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: --metrics-out m.jsonl: cannot write"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: --tensorboard-dir tb: cannot write"));
  // What cannot be a path at all is said before anything is computed.
  for (const char* flags :
       {"--metrics-out corpus.txt/m", "--loss-svg corpus.txt/a/b.svg",
        "--tensorboard-dir corpus.txt", "--profile-trace . --profile-step-start 0"}) {
    outcome = bevatron(folder, small_run(concat("--train-iters 1 --save T ", flags)));
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(split(flags, ' ')[0]));
    EXPECT_FALSE(path_exists(folder.path("T")));
  }
}

TEST(FirstHour, AFailedExportComesAfterAllThatIsSaved) {
  TempFolder folder;
  write_corpus(folder);
  // Each of two shards fits the limit of 64 KiB, the exported file does not.
  Outcome outcome =
      bevatron(folder,
               small_run("--position-embedding-type rope --normalization RMSNorm --swiglu "
                         "--disable-bias-linear --untie-embeddings-and-output-weights=false "
                         "--train-iters 4 --tp 2 --no-save-optim --save S "
                         "--export-hf out"),
               "ulimit -f 128;");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("model.safetensors.tmp: File too large"));
  EXPECT_EQ(steps_in(folder, "S"), (std::vector<std::string>{"iter_0000004"}));
  EXPECT_THAT(outcome.out, HasSubstr("loss curve: S/loss.svg"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("model: out")));
  EXPECT_TRUE(path_exists(folder.path("S/loss.svg")));
}

TEST(FirstHour, BadDataInTheMiddleSavesWhatWasTrained) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(
      bevatron(folder, "preprocess --input corpus.txt --tokenizer byte --output-prefix p").code, 0);
  std::string name;
  for (const std::string& file : list_directory(folder.path(""))) {
    if (file.ends_with(".bin")) name = file;
  }
  std::string tokens = read_file(folder.path(name));
  tokens[tokens.size() / 4 * 2 + 1] = 9;  // the upper byte of a token
  write_file(folder.path(name), tokens);
  std::string train =
      replace_once(tiny_train(concat("--vocab-size 256 --num-threads 1 --lr 1e-3 ",
                                     "--train-iters 400 --save S --loss-svg=")),
                   "--text corpus.txt", "--data-path " + name.substr(0, name.size() - 4));
  Outcome outcome = bevatron(folder, train);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("outside of a vocabulary of 256; the state after iteration "));
  EXPECT_EQ(steps_in(folder, "S").size(), 1u);
  EXPECT_THAT(outcome.out, HasSubstr("stopped by its data after "));
}

TEST(FirstHour, ANanStopSavesTheLastGoodState) {
  TempFolder folder;
  write_corpus(folder);
  std::string diverges = tiny_train("--lr 1e30 --clip-grad 0 --num-threads 1 --train-iters 20 ");
  for (const char* layout : {"", "--tp 2", "--pp 2", "--dp 2"}) {
    Outcome outcome = bevatron(folder, diverges + concat("--loss-svg= --save S ", layout));
    EXPECT_EQ(outcome.code, 1) << layout;
    EXPECT_THAT(outcome.err, HasSubstr("iteration 2: loss"));
    EXPECT_THAT(outcome.err, HasSubstr("op norm: gradient"));
    EXPECT_THAT(outcome.err, HasSubstr("the state after iteration 1 is saved in S"));
    EXPECT_EQ(steps_in(folder, "S"), (std::vector<std::string>{"iter_0000001"}));
    std::filesystem::remove_all(folder.path("S"));
  }
  Outcome outcome = bevatron(folder, diverges + "--nan-policy skip --save S --dp 2 --tp 2");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: iteration 12: loss"));
  EXPECT_THAT(outcome.err, HasSubstr("op norm: gradient"));
  EXPECT_THAT(outcome.err, HasSubstr("more than --max-consecutive-skips 10"));
  EXPECT_EQ(steps_in(folder, "S"), (std::vector<std::string>{"iter_0000012"}));
  EXPECT_EQ(bevatron(folder, diverges + "--nan-policy skip --max-consecutive-skips 19").code, 0);
}

TEST(FirstHour, OneLossEverywhereAndOneCurveOfTheWholeRun) {
  TempFolder folder;
  write_corpus(folder);
  std::string command = small_run(
      "--train-iters 10 --exit-interval 6 --eval-interval 3 --eval-iters 1 --log-interval 4 "
      "--save S --load S --metrics-out m.jsonl");
  auto curve_points = [&](const char* run) {
    std::int64_t points = 0;
    for (const std::string& line : split(read_file(folder.path(concat(run, "/loss.svg"))), '\n')) {
      points += line.starts_with("<circle") ? 1 : 0;
    }
    return points;
  };
  Outcome first = bevatron(folder, command), second = bevatron(folder, command);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(evaluations_in(rows_of(folder, "m.jsonl")),
            (std::vector<std::string>{"3/valid/valid", "6/valid/valid", "9/valid/valid",
                                      "10/valid/valid", "10/test/test"}));
  EXPECT_EQ(rows_of(folder, "m.jsonl").size(), 15u);
  EXPECT_EQ(curve_points("S"), 10 + 4);
  std::string svg = read_file(folder.path("S/loss.svg"));
  std::string told = word_after(second.out, " -> ");
  EXPECT_EQ(told.size(), 6u) << second.out;
  EXPECT_EQ(word_after(svg, ">train "), told);
  EXPECT_EQ(fmt::format("{:.4f}", std::stod(word_after(second.err, "lm loss: "))), told);
  // A third call has nothing to do and changes nothing.
  Outcome third = bevatron(folder, command);
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_THAT(third.out, HasSubstr("the run ended after iteration 10"));
  EXPECT_EQ(read_file(folder.path("S/loss.svg")), svg);
  // The curve is found again from another folder, and a file that is named twice is written once.
  Outcome fork = bevatron(
      folder, small_run("--train-iters 12 --load S --save T --metrics-out ./T//metrics.jsonl"));
  EXPECT_EQ(fork.code, 0) << fork.err;
  EXPECT_EQ(curve_points("T"), 12 + 4);
  EXPECT_EQ(rows_of(folder, "T/metrics.jsonl").size(), 17u);
}

TEST(FirstHour, TestDataIsCheckedAndEvaluated) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(
      bevatron(folder, "preprocess --input corpus.txt --tokenizer byte --output-prefix p").code, 0);
  std::string train =
      "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
      "--num-query-groups 2 --ffn-hidden-size 48 --max-position-embeddings 64 --seq-length 32 "
      "--vocab-size 256 --lr 1e-3 --num-threads 1 --loss-svg= ";
  std::string prefix;
  for (const std::string& name : list_directory(folder.path(""))) {
    if (name.ends_with(".idx")) prefix = name.substr(0, name.size() - 4);
  }
  Outcome outcome = bevatron(
      folder, concat(train, "--train-iters 2 --test-data-path nosuch --train-data-path ", prefix));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("nosuch.idx: no such file"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("iteration")));
  outcome = bevatron(
      folder, concat(train,
                     "--train-iters 2 --metrics-out m.jsonl --eval-iters 2 "
                     "--test-data-path ",
                     prefix, " --train-data-path ", prefix, " --valid-data-path ", prefix, " ",
                     prefix, " --multiple-validation-sets --validation-set-names book web"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(evaluations_in(rows_of(folder, "m.jsonl")),
            (std::vector<std::string>{"2/valid/book", "2/valid/web", "2/test/test"}));
  EXPECT_THAT(outcome.err, HasSubstr(" validation-web loss at iteration 2 | lm loss value: "));
  EXPECT_THAT(outcome.err, HasSubstr(" loss at iteration 2 on test set | lm loss value: "));
  // Evaluation only, of the test only.
  outcome = bevatron(folder, concat(train, "--skip-train --json --test-data-path ", prefix));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out).at("evaluations").at(0).at("split"), "test");
}

TEST(FirstHour, WholeSplitsGiveTheSameLossUnderEveryLayout) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, small_run("--train-iters 3 --save S --loss-svg=")).code, 0);
  std::vector<double> expected;
  for (const char* layout : {"", "--tp 2 --pp 2", "--cp 2",
                             "--dp 2 --data-parallel-sharding-strategy optim_grads_params",
                             "--dp 3 --eval-micro-batch-size 5 --eval-global-batch-size 15"}) {
    Outcome outcome =
        bevatron(folder,
                 small_run(concat("--skip-train --full-validation --load S --metrics-out ",
                                  "m.jsonl ", layout)),
                 "rm -f m.jsonl;");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<json> rows = rows_of(folder, "m.jsonl");
    EXPECT_EQ(evaluations_in(rows), (std::vector<std::string>{"3/valid/valid", "3/test/test"}));
    if (expected.empty()) expected = {rows[0].at("loss"), rows[1].at("loss")};
    EXPECT_NEAR(rows[0].at("loss"), expected[0], 1e-6) << layout;
    EXPECT_NEAR(rows[1].at("loss"), expected[1], 1e-6) << layout;
  }
  EXPECT_EQ(steps_in(folder, "S"), (std::vector<std::string>{"iter_0000003"}));
}

TEST(FirstHour, TheBestCheckpointsStayAndPatienceEnds) {
  TempFolder folder;
  write_corpus(folder);
  // With such a learning rate the first validation stays the best.
  auto stuck = [&](const std::string& more) {
    return bevatron(folder,
                    tiny_train("--lr 1e-30 --num-threads 1 --eval-interval 2 --eval-iters 1 "
                               "--loss-svg= --train-iters 20 " +
                               more));
  };
  std::string keep = "--save K --load K --save-interval 2 --keep-best 1 --exit-interval ";
  EXPECT_EQ(stuck(keep + "6").code, 0);
  EXPECT_EQ(steps_in(folder, "K"), (std::vector<std::string>{"iter_0000002", "iter_0000006"}));
  EXPECT_EQ(stuck(keep + "8").code, 0);  // resumed
  EXPECT_EQ(steps_in(folder, "K"), (std::vector<std::string>{"iter_0000002", "iter_0000008"}));

  Outcome outcome = stuck("--save P --load P --early-stop-patience 2 --exit-interval 4");
  EXPECT_EQ(steps_in(folder, "P"), (std::vector<std::string>{"iter_0000004"}));
  outcome = stuck("--save P --load P --early-stop-patience 2 --exit-interval 40");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("stopped by --early-stop-patience"));
  EXPECT_EQ(steps_in(folder, "P").back(), "iter_0000006");
  outcome = stuck("--keep-best 1 --save Q --save-interval 3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--keep-best: every checkpoint must have a validation loss"));
}

TEST(FirstHour, EpochsSetTheLength) {
  TempFolder folder;
  write_corpus(folder);
  auto iterations = [&](const char* epochs) {
    Outcome outcome = bevatron(folder, small_run(concat("--global-batch-size 16 --epochs ", epochs,
                                                        " --metrics-out m.jsonl --loss-svg=")));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NEAR(std::stod(word_after(outcome.err, "epoch: ")), std::stod(epochs), 0.08);
    json last = rows_of(folder, "m.jsonl").back();
    EXPECT_NEAR(last.at("epoch"), std::stod(epochs), 0.08);
    EXPECT_GE(last.at("epoch").get<double>(), std::stod(epochs) * 0.99);
    return last.at("iteration").get<double>();
  };
  double one = iterations("1");
  EXPECT_NEAR(iterations("2.5"), 2.5 * one, 2);
  Outcome outcome = bevatron(folder, small_run("--epochs 2 --train-iters 5"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--epochs: 2 and --train-iters both set the length"));
  outcome = bevatron(folder, small_run("--epochs 1e-9"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("less than one global batch"));
}

}  // namespace
}  // namespace bev::first_hour
