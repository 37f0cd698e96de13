// Runs of megatron-core (tests/golden/megatron) in a folder, and how the program goes on with them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {

inline Outcome bevatron(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron ", words));
}

// Unpacks a run of Megatron's into the folder.
inline void unpack(const TempFolder& folder, const std::string& name) {
  std::string archive = concat(BEV_SOURCE_DIR, "/tests/golden/megatron/", name, ".tar.gz");
  ASSERT_EQ(run_shell(folder, concat("tar xzf ", archive)).code, 0) << archive;
}

inline std::map<int, double> losses_of(const std::string& path) {
  std::map<int, double> losses;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    if (row.contains("loss") && !row.contains("split")) losses[row["iteration"]] = row["loss"];
  }
  return losses;
}

// The largest difference to Megatron's next losses. Flags may name another checkpoint of the run.
inline double difference(const TempFolder& folder, const std::string& name,
                         const std::string& flags) {
  Outcome run = bevatron(folder, concat("train --load ", name, " --batches ", name,
                                        "/expected.json --train-iters 13 --device cpu "
                                        "--metrics-out m.jsonl --loss-svg '' ",
                                        flags));
  EXPECT_EQ(run.code, 0) << run.err;
  std::map<int, double> losses = losses_of(folder.path("m.jsonl"));
  nlohmann::json expected = nlohmann::json::parse(read_file(folder.path(name + "/expected.json")));
  double most = 0;
  int iteration = 4;
  for (double loss : expected["losses"]) {
    EXPECT_TRUE(losses.contains(iteration)) << iteration;
    most = std::max(most, std::abs(losses[iteration++] - loss));
  }
  return most;
}

}  // namespace bev
