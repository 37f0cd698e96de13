// `preprocess` from the command line: killed and restarted, twice at once, on a full disk, in
// little memory; and training on text.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kProgram = BEV_BINARY_DIR "/bevatron";
const std::string kTokenizer = BEV_SOURCE_DIR "/tests/golden/tokenizers/gpt2.json";

class PreprocessProgram : public testing::Test {
 protected:
  // The reader of a pipe may end first.
  PreprocessProgram() { signal(SIGPIPE, SIG_IGN); }

  Outcome run(const std::string& words) { return run_shell(folder_, concat(kProgram, " ", words)); }
  void write_corpus(int lines) {
    std::string content;
    for (int i = 0; i < lines; ++i) {
      content += concat("{\"text\": \"line ", i * 37 % 101, " of the corpus, number ", i, ".\"}\n");
    }
    folder_.write("corpus.jsonl", content);
  }
  std::string pair(const std::string& prefix) {
    return read_file(folder_.path(prefix + ".bin")) + read_file(folder_.path(prefix + ".idx"));
  }
  // Starts a separate process, which may be killed.
  pid_t start(const std::vector<std::string>& words) {
    std::vector<std::string> all{kProgram};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::string folder = folder_.path();
    pid_t child = fork();
    if (child != 0) return child;
    int nowhere = open("/dev/null", O_RDWR);
    dup2(nowhere, STDERR_FILENO);
    dup2(nowhere, STDOUT_FILENO);
    if (chdir(folder.c_str()) == 0) execv(arguments[0], arguments.data());
    _exit(127);
  }

  TempFolder folder_;
};

TEST_F(PreprocessProgram, SaysWhatItWroteAndWhatIsMissing) {
  write_corpus(100);
  Outcome outcome =
      run(concat("preprocess --input corpus.jsonl --output-prefix new/p --append-eod --tokenizer ",
                 kTokenizer));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("new/p_text_document: 100 documents, 100 sequences"));
  EXPECT_THAT(outcome.err, HasSubstr("tokenized "));
  Outcome bad = run("preprocess --json-keys a a --keep-newlines --output-prefix x/");
  EXPECT_EQ(bad.code, 2);
  for (const char* part : {"--input: is missing", "--tokenizer: is missing", "'a' is given twice",
                           "--keep-newlines: is for", "x/corpus"}) {
    EXPECT_THAT(bad.err, HasSubstr(part));
  }
  Outcome shut = run("preprocess --input corpus.jsonl --output-prefix /proc/p --tokenizer byte");
  EXPECT_EQ(shut.code, 1);
  EXPECT_THAT(shut.err, HasSubstr("/proc/p.lock"));
}

TEST_F(PreprocessProgram, ReadsStandardInput) {
  write_corpus(5000);
  ASSERT_EQ(run("preprocess --input corpus.jsonl --output-prefix p --tokenizer byte").code, 0);
  Outcome piped = run_shell(
      folder_, concat("cat corpus.jsonl | ", kProgram,
                      " preprocess --input /dev/stdin --input-format jsonl --output-prefix q "
                      "--tokenizer byte"));
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_TRUE(pair("p_text_document") == pair("q_text_document"));
}

TEST_F(PreprocessProgram, KilledAtAnyMomentItGoesOnToTheSameBytes) {
  write_corpus(60'000);
  std::vector<std::string> words = {"preprocess", "--input",         "corpus.jsonl", "--tokenizer",
                                    kTokenizer,   "--partitions",    "12",           "--workers",
                                    "2",          "--output-prefix", "killed"};
  Outcome whole =
      run(concat("preprocess --input corpus.jsonl --output-prefix whole --tokenizer ", kTokenizer));
  ASSERT_EQ(whole.code, 0) << whole.err;
  std::uint32_t state = static_cast<std::uint32_t>(getpid());
  int killed = 0;
  for (int round = 0; round < 40; ++round) {
    pid_t child = start(words);
    state = state * 1664525 + 1013904223;
    // The first kill is early enough for any machine.
    std::this_thread::sleep_for(std::chrono::milliseconds(round == 0 ? 15 : 20 + (state >> 24)));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++killed;
    // Whatever has the final name is complete.
    if (path_exists(folder_.path("killed_text_document.idx"))) {
      EXPECT_TRUE(pair("killed_text_document") == pair("whole_text_document"));
    }
  }
  Outcome last =
      run(concat("preprocess --input corpus.jsonl --output-prefix killed --partitions 12 "
                 "--workers 2 --tokenizer ",
                 kTokenizer));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_GT(killed, 0);
  EXPECT_TRUE(pair("killed_text_document") == pair("whole_text_document"));
  for (const std::string& name : list_directory(folder_.path())) {
    EXPECT_EQ(name.find("parts"), name.npos) << name;
    EXPECT_FALSE(name.ends_with(".tmp") || name.ends_with(".lock")) << name;
  }
}

TEST_F(PreprocessProgram, ASignalEndsItCleanly) {
  ASSERT_EQ(mkfifo(folder_.path("pipe.jsonl").c_str(), 0600), 0);
  pid_t child =
      start({"preprocess", "--input", "pipe.jsonl", "--tokenizer", "byte", "--output-prefix", "p"});
  {
    std::ofstream pipe(folder_.path("pipe.jsonl"));
    std::string line = concat("{\"text\": \"", std::string(1000, 'x'), "\"}\n");
    for (int i = 0; i < 2000; ++i) pipe << line;
    pipe.flush();
    kill(child, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (int i = 0; i < 2000; ++i) pipe << line;
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_EQ(list_directory(folder_.path()), std::vector<std::string>{"pipe.jsonl"});
}

TEST_F(PreprocessProgram, TwoRunsAtOnceDoNotMix) {
  ASSERT_EQ(mkfifo(folder_.path("pipe.jsonl").c_str(), 0600), 0);
  write_corpus(10);
  pid_t child =
      start({"preprocess", "--input", "pipe.jsonl", "--tokenizer", "byte", "--output-prefix", "p"});
  std::ofstream pipe(folder_.path("pipe.jsonl"));  // blocks until the child reads
  Outcome second = run("preprocess --input corpus.jsonl --output-prefix p --tokenizer byte");
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr(concat("another run writes it (process ", child)));
  pipe << "{\"text\": \"from the pipe\"}\n";
  pipe.close();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder_.path("p_text_document.bin")).size(), 2 * 13u);
}

// A limit on the file size fails like a full disk: in write(2).
TEST_F(PreprocessProgram, AFullDiskIsAnErrorAndLeavesNothing) {
  write_corpus(50'000);
  Outcome full = run_shell(folder_, concat("ulimit -f 1000; ", kProgram,
                                           " preprocess --input corpus.jsonl --output-prefix p "
                                           "--tokenizer byte"));
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("cannot write"));
  for (const std::string& name : list_directory(folder_.path())) {
    EXPECT_FALSE(name.starts_with("p_") || name.starts_with("p.")) << name;
  }
}

// Peak memory of a run over a stream of generated lines.
std::int64_t peak_bytes(const TempFolder& folder, std::int64_t stream_bytes) {
  std::string pipe = folder.path("pipe.jsonl");
  EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  pid_t child = fork();
  if (child == 0) {
    int nowhere = open("/dev/null", O_RDWR);
    dup2(nowhere, STDERR_FILENO);
    dup2(nowhere, STDOUT_FILENO);
    if (chdir(folder.path().c_str()) == 0) {
      execl(kProgram.c_str(), kProgram.c_str(), "preprocess", "--input", "pipe.jsonl",
            "--output-prefix", "p", "--tokenizer", "byte", "--workers", "4", nullptr);
    }
    _exit(127);
  }
  {
    std::ofstream out(pipe, std::ios::binary);
    std::string block;  // mostly an unused key, so that less has to be written
    while (block.size() < 1 << 20) {
      std::size_t size = block.size() % 7919;
      block += concat("{\"other\": \"", std::string(size, 'x'), "\", \"text\": \"",
                      std::string(size / 8, 'y'), "\"}\n");
    }
    // One document of 32 MB among small ones.
    for (std::int64_t sent = 0; sent < stream_bytes;
         sent += static_cast<std::int64_t>(block.size())) {
      out << block;
      if (sent == 0) out << "{\"text\": \"" << std::string(32 << 20, 'y') << "\"}\n";
    }
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  unlink(pipe.c_str());
  return std::int64_t{usage.ru_maxrss} * 1024;
}

TEST_F(PreprocessProgram, MemoryDoesNotGrowWithTheInput) {
  EXPECT_LT(peak_bytes(folder_, 200 << 20), std::int64_t{700} << 20);
}

TEST_F(PreprocessProgram, DISABLED_SeveralGigabytesPassThroughOne) {
  EXPECT_LT(peak_bytes(folder_, std::int64_t{4} << 30), std::int64_t{700} << 20);
}

class TextTraining : public PreprocessProgram {
 protected:
  Outcome train(const std::string& words) {
    return run(
        "train --family llama --num-layers 1 --hidden-size 16 --num-attention-heads 2 "
        "--ffn-hidden-size 24 --position-embedding-type rope --normalization RMSNorm --swiglu "
        "--disable-bias-linear --seq-length 16 --micro-batch-size 2 --lr 1e-2 --loss-svg '' "
        "--train-iters 8 --metrics-out metrics " +
        words);
  }
  std::string metric_losses() {
    std::string out;
    for (const std::string& line :
         split(std::string(trim(read_file(folder_.path("metrics")))), '\n')) {
      out += concat(json::parse(line)["loss"].get<double>(), " ");
    }
    return out;
  }
};

TEST_F(TextTraining, TokenizesOnceAndExportsTheTokenizer) {
  write_corpus(300);
  std::string words = concat("--text corpus.jsonl --tokenizer ", kTokenizer,
                             " --data-cache-path cache --split 9,1,0 --eval-interval 4 "
                             "--eval-iters 1 --export-hf out");
  Outcome first = train(words);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("tokenizing"));
  std::string losses = metric_losses();
  Outcome second = train(words);
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, testing::Not(HasSubstr("tokenizing")));
  EXPECT_EQ(metric_losses(), losses);
  EXPECT_EQ(read_file(folder_.path("out/tokenizer.json")), read_file(kTokenizer));
  std::optional<std::int32_t> end = open_tokenizer(kTokenizer)->eod();
  ASSERT_TRUE(end);
  EXPECT_EQ(json::parse(read_file(folder_.path("out/generation_config.json")))["eos_token_id"],
            *end);
  Outcome text = run("generate --hf-model out --prompt 'line 5' --max-new-tokens 5");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_GT(text.out.size(), 5u);  // one byte of text per token, and a line end

  // The same tokens through preprocess give the same run.
  Outcome made =
      run(concat("preprocess --input corpus.jsonl --output-prefix p --append-eod "
                 "--tokenizer ",
                 kTokenizer));
  ASSERT_EQ(made.code, 0) << made.err;
  Outcome files = train(concat("--data-path p_text_document --tokenizer ", kTokenizer,
                               " --split 9,1,0 --eval-interval 4 --eval-iters 1"));
  ASSERT_EQ(files.code, 0) << files.err;
  EXPECT_EQ(metric_losses(), losses);
}

TEST_F(TextTraining, CutsTextFilesSoThatTheyCanBeSplit) {
  std::string content;
  for (int i = 0; i < 4000; ++i) content += concat("line ", i * 37 % 101, " of the book\n");
  folder_.write("book", content);  // without an extension: still text
  Outcome outcome = train("--text book --split 9,1,0 --eval-interval 4 --eval-iters 1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::string file;
  for (const std::string& name : list_directory(folder_.path("bevatron_cache"))) {
    if (name.ends_with(".idx")) file = "bevatron_cache/" + name.substr(0, name.size() - 4);
  }
  json info = json::parse(run("data info --json --data-path " + file).out);
  EXPECT_EQ(info["documents"], 1);
  EXPECT_EQ(info["tokens"], content.size());
  EXPECT_GT(info["sequences"].get<int>(), 10);
}

TEST_F(TextTraining, SaysWhatIsWrongWithTextAndTokenizer) {
  write_corpus(10);
  folder_.write("empty.txt", "");
  auto expect = [&](const std::string& words, const char* part) {
    Outcome outcome = train(words);
    EXPECT_EQ(outcome.code, 2) << words << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect("--text empty.txt", "--text: no text in empty.txt");
  expect("--text nothing.txt", "nothing.txt: cannot be read");
  expect("--text corpus.jsonl --tokenizer none.json", "none.json");
  expect(concat("--text corpus.jsonl --vocab-size 200 --tokenizer ", kTokenizer),
         "--vocab-size: 200 is too small");
  folder_.write("bad.jsonl", "{\"text\": 5}\n");
  expect("--text bad.jsonl", "bad.jsonl:1: column 10: the value of 'text' is not a text");
}

}  // namespace
}  // namespace bev
