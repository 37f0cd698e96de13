// Paths that are not plain, complete files, wherever the program takes one: it answers quickly and
// names the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "data/indexed/indexed_writer.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HostileFiles : public testing::Test {
 protected:
  HostileFiles() {
    fs::copy(BEV_SOURCE_DIR "/tests/golden/models/llama_gqa", folder_.path("model"));
    fs::copy(BEV_SOURCE_DIR "/tests/golden/tokenizers/gpt2.json", folder_.path("good.json"));
  }

  // A program that does not end is killed, with exit code 137.
  Outcome run(const std::string& words, const std::string& before = "") {
    return run_shell(folder_,
                     concat(before, " timeout -s KILL 60 ", BEV_BINARY_DIR, "/bevatron ", words));
  }
  void expect_refused(const std::string& words, const std::string& file) {
    Outcome got = run(words);
    EXPECT_EQ(got.code, 2) << words << "\n" << got.err;
    EXPECT_THAT(got.err, HasSubstr("error: ")) << words;
    EXPECT_THAT(got.err, HasSubstr(file)) << words;
  }

  // Names that end in .json, by the kind of their target.
  std::vector<std::string> make_bad_files() {
    fs::create_symlink("nowhere", folder_.path("dangling.json"));
    fs::create_symlink("loop.json", folder_.path("loop.json"));
    fs::create_directory(folder_.path("folder.json"));
    EXPECT_EQ(mkfifo(folder_.path("pipe.json").c_str(), 0600), 0);
    fs::create_symlink("/dev/zero", folder_.path("device.json"));
    fs::create_symlink("/proc/self/mem",
                       folder_.path("memory.json"));  // open() works, read() fails
    return {"dangling.json", "loop.json", "folder.json", "pipe.json", "device.json", "memory.json"};
  }

  TempFolder folder_;
};

TEST_F(HostileFiles, AreRefusedByEveryFlag) {
  for (const std::string& file : make_bad_files()) {
    expect_refused("train --config " + file, file);
    expect_refused("score --hf-model model --tokens " + file, file);
    expect_refused("score --hf-model model --batch " + file, file);
    expect_refused("train --hf-model model --train-iters 1 --token-batches " + file, file);
    expect_refused("train --hf-model model --train-iters 1 --batches " + file, file);
    expect_refused("tokenize --text hello --tokenizer " + file, file);
    expect_refused("tokenize --tokenizer good.json --chat " + file + " --chat-template good.json",
                   file);
    expect_refused(
        "tokenize --tokenizer good.json --chat model/tokens.json --chat-template " + file, file);
    expect_refused("train --hf-model model --train-iters 1 --seq-length 8 --data-args-path " + file,
                   file);
    expect_refused("plot --output out.svg " + file, file);
    if (file == "pipe.json" || file == "folder.json") continue;  // valid inputs for text
    expect_refused("preprocess --tokenizer byte --output-prefix out --input " + file, file);
  }
}

TEST_F(HostileFiles, AreRefusedInsideOfFolders) {
  for (const std::string& file : make_bad_files()) {
    for (const char* part : {"config.json", "model.safetensors"}) {
      fs::copy(folder_.path("model"), folder_.path("bad"));
      fs::remove(folder_.path(concat("bad/", part)));
      fs::create_symlink("../" + file, folder_.path(concat("bad/", part)));
      expect_refused("convert --hf-model bad --export-hf out", part);
      EXPECT_FALSE(path_exists(folder_.path("out")));
      fs::remove_all(folder_.path("bad"));
    }
  }
}

TEST_F(HostileFiles, MayNotBeReadByThisUser) {
  if (geteuid() != 0 || run_shell(folder_, "setpriv --version").code != 0) {
    GTEST_SKIP() << "becoming another user needs root and setpriv";
  }
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(folder_.path("good.json"), fs::perms::none);
  Outcome got = run("tokenize --text hello --tokenizer good.json",
                    "setpriv --reuid 65534 --regid 65534 --clear-groups");
  EXPECT_EQ(got.code, 2) << got.err;
  EXPECT_THAT(got.err, HasSubstr("good.json: Permission denied"));
}

// Trains on token files, and runs `command` once training has started: returns the output and
// "ended CODE".
std::string train_and(const TempFolder& folder, std::int64_t iterations,
                      const std::string& command) {
  IndexedDatasetWriter writer(folder.path("tokens"), TokenType::kU16);
  writer.add_sequence(std::vector<std::int32_t>(100'000, 3));
  writer.end_document();
  writer.commit();
  std::string train =
      concat(BEV_BINARY_DIR,
             "/bevatron train --hf-model model --data-path tokens --split 1,0,0 --seq-length 16 "
             "--micro-batch-size 1 --lr 1e-4 --loss-svg '' --log-interval 1 --train-iters ",
             iterations);
  return run_shell(folder, concat("(timeout -s KILL 60 ", train, "; echo ended $?) > log 2>&1 & ",
                                  "until grep -q 'iteration\\|ended' log; do sleep 0.05; done; ",
                                  command, "; wait; cat log"))
      .out;
}

TEST_F(HostileFiles, AreNamedWhenTheyShrinkInUse) {
  std::string said = train_and(folder_, 1'000'000, "truncate -s 0 tokens.bin");
  EXPECT_THAT(said, HasSubstr("tokens.bin: was cut while it was in use"));
  EXPECT_THAT(said, HasSubstr("ended 2"));
}

// Removed files stay readable while they are mapped.
TEST_F(HostileFiles, MayBeRemovedInUse) {
  EXPECT_THAT(train_and(folder_, 500, "rm tokens.bin tokens.idx"), HasSubstr("ended 0"));
}

}  // namespace
}  // namespace bev
