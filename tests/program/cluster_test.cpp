// The program in several processes, started by mpirun and by the variables of torchrun: the same
// results as with ranks in one process, and one clear cause when something fails.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "comm/process/sockets.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;

// A run that hangs fails its test, not the suite.
std::string bevatron(const std::string& words) {
  return concat("timeout 60 ", BEV_BINARY_DIR, "/bevatron ", words);
}

Outcome run_alone(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, bevatron(words));
}

bool mpirun_is_here() { return std::system("mpirun --version >/dev/null 2>&1") == 0; }

// mpirun requires two variables to run as root.
Outcome run_mpi(const TempFolder& folder, int processes, const std::string& command) {
  return run_shell(folder,
                   concat("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                          "--oversubscribe -n ",
                          processes, " ", command));
}

// Process 0 runs in the foreground, and its exit code counts; the output of the others follows.
Outcome run_tcp(const TempFolder& folder, int processes, const std::string& command) {
  std::string shared = concat("WORLD_SIZE=", processes,
                              " MASTER_ADDR=localhost MASTER_PORT=", port_of(listen_on(0)), " ");
  std::string all;
  for (int i = 1; i < processes; ++i) all += concat("RANK=", i, " ", shared, command, " & ");
  return run_shell(folder, concat(all, "RANK=0 ", shared, command, "; code=$?; wait; exit $code"));
}

enum class Starter { kMpirun, kVariables };
Outcome run_cluster_command(const TempFolder& folder, Starter starter, int processes,
                            const std::string& command) {
  return starter == Starter::kMpirun ? run_mpi(folder, processes, command)
                                     : run_tcp(folder, processes, command);
}
Outcome run_cluster(const TempFolder& folder, Starter starter, int processes,
                    const std::string& words) {
  return run_cluster_command(folder, starter, processes, bevatron(words));
}

std::string tiny_train(const std::string& more, int batch_size = 4, int iterations = 6) {
  return "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
         "--num-query-groups 2 --ffn-hidden-size 48 --position-embedding-type rope "
         "--normalization RMSNorm --swiglu --disable-bias-linear --max-position-embeddings 64 "
         "--seq-length 32 --micro-batch-size 2 --mock-data --vocab-size 64 --lr 1e-3 "
         "--metrics-out m.jsonl --num-threads 2 " +
         concat("--global-batch-size ", batch_size, " --train-iters ", iterations, " ", more);
}

// Loss and gradient norm of every step with all digits.
std::vector<std::string> curve(const TempFolder& folder) {
  std::vector<std::string> steps;
  for (const std::string& line :
       split(std::string(trim(read_file(folder.path("m.jsonl")))), '\n')) {
    json step = json::parse(line);
    steps.push_back(concat(step["loss"].dump(), " ", step["grad_norm"].dump()));
  }
  return steps;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class Cluster : public testing::TestWithParam<Starter> {
 protected:
  void SetUp() override {
    if (GetParam() == Starter::kMpirun && !mpirun_is_here()) GTEST_SKIP() << "no mpirun here";
  }
  Outcome start(int processes, const std::string& words) {
    return run_cluster(folder_, GetParam(), processes, words);
  }
  TempFolder folder_;
};

TEST_P(Cluster, TrainsToTheNumbersOfRanksInOneProcess) {
  struct Case {
    int processes;
    const char* layout;
  };
  for (Case c : {Case{2, "--tp 2 --sequence-parallel"},
                 {2, "--pp 2"},
                 {2, "--dp 2 --data-parallel-sharding-strategy optim_grads_params"},
                 {2, "--tp 2 --dp 2"},
                 {2, "--pp 2 --dp 2"},
                 {3, "--tp 1 --pp 1 --dp 3"}}) {
    SCOPED_TRACE(concat(c.processes, " processes: ", c.layout));
    std::string words = tiny_train(c.layout, c.processes == 3 ? 6 : 4);
    Outcome alone = run_alone(folder_, words);
    ASSERT_EQ(alone.code, 0) << alone.err;
    std::vector<std::string> expected = curve(folder_);
    Outcome run = start(c.processes, words);
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(curve(folder_), expected);
    // Logged once, by world rank 0.
    EXPECT_EQ(count(run.out, "finished after 6 iterations"), 1u) << run.out;
    EXPECT_EQ(count(run.err, "parameters: "), 1u) << run.err;
  }
}

TEST_P(Cluster, ExportsScoresAndGeneratesAsOneProcess) {
  std::string export_to = tiny_train("--dp 2 --export-hf ");
  ASSERT_EQ(run_alone(folder_, export_to + "alone").code, 0);
  ASSERT_EQ(start(2, export_to + "together").code, 0);
  std::string weights = read_file(folder_.path("alone/model.safetensors"));
  EXPECT_TRUE(weights == read_file(folder_.path("together/model.safetensors")));

  write_file(folder_.path("tokens.json"), R"({"input_ids": [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]})");
  std::string score = "score --hf-model alone --tokens tokens.json --tp 2 --logits-out ";
  Outcome one = run_alone(folder_, score + "a.safetensors");
  Outcome two = start(2, score + "b.safetensors");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  EXPECT_TRUE(read_file(folder_.path("a.safetensors")) == read_file(folder_.path("b.safetensors")));

  std::string generate =
      "generate --hf-model alone --prompt-tokens tokens.json --ignore-eos --json "
      "--max-new-tokens 6";
  one = run_alone(folder_, generate);
  two = start(2, generate);
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
}

// Replicas, stages and experts on several processes, more requests than replicas, sampling and
// beams: the sequences of one rank.
TEST_P(Cluster, GeneratesTheSequencesOfOneRankUnderEveryLayout) {
  folder_.write("p.json", R"({"input_ids": [[5, 6, 7, 8], [9, 10, 11], [1], [2, 3], [5, 6, 9]]})");
  const std::string model = BEV_SOURCE_DIR "/tests/golden/models/qwen2_moe";
  for (const char* rules : {"--temperature 0.8 --n 2 --repetition-penalty 1.2 --prompt-logprobs",
                            "--num-beams 3 --num-return-sequences 2"}) {
    std::string words = concat("generate --hf-model ", model,
                               " --prompt-tokens p.json --max-new-tokens 7 --ignore-eos --fp64 "
                               "--device cpu --num-threads 2 --json ",
                               rules, " ");
    Outcome alone = run_alone(folder_, words);
    ASSERT_EQ(alone.code, 0) << alone.err;
    json expected = json::parse(alone.out);
    for (const char* layout : {"--tp 2", "--pp 2", "--dp 2", "--dp 2 --ep 2", "--tp 2 --dp 2"}) {
      SCOPED_TRACE(layout);
      Outcome run = start(2, words + layout);
      ASSERT_EQ(run.code, 0) << run.err;
      json got = json::parse(run.out.substr(0, run.out.find('\n')));
      ASSERT_EQ(got["sequences"].size(), expected["sequences"].size());
      for (std::size_t i = 0; i < got["sequences"].size(); ++i) {
        const json &a = got["sequences"][i], &b = expected["sequences"][i];
        EXPECT_EQ(a["tokens"], b["tokens"]);
        EXPECT_EQ(a["finish_reason"], b["finish_reason"]);
        EXPECT_NEAR(a["score"].get<double>(), b["score"].get<double>(), 1e-9);
      }
    }
  }
}

TEST_P(Cluster, AFailureEndsTheRunWithOneCause) {
  struct Case {
    const char* fault;
    std::vector<std::string> parts;
  };
  for (const Case& c :
       {Case{"rank=0,call=40,kind=throw", {"error: rank 0: injected fault at call 40"}},
        Case{"rank=3,call=40,kind=throw", {"error: rank 3: injected fault at call 40"}},
        Case{"rank=0,call=40,kind=stall", {"nothing came for 1.2 s", "rank 0 never came"}},
        Case{"rank=3,call=40,kind=stall", {"nothing came for 1.2 s", "rank 3 never came"}}}) {
    SCOPED_TRACE(c.fault);
    Outcome run = start(2, tiny_train(concat("--tp 2 --dp 2 --distributed-timeout-minutes 0.02 "
                                             "--inject-fault ",
                                             c.fault)));
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(count(run.err, "error: "), 1u) << run.err;
    for (const std::string& part : c.parts) {
      EXPECT_NE(run.err.find(part), std::string::npos) << part << " is not in\n" << run.err;
    }
  }
}

TEST_P(Cluster, AKilledProcessEndsTheRun) {
  for (int rank : {0, 3}) {
    SCOPED_TRACE(rank);
    Outcome run = start(
        2, tiny_train(concat("--tp 2 --dp 2 --inject-fault rank=", rank, ",call=40,kind=kill")));
    EXPECT_NE(run.code, 0);
    EXPECT_NE(run.code, 124) << "it took a minute\n" << run.err;
    // mpirun reports it itself.
    std::string cause = GetParam() == Starter::kMpirun ? "signal 9 (Killed)"
                        : rank == 0 ? "error: process 0 (ranks 0 to 1) ended before the run did"
                                    : "error: process 1 (ranks 2 to 3) ended before the run did";
    EXPECT_EQ(count(run.err, cause), 1u) << run.err;
  }
}

// Process 0 reports it for all under mpirun; processes started one by one each report it.
TEST_P(Cluster, AMistakeInTheFlagsIsTold) {
  std::size_t times = GetParam() == Starter::kMpirun ? 1 : 2;
  Outcome run = start(2, tiny_train("--tp 3"));
  EXPECT_EQ(run.code, 2);
  EXPECT_EQ(count(run.err, "2 processes do not fit tp 3"), times) << run.err;
  run = start(2, "verify --preset gpt2-124m --layouts 'tp2 tp4'");
  EXPECT_EQ(run.code, 2);
  EXPECT_EQ(count(run.err, "tp4: has 4 ranks and tp2 has 2"), times) << run.err;
}

// Flags that differ between processes, as from a wrong launcher script.
TEST_P(Cluster, OtherFlagsInOneProcessAreRefused) {
  const char* rank = GetParam() == Starter::kMpirun ? "OMPI_COMM_WORLD_RANK" : "RANK";
  for (const char* flags : {"'--weight-decay 0.5'", "'--dp 2' || echo '--tp 2'"}) {
    SCOPED_TRACE(flags);
    write_file(folder_.path("start.sh"), concat("exec ", bevatron(tiny_train("")), " $(test $",
                                                rank, " = 1 && echo ", flags, ")\n"));
    Outcome run = run_cluster_command(folder_, GetParam(), 2, "sh start.sh");
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(count(run.err, "error: process 1 was started otherwise than process 0: "), 1u)
        << run.err;
  }
}

// Every layout of two ranks, and some of two processes with two ranks each.
TEST_P(Cluster, LayoutsGiveOneRanksAnswer) {
  Outcome run = start(2, "verify --preset qwen3-0.6b --all 2 --steps 2");
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "layouts give one rank's answer"), 1u) << run.out;
  run = start(2,
              "verify --preset qwen3-0.6b --layouts 'tp2sptpoverlap,dp2zero3paramoverlap "
              "cp2a2a,pp2zbv pp4vpp1 cp4a2a2p2p2 tp2,cp2,zero2gradoverlap'");
  EXPECT_EQ(run.code, 0) << run.out << run.err;
}

// Only process 0 looks at the outputs; the others must not wait for it.
TEST_P(Cluster, WhatProcess0RefusesEndsAll) {
  TempFolder folder;
  write_file(folder.path("file"), "");
  Outcome run = run_cluster(folder, GetParam(), 3, tiny_train("--dp 3 --save file/S", 6));
  EXPECT_EQ(run.code, 2) << run.err;
  EXPECT_NE(run.err.find("--save: "), std::string::npos) << run.err;
}

INSTANTIATE_TEST_SUITE_P(Starters, Cluster, testing::Values(Starter::kMpirun, Starter::kVariables),
                         [](const auto& starter) {
                           return starter.param == Starter::kMpirun ? "Mpirun" : "Variables";
                         });

// A signal to a process without world rank 0 also counts.
TEST(ClusterSignal, StopsAllProcessesAfterTheSameStep) {
  TempFolder folder;
  std::string shared =
      concat("WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=", port_of(listen_on(0)), " ");
  std::string words = tiny_train("--dp 2", 4, 100000);
  std::string program = concat("exec timeout 60 ", BEV_BINARY_DIR, "/bevatron ", words);
  Outcome run = run_shell(
      folder,
      concat("(export RANK=1 ", shared, "; ", program, ") & second=$!; (export RANK=0 ", shared,
             "; ", program, ") & first=$!; for i in $(seq 100); do [ -s m.jsonl ] && break; ",
             "sleep 0.1; done; kill -TERM $second; wait $first; a=$?; wait $second; echo $a $?"));
  EXPECT_NE(run.out.find("143 143"), std::string::npos) << run.out << run.err;
  EXPECT_EQ(count(run.out, "stopped by signal 15"), 1u) << run.out;
}

TEST(ClusterEnvironment, ABadVariableIsNamed) {
  TempFolder folder;
  Outcome run = run_shell(
      folder, "RANK=5 WORLD_SIZE=2 MASTER_ADDR=localhost " + bevatron(tiny_train("--dp 2")));
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("RANK: '5' is not a number from 0 to 1"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace bev
