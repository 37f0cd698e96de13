// The first hour of a new user: one test for every place where people lost time or data.
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
using ::testing::HasSubstr;
using ::testing::Not;

// Runs bevatron with the given arguments (for a shell) in `folder`.
Outcome bevatron(const TempFolder& folder, const std::string& words,
                 const std::string& before = "") {
  return run_shell(folder, concat(before, " ", BEV_BINARY_DIR, "/bevatron ", words));
}

void write_corpus(const TempFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
  write_file(folder.path("corpus.txt"), text);
}

// A model of a few thousand parameters on corpus.txt, with additional flags.
std::string tiny_train(const std::string& more) {
  return "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
         "--num-query-groups 2 --ffn-hidden-size 48 --max-position-embeddings 64 --seq-length 32 "
         "--micro-batch-size 2 --text corpus.txt --split 80,10,10 " +
         more;
}

// ---- models ----

TEST(FirstHour, AnUnknownFlagIsNamed) {
  TempFolder folder;
  write_corpus(folder);
  Outcome outcome = bevatron(folder, tiny_train("--train-itres 1"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean --train-iters?"));
}

// ---- runs ----

// ---- run folders ----

// ---- data ----

// ---- command line ----

// ---- devices ----

TEST(FirstHour, DeepSeekTakesItsFp8Recipe) {
  TempFolder folder;
  Outcome plan = bevatron(folder,
                          "train --preset deepseek-v3 --bf16 --fp8-format e4m3 --fp8-recipe "
                          "blockwise --ranks 64 --tp 8 --ep 64 --etp 1 --device cpu --dry-run");
  EXPECT_EQ(plan.code, 0) << plan.err;
  // 576 latents and rotary keys, a hidden size that is no multiple of 128, and a step that trains.
  Outcome run = bevatron(
      folder,
      "train --family deepseek_v3 --multi-latent-attention --position-embedding-type rope "
      "--num-layers 2 --hidden-size 256 "
      "--ffn-hidden-size 208 "
      "--num-attention-heads 2 --q-lora-rank 80 --kv-lora-rank 512 --qk-head-dim 64 "
      "--qk-pos-emb-head-dim 64 --v-head-dim 64 --num-experts 2 --moe-router-topk 1 "
      "--moe-ffn-hidden-size 128 --moe-shared-expert-intermediate-size 48 --vocab-size 64 "
      "--moe-layer-freq 0,1 --moe-router-num-groups 1 --moe-router-group-topk 1 --seq-length 16 "
      "--mtp-num-layers 0 --mock-data --train-iters 2 --bf16 --fp8-format e4m3 --fp8-recipe "
      "blockwise --device cpu --metrics-out m.jsonl --loss-svg=");
  EXPECT_EQ(run.code, 0) << run.err;
}

// Runs cmake's choice of GPU architectures with an nvidia-smi that prints `capabilities`.
std::string chosen_archs(const std::string& given, const std::string& capabilities) {
  TempFolder folder;
  write_file(folder.path("nvidia-smi"), concat("#!/bin/sh\nprintf '", capabilities, "'\n",
                                               capabilities.empty() ? "exit 9\n" : ""));
  write_file(folder.path("archs.cmake"),
             "include(" BEV_SOURCE_DIR
             "/cmake/BevCudaArchs.cmake)\nbev_cuda_archs(archs)\nmessage(NOTICE \"${archs}\")\n");
  Outcome outcome =
      run_shell(folder, concat("chmod +x nvidia-smi; PATH=$PWD:$PATH cmake -DBEV_CUDA_ARCHS='",
                               given, "' -P archs.cmake"));
  return std::string(trim(outcome.err));
}

TEST(FirstHour, ACudaBuildRunsOnTheCardsItIsFor) {
  // The GPU of the machine decides; without one it is Hopper.
  EXPECT_EQ(chosen_archs("", "8.6\\n"), "86");
  EXPECT_EQ(chosen_archs("", "9.0\\n9.0\\n8.0\\n"), "80;90a-real");
  EXPECT_EQ(chosen_archs("", ""), "90a-real");
  // The lowest also gets PTX, for cards that come later.
  EXPECT_EQ(chosen_archs("120 80 86 89 90a 100", "9.0\\n"),
            "80;86-real;89-real;90a-real;100-real;120-real");
  EXPECT_THAT(chosen_archs("75", ""), HasSubstr("75 is below 80"));

  TempFolder folder;
  Outcome limited =
      bevatron(folder, "train --preset gpt2-124m --mock-data --train-iters 1 --limit-arch 75");
  EXPECT_EQ(limited.code, 2);
  EXPECT_THAT(limited.err, HasSubstr("--limit-arch: 75 is below 80"));
#ifdef BEV_HAS_CUDA
  EXPECT_THAT(bevatron(folder, "version").out, HasSubstr("CUDA kernels for "));
#endif
}

}  // namespace
}  // namespace bev
