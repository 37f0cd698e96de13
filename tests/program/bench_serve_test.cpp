// bench serve, as a user calls it: its numbers agree with each other, and are there for a server
// too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class BenchServe : public testing::Test {
 protected:
  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron bench serve ", words));
  }

  // Checks what holds for every load.
  json load(const std::string& words) {
    return numbers(words, run(concat("--offline ", model_, words)));
  }
  json numbers(const std::string& words, const Outcome& outcome) {
    SCOPED_TRACE(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (outcome.code != 0) return {};
    EXPECT_THAT(outcome.err, HasSubstr("requests"));
    json line = json::parse(outcome.out);
    EXPECT_EQ(line["failed"], 0);
    for (const char* name : {"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"}) {
      if (line[name]["p50"].is_null()) continue;
      EXPECT_LE(0, line[name]["p50"]) << name;
      EXPECT_LE(line[name]["p50"], line[name]["p90"]) << name;
      EXPECT_LE(line[name]["p90"], line[name]["p99"]) << name;
    }
    if (!line["ttft_ms"]["p99"].is_null()) {
      EXPECT_LE(line["ttft_ms"]["p99"], line["e2e_ms"]["p99"]);
    }
    if (!line["longest_itl_ms"].is_null()) {
      EXPECT_LE(line["itl_ms"]["p99"], line["longest_itl_ms"]);
    }
    double seconds = line["duration_s"];
    EXPECT_NEAR(line["output_tok_s"].get<double>() * seconds, line["output_tokens"].get<double>(),
                1e-6);
    EXPECT_NEAR(line["goodput_rps"].get<double>() * seconds, line["completed"].get<double>(), 1e-6);
    EXPECT_TRUE(line["device_idle_share"].is_null());  // the CPU has no trace
    EXPECT_EQ(line.value("preemptions", json()), line["steps"].is_null() ? json() : json(0));
    return line;
  }

  TempFolder folder_;
  std::string model_ = concat("--hf-model ", BEV_SOURCE_DIR, "/tests/golden/models/llama_gqa ");
};

TEST_F(BenchServe, CompletesEveryRequestWithAllItsTokens) {
  for (std::string layout : {"", "--tp 2", "--pp 2", "--dp 2", "--max-seqs 2 --no-prefix-cache"}) {
    json line = load("--requests 5 --input-len 9 --output-len 20 " + layout);
    EXPECT_EQ(line["completed"], 5);
    EXPECT_EQ(line["input_tokens"], 45);
    EXPECT_EQ(line["output_tokens"], 100);
    EXPECT_GE(line["steps"], 20);
    EXPECT_EQ(line["cached_tokens"], 0);
    EXPECT_EQ(line["decode_tok_s"].is_null(), layout.starts_with("--max-seqs")) << layout;
  }
  json line = load("--requests 3 --input-len 5 --output-len 1 --warmup 0");
  EXPECT_EQ(line["output_tokens"], 3);
  EXPECT_TRUE(line["itl_ms"]["p50"].is_null());
  EXPECT_TRUE(line["decode_tok_s"].is_null());
}

TEST_F(BenchServe, RequestsArriveAsOthersFinishOrAtARate) {
  std::string shape = "--requests 6 --input-len 24 --output-len 6 --block-tokens 4 ";
  json line = load(shape + "--concurrency 2 --shared-prefix 16");
  EXPECT_EQ(line["completed"], 6);
  EXPECT_EQ(line["steps"], 18);
  EXPECT_GE(line["cached_tokens"], 64);
  EXPECT_TRUE(line["decode_tok_s"].is_null());
  EXPECT_EQ(load(shape + "--concurrency 2 --shared-prefix 16 --no-prefix-cache")["cached_tokens"],
            0);
  line = load(shape + "--rate 40");
  EXPECT_EQ(line["completed"], 6);
  EXPECT_GT(line["duration_s"], 0.02);
  line = load(shape +
              "--rate 200 --tp 2 --temperature 1 --top-k 20 --top-p 0.9 --min-p 0.01 "
              "--repetition-penalty 1.1 --presence-penalty 0.1 --frequency-penalty 0.1");
  EXPECT_EQ(line["output_tokens"], 36);
}

TEST_F(BenchServe, APresetHasRandomWeights) {
  model_ = "--preset llama-tiny ";
  EXPECT_EQ(load("--requests 2 --input-len 8 --output-len 3 --temperature 1")["completed"], 2);
}

TEST_F(BenchServe, ServiceLevelsLimitWhatCounts) {
  Outcome outcome = run(
      concat("--offline ", model_, "--requests 4 --input-len 9 --output-len 8 --slo-ttft-ms 1e-6"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json line = json::parse(outcome.out);
  EXPECT_EQ(line["completed"], 4);
  EXPECT_EQ(line["goodput_rps"], 0);
}

#ifdef BEV_HAS_SERVE
// loads.sh PROGRAM MODEL KEY FLAGS...: loads a server that is there meanwhile.
constexpr const char* kServerScript = R"SH(
set -e
rm -f ready
"$1" serve --hf-model "$2" --port 0 --api-key secret >ready 2>serve.err & server=$!
trap 'kill $server; wait $server || true' EXIT
for _ in $(seq 600); do
  grep -qs '"url"' ready && break
  sleep 0.05
done
url=$(sed -E 's/.*"url":"([^"]*)".*/\1/' ready)
"$1" bench serve --url "$url" --api-key "$3" "${@:4}"
)SH";

TEST_F(BenchServe, LoadsAServer) {
  folder_.write("loads.sh", kServerScript);
  auto serve = [&](const std::string& words, const char* password = "secret") {
    return run_shell(folder_, concat("bash loads.sh ", BEV_BINARY_DIR, "/bevatron ", BEV_SOURCE_DIR,
                                     "/tests/golden/models/llama_gqa ", password, " ", words));
  };
  std::string shape = "--requests 6 --input-len 9 --output-len 20 ";
  json line = numbers(shape, serve(shape));
  EXPECT_EQ(line["completed"], 6);
  EXPECT_EQ(line["input_tokens"], 54);
  EXPECT_EQ(line["output_tokens"], 120);
  EXPECT_EQ(line["cached_tokens"], 0);
  json offline = load(shape);
  for (const auto& [key, value] : offline.items()) EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_EQ(line.size(), offline.size());

  shape = "--requests 5 --input-len 80 --output-len 3 ";
  line = numbers(shape, serve(shape + "--concurrency 1 --shared-prefix 64 --temperature 1"));
  EXPECT_EQ(line["cached_tokens"], 256);
  line = numbers(shape, serve(shape + "--rate 100 --no-stream --warmup 3"));
  EXPECT_EQ(line["output_tokens"], 15);
  EXPECT_TRUE(line["ttft_ms"]["p50"].is_null());
  EXPECT_FALSE(line["e2e_ms"]["p50"].is_null());

  Outcome outcome = serve(shape, "wrong");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("HTTP 401"));
  outcome = serve("--requests 5 --input-len 127 --output-len 3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("128"));
}
#endif

TEST_F(BenchServe, SaysWhatIsWrong) {
  auto refuse = [&](const std::string& words, const std::vector<std::string>& parts) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part)) << words;
  };
  std::string shape = "--requests 2 --input-len 8 --output-len 4 ";
  refuse("", {"--url: is missing", "--offline", "--requests: is missing", "--input-len: is missing",
              "--output-len: is missing"});
  refuse("--offline " + shape, {"--hf-model: is missing"});
  refuse("--offline --url http://localhost " + shape, {"--url: excludes --offline"});
  refuse(concat("--url http://localhost ", model_, shape,
                "--tp 2 --max-seqs 4 --bf16 --no-trace-idle"),
         {"--hf-model: has no effect", "--tensor-model-parallel-size: has no effect",
          "--max-seqs: has no effect", "--bf16: has no effect", "--trace-idle: has no effect"});
  refuse(concat("--offline ", model_, shape, "--no-stream --api-key k"),
         {"--stream: is for --url", "--api-key: is for --url"});
  refuse(concat("--url http://localhost ", shape, "--no-stream --slo-ttft-ms 5"),
         {"--slo-ttft-ms", "--no-stream"});
  refuse(concat("--offline ", model_, shape, "--rate 2 --concurrency 1"),
         {"--rate: excludes --concurrency"});
  refuse(concat("--offline ", model_, shape, "--shared-prefix 9"), {"--shared-prefix", "9", "8"});
  refuse(concat("--offline ", model_, shape, "--preset gpt2-124m"), {"--preset: excludes"});
  refuse(concat("--offline ", shape, "--preset gpt2-123m"), {"gpt2-124m"});
  refuse(concat("--offline --preset gpt2-124m --requests 2 --input-len 1000 --output-len 30"),
         {"1024", "learned positions"});
  refuse(concat("--offline ", model_, shape, "--block-tokens 3"), {"--block-tokens"});
  refuse(concat("--offline ", model_, shape, "--top-p 0"), {"--top-p"});
  Outcome outcome = run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron bench"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("bench serve"));
}

}  // namespace
}  // namespace bev
