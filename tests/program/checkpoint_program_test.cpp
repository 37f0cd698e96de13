// Runs that save, stop in every possible way, and resume.
#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/process/sockets.h"
#include "tests/support/run_program.h"

namespace bev {
namespace {

std::string bevatron(const std::string& words) {
  return concat("timeout 60 ", BEV_BINARY_DIR, "/bevatron ", words);
}

// A small model with dropout.
std::string tiny_train(const std::string& more) {
  return "train --num-layers 4 --hidden-size 32 --num-attention-heads 4 --vocab-size 300 "
         "--seq-length 16 --micro-batch-size 2 --hidden-dropout 0.1 "
         "--attention-dropout 0.1 --num-threads 1 --loss-svg= " +
         more;
}
// Nine iterations.
std::string nine(const std::string& more) {
  return tiny_train("--train-iters 9 --lr 0.01 " + more);
}
// With a checkpoint after every third iteration.
std::string saving(const std::string& folder) {
  return concat(" --save ", folder, " --save-interval 3 ");
}

void expect_success(const Outcome& run) { EXPECT_EQ(run.code, 0) << run.err; }

// Metrics without timings.
std::string metrics(const TempFolder& folder, const std::string& name) {
  Outcome run =
      run_shell(folder, concat("sed -E 's/.(elapsed_ms|tokens_per_second)[^,]*,//g' ", name));
  EXPECT_FALSE(run.out.empty());
  return run.out;
}

void expect_same_steps(const TempFolder& folder, const std::string& one, const std::string& other,
                       const std::string& steps, const std::string& diff = "diff -rq ") {
  Outcome run = run_shell(
      folder, concat("for step in ", steps, "; do ", diff, one, "/$step ", other, "/$step; done"));
  EXPECT_EQ(run.out + run.err, "");
}

struct ResumeRow {
  const char* name;
  const char* flags;
};
void PrintTo(const ResumeRow& row, std::ostream* out) { *out << row.flags; }

class Resume : public testing::TestWithParam<ResumeRow> {};

// The checkpoint contains the whole state: what a run writes after resuming is, byte for byte, what
// it would have written.
TEST_P(Resume, IsTheSameRunToTheBit) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
  folder.write("corpus.txt", text);
  std::string train = nine(GetParam().flags);
  expect_success(
      run_shell(folder, bevatron(train + saving("whole") + "--metrics-out whole.jsonl")));
  // A part of the metrics of iterations that a killed run had done after its checkpoint.
  expect_success(
      run_shell(folder, "(head -n 5 whole.jsonl; printf '{\"iteration\":6,') > m.jsonl"));
  Outcome resumed =
      run_shell(folder, bevatron(concat(train, saving("again"),
                                        " --load whole --ckpt-step 3 --metrics-out m.jsonl")));
  expect_success(resumed);
  EXPECT_NE(resumed.err.find("loaded iteration 3 of whole"), std::string::npos);
  EXPECT_EQ(resumed.err.find("differs"), std::string::npos) << resumed.err;
  expect_same_steps(folder, "whole", "again", "iter_0000006 iter_0000009");
  EXPECT_EQ(metrics(folder, "whole.jsonl"), metrics(folder, "m.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Resume,
    testing::Values(
        ResumeRow{"F32", "--mock-data --global-batch-size 4"},
        ResumeRow{"Bf16Accumulating", "--mock-data --bf16 --global-batch-size 12"},
        ResumeRow{"Fp16Scaler",
                  "--mock-data --fp16 --initial-loss-scale 1048576 --loss-scale-window 2 "
                  "--hysteresis 1 --global-batch-size 4"},
        ResumeRow{"RampUp", "--mock-data --rampup-batch-size 2 2 12 --global-batch-size 6"},
        ResumeRow{"MidEpoch", "--text corpus.txt --split 1,0,0 --global-batch-size 8 --seed 5"},
        ResumeRow{"Cyclic",
                  "--text corpus.txt --split 1,0,0 --dataloader-type cyclic --dp 2 "
                  "--global-batch-size 4"},
        ResumeRow{"Validated",
                  "--text corpus.txt --split 8,2,0 --global-batch-size 4 --eval-interval 2 "
                  "--eval-iters 1"},
        ResumeRow{"Sgd", "--mock-data --optimizer sgd --global-batch-size 4"},
        ResumeRow{"SmallMoments",
                  "--mock-data --bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 "
                  "--global-batch-size 4"},
        ResumeRow{"Zero1",
                  "--mock-data --dp 2 --data-parallel-sharding-strategy optim "
                  "--overlap-param-gather --overlap-grad-reduce --global-batch-size 4"},
        ResumeRow{"Zero2",
                  "--mock-data --bf16 --dp 2 --data-parallel-sharding-strategy "
                  "optim_grads --global-batch-size 8"},
        ResumeRow{"Zero3",
                  "--mock-data --bf16 --dp 3 --data-parallel-sharding-strategy "
                  "optim_grads_params --global-batch-size 6"},
        ResumeRow{"Everything",
                  "--mock-data --bf16 --tp 2 --sequence-parallel --pp 2 --cp 2 "
                  "--num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8"},
        ResumeRow{"Synchronous", "--mock-data --global-batch-size 4 --no-async-save"}),
    [](const auto& row) { return std::string(row.param.name); });

// 8 ranks, then 4, then 6: the same samples in the same order.
TEST(Elastic, ARunGoesOnWithFewerAndMoreRanks) {
  TempFolder folder;
  std::string train = nine("--mock-data --fp64 --global-batch-size 24 ");
  expect_success(run_shell(folder, bevatron(train + "--metrics-out one.jsonl")));
  const char* layouts[] = {"--tp 2 --pp 2 --dp 2",
                           "--dp 4 --data-parallel-sharding-strategy optim_grads_params",
                           "--tp 2 --dp 3 --data-parallel-sharding-strategy optim"};
  for (int part = 0; part < 3; ++part) {
    expect_success(run_shell(
        folder, bevatron(concat(train, "--metrics-out m.jsonl --load D --save D ",
                                "--exit-interval ", 3 * (part + 1), " ", layouts[part]))));
  }
  Outcome run = run_shell(folder, R"(python3 - <<'END'
import json
one, many = ([json.loads(line) for line in open(name)] for name in ("one.jsonl", "m.jsonl"))
assert len(one) == len(many) == 9, (len(one), len(many))
for a, b in zip(one, many):
    assert a["consumed_samples"] == b["consumed_samples"] and a["lr"] == b["lr"]
    assert abs(a["loss"] - b["loss"]) <= 1e-9 * a["loss"], (a, b)
END
)");
  expect_success(run);
}

// Kills the run at random times until it has been killed often enough, then lets it finish.
void check_kills(int kills) {
  TempFolder folder;
  std::string train = tiny_train(
      "--mock-data --dp 2 --data-parallel-sharding-strategy optim "
      "--global-batch-size 4 --train-iters 40 --save-interval 1 ");
  expect_success(run_shell(folder, bevatron(train + "--save whole --most-recent-k 1")));
  std::mt19937 random(7);
  std::uniform_real_distribution<double> part(0.1, 0.5);
  double whole = 0.7;  // seconds of a run from the beginning to its end; less once one was seen
  int killed = 0, progress = 0;
  for (int i = 0; i < kills; ++i) {
    double start = monotonic_seconds();
    Outcome run =
        run_shell(folder, concat("timeout -s KILL ", part(random) * whole, " ", BEV_BINARY_DIR,
                                 "/bevatron ", train, "--load D --save D"));
    EXPECT_TRUE(run.code == 137 || run.code == 0) << run.code << "\n" << run.err;
    killed += run.code == 137 ? 1 : 0;
    bool resumed = run.err.find("loaded iteration") != std::string::npos;
    progress += resumed ? 1 : 0;
    if (run.code == 0 && !resumed) whole = std::min(whole, monotonic_seconds() - start);
    if (run.code == 0) run_shell(folder, "rm -r D");  // start again from the beginning
  }
  EXPECT_GT(killed, kills / 2);
  EXPECT_GT(progress, kills / 4);
  expect_success(run_shell(folder, bevatron(train + "--load D --save D")));
  expect_same_steps(folder, "whole", "D", "iter_0000040");
  // Nothing is left of interrupted saves.
  EXPECT_EQ(run_shell(folder, "ls D | grep -E 'saving|removing|tmp'").out, "");
}

TEST(Kill, AtAnyInstantLosesNothing) { check_kills(20); }
TEST(Kill, DISABLED_TwoHundredTimesLosesNothing) { check_kills(200); }

TEST(Kill, OfOneOfSeveralProcessesLosesNothing) {
  TempFolder folder;
  if (run_shell(folder, "mpirun --version").code != 0) GTEST_SKIP() << "no mpirun";
  std::string train = nine("--mock-data --tp 2 --global-batch-size 4 --save-interval 1 ");
  std::string start =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
      "--oversubscribe -n 2 ";
  expect_success(run_shell(folder, bevatron(train + "--save whole")));
  for (int call : {150, 120, 90}) {
    Outcome run = run_shell(folder, concat(start, bevatron(train), "--load D --save D ",
                                           "--inject-fault rank=1,kind=kill,call=", call));
    EXPECT_NE(run.code, 0);
  }
  expect_success(run_shell(folder, concat(start, bevatron(train), "--load D --save D")));
  // The manifest records two processes.
  expect_same_steps(folder, "whole", "D", "iter_0000009", "diff -rq -x manifest.json ");
}

TEST(Stop, ASignalSavesAndTheRunGoesOn) {
  TempFolder folder;
  std::string train = tiny_train(
      "--mock-data --global-batch-size 4 --train-iters 4000 "
      "--log-interval 1 ");
  Outcome run = run_shell(
      folder,
      concat(BEV_BINARY_DIR, "/bevatron ", train,
             "--save D 2> err & run=$!; for i in $(seq 200); do grep -q 'iteration *20/' err && "
             "break; sleep 0.02; done; kill -TERM $run; wait $run; code=$?; cat err >&2; "
             "exit $code"));
  EXPECT_EQ(run.code, 128 + 15) << run.err;
  EXPECT_NE(run.err.find("saved iteration "), std::string::npos) << run.err;
  std::string step(trim(read_file(folder.path("D/latest_checkpointed_iteration.txt"))));
  EXPECT_GE(std::stoi(step), 20);
  Outcome again = run_shell(folder, concat(bevatron(train), "--load D --exit-interval 1"));
  expect_success(again);
  EXPECT_NE(again.err.find("loaded iteration " + step), std::string::npos) << again.err;
}

TEST(Stop, AnotherSignalDoesSoToo) {
  TempFolder folder;
  std::string train =
      tiny_train("--mock-data --global-batch-size 4 --train-iters 4000 --log-interval 1 ");
  Outcome run = run_shell(
      folder, concat(BEV_BINARY_DIR, "/bevatron ", train,
                     "--exit-signal SIGUSR2 2> err & run=$!; for i in $(seq 200); do grep -q "
                     "'iteration *20/' err && break; sleep 0.02; done; kill -USR2 $run; wait $run; "
                     "code=$?; cat err >&2; exit $code"));
  EXPECT_EQ(run.code, 128 + SIGUSR2) << run.err;
}

TEST(Stop, TheClockSavesTooAndOldStepsGo) {
  TempFolder folder;
  Outcome run = run_shell(
      folder, bevatron(nine("--mock-data --global-batch-size 4 --save D --save-interval-mins 1e-6 "
                            "--most-recent-k 2 --no-async-save")));
  expect_success(run);
  for (int i = 1; i <= 9; ++i) {
    EXPECT_NE(run.err.find(concat("saved iteration ", i, " ")), std::string::npos) << run.err;
  }
  EXPECT_EQ(run_shell(folder, "cd D; ls -d iter* latest*").out,
            "iter_0000008\niter_0000009\nlatest_checkpointed_iteration.txt\n");
}

// A small file system that two checkpoints fill.
TEST(FullDisk, TheRunGoesOnAndKeepsTheLastGoodCheckpoint) {
  TempFolder folder;
  if (run_shell(folder, "mkdir D && mount -t tmpfs -o size=1600k none D").code != 0) {
    GTEST_SKIP() << "no leave to mount";
  }
  std::string train = nine(
      "--mock-data --global-batch-size 4 --save-interval 1 "
      "--save-retry-interval 1 --no-async-save --log-interval 1 ");
  Outcome run = run_shell(folder, bevatron(train + "--save D"));
  EXPECT_NE(run.code, 0) << run.err;  // the last state is not saved, which is reported
  EXPECT_NE(run.err.find("No space left on device"), std::string::npos);
  EXPECT_NE(run.err.find("training goes on"), std::string::npos);
  EXPECT_NE(run.out.find("finished after 9 iterations"), std::string::npos) << run.out;
  std::string step(trim(read_file(folder.path("D/latest_checkpointed_iteration.txt"))));
  Outcome again = run_shell(folder, bevatron(train + "--load D --save E --metrics-out m.jsonl"));
  expect_success(again);
  EXPECT_NE(again.err.find("loaded iteration " + step), std::string::npos) << again.err;
  expect_success(run_shell(folder, "umount D"));
}

// Two machines, simulated by folders, with two ranks each. One of them is lost with its disk.
TEST(LocalTier, SurvivesTheLossOfAMachine) {
  TempFolder folder;
  std::string train = nine(concat(
      "--mock-data --global-batch-size 4 --tp 2 --dp 2 --data-parallel-sharding-strategy optim "
      "--save-interval 5 --non-persistent-ckpt-type local --non-persistent-local-ckpt-dir fast "
      "--non-persistent-save-interval 1 --replication-jump 2 "));
  auto run = [&](const std::string& more) {
    std::string shared =
        concat("WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=", port_of(listen_on(0)), " ",
               bevatron(train + more));
    return run_shell(folder, concat("mkdir -p m0 m1; (cd m1; RANK=1 ", shared,
                                    ") & (cd m0; RANK=0 ", shared, "); code=$?; wait; exit $code"));
  };
  expect_success(run("--save ../whole"));
  run_shell(folder, "rm -r m0 m1");
  EXPECT_NE(run("--load ../D --save ../D --inject-fault rank=3,kind=kill,call=180").code, 0);
  run_shell(folder, "rm -r m1");
  Outcome resumed = run("--load ../D --save ../D");
  expect_success(resumed);
  EXPECT_NE(resumed.err.find(" of fast/iter_000000"), std::string::npos) << resumed.err;
  expect_same_steps(folder, "whole", "D", "iter_0000009");

  // In a shared folder, which keeps only the last one.
  std::string passing = nine("--mock-data --global-batch-size 4 --non-persistent-save-interval 2 ");
  expect_success(run_shell(folder, bevatron(passing + "--save S")));
  EXPECT_EQ(run_shell(folder, "ls S/non_persistent").out,
            "iter_0000008\nlatest_checkpointed_iteration.txt\n");
  run_shell(folder, "rm -r S/iter_*; rm S/latest*");
  Outcome passed = run_shell(folder, bevatron(passing + "--load S --save S"));
  EXPECT_NE(passed.err.find("loaded iteration 8"), std::string::npos) << passed.err;
}

TEST(LoadFlags, SayWhatIsTaken) {
  TempFolder folder;
  auto run = [&](const std::string& more) {
    const char* lr = more.find("--lr ") == std::string::npos ? "--lr 0.01 " : "";
    return run_shell(folder, bevatron(tiny_train(concat(
                                 "--mock-data --global-batch-size 4 --train-iters 9 ", lr, more))));
  };
  auto lr_of_first = [&](const std::string& more) {
    expect_success(run(more + " --exit-interval 1 --metrics-out m.jsonl"));
    std::string line = read_file(folder.path("m.jsonl"));
    run_shell(folder, "rm m.jsonl");
    std::size_t at = line.find("\"lr\":") + 5;
    return std::stod(line.substr(at));
  };
  expect_success(run(saving("D")));

  Outcome missing = run("--load nowhere --exit-on-missing-checkpoint");
  EXPECT_NE(missing.code, 0);
  EXPECT_NE(missing.err.find("nowhere"), std::string::npos);
  Outcome anew = run("--load nowhere");
  expect_success(anew);
  EXPECT_NE(anew.err.find("the run begins anew"), std::string::npos);
  EXPECT_NE(run("--load D --ckpt-step 5").err.find("iter_0000005"), std::string::npos);

  // A finished run that is started again has nothing to do.
  Outcome finished = run("--load D --save D");
  expect_success(finished);
  EXPECT_NE(finished.out.find("nothing to train: the run ended after iteration 9"),
            std::string::npos)
      << finished.out;

  EXPECT_DOUBLE_EQ(lr_of_first("--load D --ckpt-step 3 "), 0.01 * 6 / 9);
  EXPECT_DOUBLE_EQ(lr_of_first("--load D --ckpt-step 3 --no-load-optim "), 0.01);
  EXPECT_DOUBLE_EQ(lr_of_first("--load D --ckpt-step 3 --finetune "), 0.01);
  EXPECT_DOUBLE_EQ(lr_of_first("--load D --ckpt-step 3 --lr 0.1 "), 0.1 * 6 / 9);
  EXPECT_DOUBLE_EQ(
      lr_of_first("--load D --ckpt-step 3 --lr 0.1 --use-checkpoint-opt_param-scheduler "),
      0.01 * 6 / 9);
  Outcome changed = run("--load D --ckpt-step 3 --lr 0.1 --bf16 --exit-interval 1");
  expect_success(changed);
  EXPECT_NE(changed.err.find("configuration differs"), std::string::npos) << changed.err;
  EXPECT_NE(changed.err.find("--lr "), std::string::npos) << changed.err;
  EXPECT_NE(changed.err.find("--bf16 "), std::string::npos) << changed.err;
  Outcome meant =
      run("--load D --ckpt-step 3 --lr 0.1 --weight-decay 0.2 --bf16 --exit-interval 1 "
          "--override-opt_param-scheduler");
  expect_success(meant);
  EXPECT_EQ(meant.err.find("--lr "), std::string::npos) << meant.err;
  EXPECT_EQ(meant.err.find("weight-decay "), std::string::npos) << meant.err;
  EXPECT_NE(meant.err.find("--bf16 "), std::string::npos) << meant.err;

  // Saves only weights.
  expect_success(run(saving("W") + "--no-save-optim"));
  EXPECT_NE(run("--load W").err.find("--no-load-optim"), std::string::npos);
  expect_success(run("--load W --ckpt-step 6 --no-load-optim"));
}

TEST(LoadFlags, FallBackToTheStepBefore) {
  TempFolder folder;
  std::string train = nine("--mock-data --global-batch-size 4 --dp 2 ");
  auto run = [&](const std::string& more) { return run_shell(folder, bevatron(train + more)); };
  expect_success(run(saving("D")));
  expect_success(run_shell(folder,
                           "printf x >> D/iter_0000009/shard_00000.safetensors; "
                           "echo '{' > D/iter_0000006/manifest.json; cp -r D whole"));
  Outcome refused = run("--load D");
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("iter_0000009/shard_00000.safetensors"), std::string::npos);
  Outcome back = run("--load D --load-fallback --save E");
  expect_success(back);
  EXPECT_NE(back.err.find("going back to iteration 3"), std::string::npos) << back.err;
  EXPECT_NE(back.err.find("loaded iteration 3"), std::string::npos) << back.err;
}

}  // namespace
}  // namespace bev
