// The first hour of a new user: what the files first_hour_*_test.cpp share.
#pragma once

#include <string>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev::first_hour {

// Runs bevatron with the given arguments (for a shell) in `folder`.
inline Outcome bevatron(const TempFolder& folder, const std::string& words,
                        const std::string& before = "") {
  return run_shell(folder, concat(before, " ", BEV_BINARY_DIR, "/bevatron ", words));
}

inline void write_corpus(const TempFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
  write_file(folder.path("corpus.txt"), text);
}

// A model of a few thousand parameters on corpus.txt, with additional flags.
inline std::string tiny_train(const std::string& more) {
  return "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
         "--num-query-groups 2 --ffn-hidden-size 48 --max-position-embeddings 64 --seq-length 32 "
         "--micro-batch-size 2 --text corpus.txt --split 80,10,10 " +
         more;
}

}  // namespace bev::first_hour
