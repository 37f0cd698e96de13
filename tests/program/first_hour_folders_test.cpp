// The first hour of a new user: folders of runs, resuming, plots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/program/first_hour.h"

namespace bev::first_hour {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// What a shell finds in a run's folder.
std::string listed(const TempFolder& folder, const std::string& what) {
  return run_shell(folder, concat("ls ", what)).out;
}
std::string last_step(const TempFolder& folder, const std::string& run) {
  return std::string(trim(read_file(folder.path(run + "/latest_checkpointed_iteration.txt"))));
}
json last_json(const Outcome& outcome) {
  std::string_view text = trim(outcome.out);
  return json::parse(text.substr(text.rfind('\n') + 1));
}

TEST(FirstHour, SavingIntoAnOldRunIsRefusedUnlessToldWhatToDo) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 2 --save run")).code, 0);
  write_file(folder.path("run/notes.txt"), "mine");
  run_shell(folder, "ln -s run link; cp -r run before");
  for (const char* flags : {"--save run", "--save link/ --load elsewhere",
                            "--save run --load run --finetune", "--save run --load before"}) {
    Outcome refused = bevatron(folder, tiny_train(concat("--train-iters 3 ", flags)));
    EXPECT_EQ(refused.code, 2) << flags << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("holds a run, saved up to iteration 2"));
    EXPECT_THAT(refused.err, HasSubstr("--existing-run replace"));
  }
  EXPECT_EQ(run_shell(folder, "diff -r run before").out, "");

  // The folder is the same under another name: the run goes on.
  Outcome same = bevatron(folder, tiny_train("--train-iters 3 --save run --load ./link"));
  EXPECT_EQ(same.code, 0) << same.err;
  Outcome resumed =
      bevatron(folder, tiny_train("--train-iters 4 --save run --load elsewhere --finetune "
                                  "--existing-run resume"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("loaded iteration 3"));

  // A run that cannot begin leaves the old one where it is.
  std::string replace = "--train-iters 1 --save run --existing-run replace ";
  EXPECT_EQ(bevatron(folder, tiny_train(replace + "--hf-model nosuch")).code, 2);
  EXPECT_EQ(last_step(folder, "run"), "4");
  Outcome replaced = bevatron(folder, tiny_train(replace));
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_EQ(listed(folder, "-d run/iter*"), "run/iter_0000001\n");
  EXPECT_EQ(last_step(folder, "run/replaced-1"), "4");
  EXPECT_EQ(listed(folder, "run/notes.txt"), "run/notes.txt\n");  // not of the run
  EXPECT_EQ(bevatron(folder, tiny_train(replace)).code, 0);
  EXPECT_EQ(last_step(folder, "run/replaced-2"), "1");
  EXPECT_EQ(bevatron(folder, "checkpoint verify run/replaced-1").code, 0);
}

TEST(FirstHour, TwoRunsDoNotSaveIntoOneFolder) {
  TempFolder folder;
  write_corpus(folder);
  std::string run = concat(BEV_BINARY_DIR, "/bevatron ",
                           tiny_train("--train-iters 100000 --save run --load run "));
  auto wait = [](const std::string& file, const std::string& text) {
    return concat("for i in $(seq 500); do grep -q '", text, "' ", file,
                  " 2> /dev/null && break; sleep 0.02; done; ");
  };
  // The second run is refused by name; the first is killed, and the third takes its place.
  Outcome outcome = run_shell(
      folder,
      concat(run, "2> one & first=$!; ", wait("one", "iteration *1/"), "cp run/run.lock .; ", run,
             "2> two; echo refused $?; kill -9 $first; wait $first; cat run/run.lock; ", run,
             "2> three & third=$!; ", wait("three", "iteration *1/"),
             "kill $third; wait $third; echo ended $?; echo $first"));
  EXPECT_THAT(outcome.out, HasSubstr("refused 2")) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ended 143")) << outcome.err;
  std::string_view out = trim(outcome.out);
  std::string first(out.substr(out.rfind('\n') + 1));
  std::string refused = read_file(folder.path("two")), taken = read_file(folder.path("three"));
  EXPECT_THAT(refused, HasSubstr(concat("another run saves there (process ", first, " on ")));
  EXPECT_THAT(taken, HasSubstr(concat("was left by process ", first, " on ")));
  EXPECT_THAT(taken, HasSubstr("this run takes it over"));
  EXPECT_FALSE(path_exists(folder.path("run/run.lock")));  // also after a signal
  // A run that fails removes it too.
  EXPECT_EQ(bevatron(folder, tiny_train("--train-iters 2 --save bad --lr 1e30")).code, 1);
  EXPECT_FALSE(path_exists(folder.path("bad/run.lock")));
}

TEST(FirstHour, LoadAloneGoesOn) {
  TempFolder folder;
  write_corpus(folder);
  run_shell(folder, "mkdir there elsewhere");
  auto loss = [&](const std::string& metrics) {
    std::string text = read_file(folder.path(metrics));
    text = text.substr(0, text.find_last_of('\n'));
    json row = json::parse(text.substr(text.find_last_of('\n') + 1));
    return row["loss"].get<double>();
  };
  std::string flags = "--lr 1e-2 --adam-beta2 0.9 --save-interval 2 --tp 2 --bf16 ";
  ASSERT_EQ(bevatron(folder, tiny_train(flags + "--train-iters 6 --save whole")).code, 0);
  ASSERT_EQ(
      bevatron(folder, tiny_train(flags + "--train-iters 6 --save run --exit-interval 4")).code, 0);
  // From another folder, with another layout.
  Outcome outcome =
      bevatron(folder, "train --load ../run --tp 1 --exit-interval 6", "cd elsewhere;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("loaded iteration 4"));
  EXPECT_THAT(outcome.err, HasSubstr("--tensor-model-parallel-size"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("--adam-beta2")));
  EXPECT_EQ(last_step(folder, "run"), "6");
  EXPECT_NEAR(loss("run/metrics.jsonl"), loss("whole/metrics.jsonl"), 2e-2);

  // A run that has reached its length says so; a larger one stretches the schedule too.
  outcome = bevatron(folder, "train --load run");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("already reached its length of 6 iterations"));
  EXPECT_THAT(outcome.err, HasSubstr("give a larger --train-iters"));
  // The folder was moved.
  run_shell(folder, "mv run elsewhere/moved");
  outcome =
      bevatron(folder, "train --load elsewhere/moved --train-samples 16 --use-checkpoint-args");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_step(folder, "elsewhere/moved"), "8");
  EXPECT_THAT(read_file(folder.path("elsewhere/moved/metrics.jsonl")),
              HasSubstr("\"iteration\":8"));
  EXPECT_FALSE(path_exists(folder.path("run")));

  EXPECT_THAT(outcome.err, Not(HasSubstr("it was changed")));

  // The folders around it moved too, and the command is given elsewhere.
  run_shell(folder, "mkdir -p proj/runs; cp corpus.txt proj");
  outcome =
      bevatron(folder, tiny_train("--train-iters 1 --save runs/a --metrics-out m"), "cd proj;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  run_shell(folder, "mv proj moved; echo more >> moved/corpus.txt");
  outcome = bevatron(folder, "train --load ../moved/runs/a --train-iters 2", "cd elsewhere;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(read_file(folder.path("moved/m")), HasSubstr("\"iteration\":2"));
  EXPECT_THAT(outcome.err, HasSubstr("when the run was last started: it was changed"));

  // A step's folder names its run and the step; another --save leaves the reports of the run alone.
  std::string before = read_file(folder.path("whole/metrics.jsonl"));
  outcome = bevatron(folder, "train --load whole/iter_0000002/ --save branch --exit-interval 3");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("loaded iteration 2 of whole/iter_0000002"));
  EXPECT_EQ(last_step(folder, "branch"), "3");
  EXPECT_EQ(read_file(folder.path("whole/metrics.jsonl")), before);

  // A new run from the weights has the model and the tokenizer, nothing else.
  outcome = bevatron(folder,
                     "train --load whole --finetune --text corpus.txt --seq-length 16 "
                     "--train-iters 1 --save tuned");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_step(folder, "tuned"), "1");

  outcome = bevatron(folder, "train --load nowhere --train-iters 3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there is no checkpoint to go on from"));
  // A checkpoint of an older program has the values alone, or not even those.
  run_shell(folder, "rm whole/run.json");
  outcome = bevatron(folder, "train --load whole --train-samples 14");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_step(folder, "whole"), "7");
  run_shell(folder, R"(rm whole/run.json; python3 - <<'END'
import json
path = "whole/iter_0000007/manifest.json"
manifest = json.load(open(path))
manifest["config"] = {}
json.dump(manifest, open(path, "w"))
END
)");
  outcome = bevatron(folder, "train --load whole");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("does not record the configuration of its run"));
}

TEST(FirstHour, GenerateScoreAndVerifyTakeARun) {
  TempFolder folder;
  write_corpus(folder);
  Outcome trained = bevatron(
      folder, tiny_train("--train-iters 4 --save run --save-interval 2 --pp 2 --export-hf exported "
                         "--lr 1e-2 --position-embedding-type rope --normalization RMSNorm "
                         "--swiglu --disable-bias-linear"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  write_file(folder.path("tokens.json"), R"({"input_ids": [[65, 66, 67, 68], [1, 2, 3, 4]]})");
  run_shell(folder, "mkdir else; mv run else/run; rm corpus.txt");
  auto both = [&](const std::string& command) {
    Outcome run = bevatron(folder, command + " --load else/run");
    Outcome hf = bevatron(folder, command + " --hf-model exported");
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_FALSE(hf.out.empty());
    EXPECT_EQ(run.out, hf.out);
  };
  both("score --tokens tokens.json --tp 2");
  both("generate --prompt 'line 1' --max-new-tokens 8 --json");
  both("generate --prompt-tokens tokens.json --max-new-tokens 4 --json --pp 2");
  Outcome earlier = bevatron(folder, "score --tokens tokens.json --load else/run/iter_0000002");
  Outcome named = bevatron(folder, "score --tokens tokens.json --load else/run --ckpt-step 2");
  EXPECT_EQ(earlier.code, 0) << earlier.err;
  EXPECT_EQ(earlier.out, named.out);
  Outcome verified = bevatron(folder, "verify --load else/run --layouts tp2 --json");
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(bevatron(folder, "convert --load else/run --export-hf again").code, 0);
  EXPECT_EQ(run_shell(folder, "diff -r exported again").out, "");
  Outcome twice =
      bevatron(folder, "score --tokens tokens.json --load else/run --hf-model exported");
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("keep one"));
}

TEST(FirstHour, ReportsAndCachesAreInTheFolderOfTheRun) {
  TempFolder folder;
  write_corpus(folder);
  run_shell(folder, "mkdir here");
  std::string train = tiny_train("--train-iters 3 ");
  train.replace(train.find("corpus.txt"), 10, "../corpus.txt");
  Outcome outcome = bevatron(folder, train + "--save ../run", "cd here;");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(listed(folder, "-A here"), "");
  EXPECT_THAT(outcome.out, HasSubstr("loss curve: ../run/loss.svg"));
  EXPECT_THAT(outcome.out, HasSubstr("metrics: ../run/metrics.jsonl"));
  EXPECT_THAT(read_file(folder.path("run/loss.svg")), HasSubstr("<svg"));
  EXPECT_THAT(listed(folder, "run/cache"), HasSubstr(".bin"));
  json row = json::parse(read_file(folder.path("run/metrics.jsonl"))
                             .substr(0, 400)
                             .substr(0, read_file(folder.path("run/metrics.jsonl")).find('\n')));
  EXPECT_EQ(row["consumed_tokens"], 64);
  // Flags name other places, or none.
  outcome =
      bevatron(folder, train + "--save ../other --loss-svg '' --metrics-out m --data-cache-path c",
               "cd here;");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(listed(folder, "here"), "c\nm\n");
  EXPECT_THAT(listed(folder, "other"), Not(HasSubstr("loss.svg")));
}

TEST(FirstHour, PlotDrawsSeveralRuns) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 4 --save 'a<&>b'")).code, 0);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 2 --metrics-out m.jsonl --save named")).code,
            0);
  folder.write("torn.jsonl",
               "{\"iteration\":1,\"loss\":null,\"consumed_tokens\":3,\"elapsed_ms\":1}\n"
               "{\"iteration\":2,\"loss\":-1,\"consumed_tokens\":6,\"elapsed_ms\":1}\n"
               "{\"iteration\":2,\"split\":\"valid\",\"name\":\"x\",\"loss\":2}\n{\"iter");
  Outcome outcome = bevatron(
      folder, "plot 'a<&>b/' named torn.jsonl --metric loss --x tokens --output out/p.svg");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json series = last_json(outcome)["series"];
  ASSERT_EQ(series.size(), 3u);
  EXPECT_EQ(series[0]["run"], "a<&>b");
  EXPECT_EQ(series[0]["points"], 4);
  EXPECT_EQ(series[1]["points"], 2);
  EXPECT_EQ(series[2]["points"], 1);
  EXPECT_EQ(series[2]["last"], -1);
  std::string last = read_file(folder.path("a<&>b/metrics.jsonl"));
  last = last.substr(last.rfind("{\"iteration"));
  EXPECT_EQ(series[0]["last"], json::parse(last)["loss"]);
  EXPECT_EQ(run_shell(folder,
                      "python3 -c 'import xml.dom.minidom as x; "
                      "print(x.parse(\"out/p.svg\").documentElement.tagName)'")
                .out,
            "svg\n");
  outcome = bevatron(folder, "plot torn.jsonl --log-y --x time --output log.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 value of torn.jsonl is not above 0"));
  outcome = bevatron(folder, "plot torn.jsonl --metric validation --output v.svg");
  EXPECT_EQ(last_json(outcome)["series"][0]["last"], 2);
  EXPECT_EQ(last_json(outcome)["series"][0]["run"], "torn.jsonl");
  outcome = bevatron(folder, "plot torn.jsonl --metric accuracy --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there are loss, consumed_tokens, elapsed_ms, validation"));
  outcome = bevatron(folder, "plot nosuch --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("nosuch"));
  outcome = bevatron(folder, "plot out --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("has no metrics"));
}

}  // namespace
}  // namespace bev::first_hour
