// serve, as a user calls it.
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

class Serve : public testing::Test {
 protected:
  void SetUp() override {
#ifndef BEV_HAS_SERVE
    GTEST_SKIP() << "this build has no server";
#endif
  }
  // Starts `program serve words`, waits until it is ready, runs the shell command, in which $url is
  // the server's and $BEV the program, and stops the server by SIGTERM. Its exit code is the last
  // line of the output. A launcher's processes get the signal themselves: mpirun, sent one, exits
  // with 1 whatever they do.
  Outcome served(const std::string& words, const std::string& command,
                 const std::string& launcher = "") {
    return run_shell(folder_,
                     concat("BEV=", BEV_BINARY_DIR, "/bevatron; rm -f ready; ", launcher,
                            " $BEV serve ", model_, words,
                            " --port 0 --device cpu > ready 2> log & pid=$!\n"
                            "for i in $(seq 1200); do grep -qs ready ready && break; "
                            "kill -0 $pid 2>/dev/null || break; sleep 0.05; done\n"
                            "url=$(sed -n 's/.*\"url\":\"\\([^\"]*\\)\".*/\\1/p' ready)\n",
                            command,
                            launcher.empty() ? "\nkill -TERM $pid"
                                             : "\nkill -TERM $(cat /proc/$pid/task/$pid/children)",
                            "; wait $pid; echo \"exit $?\"; cat log >&2"));
  }
  Outcome refused(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron serve ", words));
  }

  TempFolder folder_;
  std::string model_ = concat("--hf-model ", BEV_SOURCE_DIR, "/tests/golden/models/llama_gqa ");
};

TEST_F(Serve, SaysWhenItIsReadyAndEndsWithZero) {
  Outcome outcome = served("--max-seqs 4 --max-model-len 32 --served-model-name mine", "cat ready");
  ASSERT_THAT(outcome.out, HasSubstr("\nexit 0\n")) << outcome.err;
  json ready = json::parse(split(outcome.out, '\n')[0]);
  EXPECT_EQ(ready["event"], "ready");
  EXPECT_THAT(ready["url"].get<std::string>(), testing::MatchesRegex("http://127.0.0.1:[0-9]+"));
  EXPECT_EQ(ready["model"], "mine");
  EXPECT_EQ(ready["block_tokens"], 64);
  EXPECT_EQ(ready["max_seqs"], 4);
  EXPECT_EQ(ready["max_model_len"], 32);
  EXPECT_GE(ready["total_blocks"].get<int>(), 1);
}

// The same tokens whatever the layout; the load generator is the client.
TEST_F(Serve, ServesUnderLayoutsAndLaunchers) {
  const std::string load =
      "$BEV bench serve --url $url --requests 6 --input-len 5 --output-len 7 --concurrency 3";
  struct Row {
    const char *words, *launcher;
  };
  const Row rows[] = {{"", ""},
                      {" --tp 2", ""},
                      {" --dp 2", ""},
                      {" --tp 2", "mpirun --allow-run-as-root --oversubscribe -n 2"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(concat(row.launcher, row.words));
    Outcome outcome = served(row.words, load, row.launcher);
    std::vector<std::string> lines = split(outcome.out, '\n');
    ASSERT_GE(lines.size(), 2u) << outcome.err;
    EXPECT_EQ(lines[1], "exit 0") << outcome.err;
    json line = json::parse(lines[0], nullptr, false);
    ASSERT_FALSE(line.is_discarded()) << outcome.out << outcome.err;
    EXPECT_EQ(line["completed"], 6);
    EXPECT_EQ(line["output_tokens"], 42);
  }
}

TEST_F(Serve, FinishesWhatRunsBeforeItEnds) {
  Outcome outcome = served("--max-seqs 2",
                           "$BEV bench serve --url $url --requests 2 --input-len 4 --output-len 24 "
                           "> load 2> load.log & load=$!\n"
                           "sleep 0.3; kill -TERM $pid; wait $load; cat load; ");
  EXPECT_THAT(outcome.out, HasSubstr("exit 0")) << outcome.err;
}

TEST_F(Serve, RefusesWhatCannotBeServed) {
  EXPECT_THAT(refused("").err, HasSubstr("--hf-model"));
  for (const auto& [words, part] : std::vector<std::pair<std::string, const char*>>{
           {"--tls-cert x.pem", "--tls-key"},
           {"--tls-cert x.pem --tls-key y.pem", "--tls-cert"},
           {"--port 70000", "--port"},
           {"--host 203.0.113.7", "203.0.113.7"},
           {"--api-key ''", "--api-key: a key is empty"},
           {"--api-key a,,b", "--api-key: has an empty item"},
           {"--control-key ' '", "--control-key: a key is empty"},
           {"--api-key-file nothing.txt", "nothing.txt"},
           {"--reasoning-parser magic", "--reasoning-parser"},
           {"--block-tokens 7", "--block-tokens"},
           {"--max-model-len 1000 --kv-cache-tokens 128", "--max-model-len"},
           {"--chat-template none.jinja", "--chat-template"}}) {
    Outcome outcome = refused(concat(model_, words, " --device cpu"));
    EXPECT_EQ(outcome.code, 2) << words << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part)) << words;
  }
  // The port of another server.
  Outcome outcome =
      served("", concat("$BEV serve ", model_, " --device cpu --port ${url##*:} ; true"));
  EXPECT_THAT(outcome.out, HasSubstr("exit 0"));
}

}  // namespace
}  // namespace bev
