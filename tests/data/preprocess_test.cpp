// Preprocessing: byte-equal to Megatron, independent of the number of workers and parts, and
// behaviour at bad documents, stops and restarts.
#include "data/preprocess/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/file.h"
#include "data/indexed/indexed_dataset.h"
#include "data/indexed/prefix_lock.h"
#include "data/preprocess/encoding_pipeline.h"
#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string golden(const std::string& name) { return BEV_SOURCE_DIR "/tests/golden/" + name; }

class Observer : public PreprocessObserver {
 public:
  void found(const TextInputs& inputs) override { found_ = to_text(inputs); }
  void advanced(const PreprocessProgress& progress) override {
    EXPECT_GE(progress.bytes, last_.bytes);
    EXPECT_GE(progress.documents, last_.documents);
    last_ = progress;
    ++calls_;
  }
  void skipped(const std::string& what) override { bad_.push_back(what); }
  bool stop() const override { return calls_ >= stop_after_; }

  PreprocessProgress last_;
  std::vector<std::string> bad_;
  std::string found_;
  int calls_ = 0, stop_after_ = 1 << 30;
};

class PreprocessTest : public testing::Test {
 protected:
  PreprocessTest() {
    config_.output_prefix = folder_.path("out/p");
    config_.tokenizer = "byte";
    config_.workers = 2;
  }

  PreprocessResult run() {
    observer_.last_ = {};
    return preprocess(config_, *open_tokenizer(config_.tokenizer), observer_);
  }
  std::string pair(const std::string& name) {
    return read_file(folder_.path(concat("out/", name, ".bin"))) + "|" +
           read_file(folder_.path(concat("out/", name, ".idx")));
  }
  std::string pair() { return pair("p_text_document"); }
  std::vector<std::string> left() { return list_directory(folder_.path("out")); }

  // Texts of the sequences, with "|" after each document.
  std::string shown(const std::string& name = "p_text_document") {
    IndexedDataset data(folder_.path("out/" + name));
    std::string out;
    for (std::int64_t document = 0; document < data.num_documents(); ++document) {
      auto at = static_cast<std::size_t>(document);
      for (std::int64_t i = data.documents()[at]; i < data.documents()[at + 1]; ++i) {
        std::vector<std::int32_t> ids(
            static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]));
        data.read(i, 0, ids);
        for (std::int32_t id : ids) out.push_back(static_cast<char>(id));
        out.push_back('/');
      }
      out.push_back('|');
    }
    return out;
  }
  // Documents of very different lengths.
  std::string corpus(int lines) {
    std::string content;
    std::uint32_t state = 3;
    for (int i = 0; i < lines; ++i) {
      state = state * 1664525 + 1013904223;
      content +=
          concat("{\"text\": \"", i, " ", std::string(state >> (20 + state % 12), 'x'), "\"}\n");
    }
    return folder_.write("corpus.jsonl", content);
  }

  TempFolder folder_;
  PreprocessConfig config_;
  Observer observer_;
};

TEST_F(PreprocessTest, WritesTheBytesThatMegatronWrites) {
  config_.input = {golden("preprocess/documents.jsonl")};
  config_.text.json_keys = {"text", "title"};
  config_.tokenizer = golden("tokenizers/gpt2.json");
  for (bool eod : {false, true}) {
    config_.append_eod = eod;
    PreprocessResult result = run();
    ASSERT_EQ(result.outputs.size(), 2u);
    EXPECT_EQ(result.outputs[0].documents, 14);
    for (const char* key : {"text", "title"}) {
      std::string expected =
          golden(concat("preprocess/", eod ? "eod_" : "plain_", key, "_document"));
      EXPECT_TRUE(pair(concat("p_", key, "_document")) ==
                  read_file(expected + ".bin") + "|" + read_file(expected + ".idx"))
          << key << eod;
    }
  }
  config_.input = {golden("preprocess/numbers.jsonl")};
  config_.text.json_keys = {"text"};
  config_.tokenizer = "null:70000";
  run();
  std::string expected = golden("preprocess/wide_text_document");
  EXPECT_TRUE(pair() == read_file(expected + ".bin") + "|" + read_file(expected + ".idx"));
  EXPECT_EQ(left().size(), 4u);  // two pairs and nothing else
}

TEST_F(PreprocessTest, IsTheSameForAnyWorkersAndPartitions) {
  config_.input = {corpus(3000)};
  config_.workers = 1;
  config_.partitions = 1;
  EXPECT_EQ(run().parts, 1);
  std::string expected = pair();
  for (std::int64_t workers : {1, 2, 3, 4}) {
    for (std::int64_t partitions : {std::int64_t{1}, 3 + workers * workers}) {
      config_.workers = workers;
      config_.partitions = partitions;
      PreprocessResult result = run();
      EXPECT_EQ(result.parts_done, partitions);
      EXPECT_EQ(result.outputs[0].documents, 3000);
      EXPECT_EQ(observer_.last_.documents, 3000);
      EXPECT_TRUE(pair() == expected) << workers << " " << partitions;
      EXPECT_EQ(left().size(), 2u);
    }
  }
}

TEST_F(PreprocessTest, PipelineKeepsTheOrderForOddBatches) {
  config_.input = {corpus(500)};
  std::vector<InputFile> files = list_inputs(config_.input, config_.text).files;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer("byte");
  RecordEncoder encoder(config_, *tokenizer);
  for (std::int64_t batch_bytes : {1, 257, 1000, 1 << 20}) {
    for (std::int64_t under_way : {1, 3000, 1 << 24}) {
      std::vector<std::vector<FileRange>> parts = cut_inputs(files, 1);
      TextSource source(files, parts[0], config_.text);
      EncodingPipeline pipeline(source, files, encoder, {3, batch_bytes, under_way});
      std::int64_t line = 0;
      while (std::optional<EncodedBatch> batch = pipeline.next()) {
        ASSERT_EQ(batch->records.size(), batch->encoded.size());
        for (std::size_t i = 0; i < batch->records.size(); ++i, ++line) {
          ASSERT_EQ(batch->records[i].line, line + 1);
          std::string text = tokenizer->decode(batch->encoded[i].texts.at(0).ids);
          ASSERT_TRUE(text.starts_with(concat(line, " ")));
        }
      }
      EXPECT_EQ(line, 500);
    }
  }
}

TEST_F(PreprocessTest, StopsAtTheFirstBadDocumentAndShowsNothing) {
  std::string bad =
      folder_.write("bad.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"b\"}\nnonsense\n{\"text\":5}\n");
  config_.input = {bad};
  for (std::int64_t partitions : {1, 2, 5}) {
    config_.partitions = partitions;
    expect_error(ErrorKind::kInput, {bad + ":4: column 1", "`preprocess --on-error skip`"},
                 [&] { run(); });
    for (const std::string& name : left()) EXPECT_THAT(name, HasSubstr(".parts-"));
  }
  config_.text.on_error = BadRecords::kSkip;
  for (std::int64_t partitions : {1, 2, 5}) {
    config_.partitions = partitions;
    observer_.bad_.clear();
    EXPECT_EQ(run().skipped, 2);
    EXPECT_THAT(observer_.bad_,
                ElementsAre(HasSubstr(bad + ":4: column 1"), HasSubstr(bad + ":5: column 9")));
    EXPECT_EQ(shown(), "a/|b/|");
    EXPECT_EQ(left().size(), 2u);  // the parts of other flags are removed too
  }
}

TEST_F(PreprocessTest, ABrokenArchiveIsNotSkipped) {
  config_.input = {folder_.write("a.jsonl", "{\"text\":\"a\"}\nbad\n"),
                   folder_.write("b.jsonl.gz", "")};
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += concat("{\"text\":\"", i * 7919 % 20'011, "\"}\n");
  std::string archive = gzip(lines);
  folder_.write("b.jsonl.gz", archive.substr(0, archive.size() / 2));
  config_.text.on_error = BadRecords::kSkip;
  expect_error(ErrorKind::kInput, {"b.jsonl.gz", "gzip"}, [&] { run(); });
  EXPECT_EQ(observer_.bad_.size(), 1u);  // records before it are reported first
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(PreprocessTest, ReadsTextByFileLineAndParagraph) {
  config_.input = {folder_.write("a.txt", "one\ntwo\n\nthree\n"), folder_.write("b.txt", ""),
                   folder_.write("c.txt", "four")};
  run();
  EXPECT_EQ(shown(), "one\ntwo\n\nthree\n/|four/|");
  config_.text.piece_bytes = 5;
  run();
  EXPECT_EQ(shown(), "one\n/two\n\n/three/\n/|four/|");
  config_.text.unit = TextUnit::kLine;
  run();
  EXPECT_EQ(shown(), "one/|two/|three/|four/|");
  config_.text.unit = TextUnit::kParagraph;
  run();
  EXPECT_EQ(shown(), "one\ntwo/|three/|four/|");
  config_.text.json_keys = {"text", "title"};
  expect_error(ErrorKind::kConfig, {"--json-keys", "a.txt"}, [&] { run(); });
}

TEST_F(PreprocessTest, OnlyBytesKeepWhatIsNotUtf8) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  config_.input = {folder_.write("a.txt", bytes)};
  expect_error(ErrorKind::kInput, {"a.txt: is a binary file"}, [&] { run(); });
  config_.text.format = TextFormat::kText;  // then bytes are bytes
  run();
  EXPECT_EQ(shown(), bytes + "/|");
  config_.tokenizer = golden("tokenizers/gpt2.json");
  expect_error(ErrorKind::kInput, {"a.txt:1: the text is not UTF-8"}, [&] { run(); });
}

TEST_F(PreprocessTest, SplitsSentences) {
  config_.input = {folder_.write(
      "a.jsonl", "{\"text\":\"One. Two.\\n\\nThree\"}\n{\"text\":[\"Ab. Bc.\",\"C\"]}\n")};
  config_.split_sentences = true;
  run();
  EXPECT_EQ(shown("p_text_sentence"), "One./Two./Three/|Ab./Bc./C/|");
  config_.keep_newlines = true;
  run();
  EXPECT_EQ(shown("p_text_sentence"), "One. /Two.\n\n/Three/|Ab. /Bc./C/|");
}

TEST_F(PreprocessTest, SaysWhichTokenizerLacksAnEnd) {
  config_.input = {corpus(1)};
  config_.append_eod = true;
  expect_error(ErrorKind::kConfig, {"--append-eod", "byte", "no end-of-document"}, [&] { run(); });
}

TEST_F(PreprocessTest, AnEmptyInputGivesAnEmptyPair) {
  config_.input = {folder_.write("a.jsonl", ""), folder_.write("b.jsonl", "\n")};
  PreprocessResult result = run();
  EXPECT_EQ(result.outputs[0].documents, 0);
  EXPECT_EQ(shown(), "");
  std::filesystem::create_directory(folder_.path("nothing"));
  config_.input = {folder_.path("nothing")};
  expect_error(ErrorKind::kInput, {"nothing: there is no text in it"}, [&] { run(); });
}

TEST_F(PreprocessTest, GoesOnWhereItWasStopped) {
  config_.input = {corpus(2000)};
  config_.partitions = 1;
  run();
  std::string expected = pair();
  std::filesystem::remove_all(folder_.path("out"));
  config_.partitions = 8;
  std::int64_t done = 0;
  for (int round = 0;; ++round) {
    ASSERT_LT(round, 100);
    observer_.calls_ = 0;
    observer_.stop_after_ = 4;
    PreprocessResult result = run();
    EXPECT_GE(result.parts_done, done);
    done = result.parts_done;
    if (!result.stopped) break;
    EXPECT_FALSE(path_exists(folder_.path("out/p_text_document.idx")));
  }
  EXPECT_GT(done, 0);
  EXPECT_TRUE(pair() == expected);
  EXPECT_EQ(left().size(), 2u);
}

TEST_F(PreprocessTest, KeepsNoPartOfOtherFlagsOrInputs) {
  std::string input = corpus(2000);
  config_.input = {input};
  config_.partitions = 8;
  auto stop_midway = [&] {
    observer_.calls_ = 0;
    observer_.stop_after_ = 4;
    EXPECT_TRUE(run().stopped);
    observer_.stop_after_ = 1 << 30;
    EXPECT_EQ(left().size(), 1u);
  };
  stop_midway();
  std::string first = left()[0];
  folder_.write("corpus.jsonl", "{\"text\":\"new\"}\n");
  run();
  EXPECT_EQ(shown(), "new/|");
  EXPECT_EQ(left().size(), 2u);
  std::filesystem::remove_all(folder_.path("out"));
  corpus(2000);
  stop_midway();
  EXPECT_NE(left()[0], first);  // another modification time
  std::string part = folder_.path(concat("out/", left()[0], "/part-00000.done"));
  ASSERT_TRUE(path_exists(part));
  write_file(part, "nonsense");  // a corrupt part is made again
  folder_.write(concat("out/", left()[0], "/part-00001_text.bin.1.tmp"), "left by a kill");
  EXPECT_EQ(run().outputs[0].documents, 2000);
  EXPECT_EQ(left().size(), 2u);
}

TEST_F(PreprocessTest, OneRunAtATimeWritesAPrefix) {
  config_.input = {corpus(10)};
  make_directories(folder_.path("out"));
  {
    PrefixLock other(config_.output_prefix, LockWait::kNever);
    expect_error(ErrorKind::kIo, {"out/p", "another run", concat(getpid())}, [&] { run(); });
  }
  run();
  folder_.write("out/p.lock", "99999\n");  // of a killed process: the lock is free
  EXPECT_EQ(run().outputs[0].documents, 10);
  EXPECT_EQ(left().size(), 2u);
}

TEST_F(PreprocessTest, OnceMadeIsFoundAgain) {
  config_.input = {corpus(100)};
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer("byte");
  auto once = [&] {
    return preprocess_once(config_, folder_.path("cache"), *tokenizer, observer_);
  };
  std::optional<std::string> first = once();
  ASSERT_TRUE(first);
  int calls = observer_.calls_;
  EXPECT_EQ(once(), first);
  EXPECT_EQ(observer_.calls_, calls);
  config_.split_sentences = true;
  observer_.last_ = {};
  EXPECT_NE(once(), first);
  folder_.write("corpus.jsonl", "{\"text\":\"other\"}");
  config_.split_sentences = false;
  observer_.last_ = {};
  std::optional<std::string> changed = once();
  EXPECT_NE(changed, first);
  EXPECT_EQ(IndexedDataset(*changed).num_tokens(), 5);
}

TEST_F(PreprocessTest, ManyMayAskForTheSameAtOnce) {
  config_.input = {corpus(1000)};
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer("byte");
  std::vector<std::optional<std::string>> prefixes(4);
  std::vector<Observer> observers(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    threads.emplace_back([&, i] {
      prefixes[i] = preprocess_once(config_, folder_.path("cache"), *tokenizer, observers[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int makers = 0;
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    ASSERT_TRUE(prefixes[i]);
    EXPECT_EQ(prefixes[i], prefixes[0]);
    makers += observers[i].calls_ > 0;
  }
  EXPECT_EQ(makers, 1);
  EXPECT_EQ(IndexedDataset(*prefixes[0]).num_documents(), 1000);
}

}  // namespace
}  // namespace bev
