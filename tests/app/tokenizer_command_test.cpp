#include <gtest/gtest.h>

#include "app/commands/commands.h"
#include "base/file.h"
#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

// Runs `tokenizer train` with these flags and returns its log.
std::string train(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStderr();
  try {
    EXPECT_EQ(run_command(find_command("tokenizer train"), arguments), kExitOk);
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  return testing::internal::GetCapturedStderr();
}

TEST(TokenizerTrain, ReadsFoldersAndJsonLines) {
  TempFolder folder;
  folder.write("text/a.txt", "one two two");
  folder.write("text/below/b.txt", "two three\r\n");
  folder.write("text/c.jsonl", "{\"text\": \"two\", \"n\": 1}\n\n{\"text\": \"tw\\u006f\"}");
  std::string log = train({"--input", folder.path("text"), "--output", folder.path("out"),
                           "--vocab-size", "259", "--special-tokens", "<end>"});
  auto tokenizer = open_tokenizer(folder.path("out"));
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->eod(), 0);
  EXPECT_EQ(tokenizer->token_text(0), "<end>");
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{257}), "tw");
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{258}), "two");
  EXPECT_NE(log.find("259 tokens"), std::string::npos) << log;
  EXPECT_EQ(log.find("warning"), std::string::npos) << log;
}

// Archives, patterns, lists of texts, several keys and skipped documents.
TEST(TokenizerTrain, ReadsWhatPreprocessReads) {
  TempFolder folder;
  const std::string lines =
      "{\"text\": [\"two\", \"two\"], \"title\": \"tw\"}\n{\"text\": 1, \"title\": \"xy\"}\n";
  folder.write("plain/a.jsonl", lines);
  folder.write("plain/b.md", "\xef\xbb\xbftwo");
  folder.write("plain/c", "two two");
  const std::string gz = folder.write("two.jsonl.gz", gzip(lines));
  const std::string zst = folder.write("two.jsonl.zst", zstd(lines));
  auto trained = [&](const std::vector<std::string>& inputs) {
    std::vector<std::string> arguments = {"--input"};
    arguments.insert(arguments.end(), inputs.begin(), inputs.end());
    for (const char* word : {"--output", "", "--vocab-size", "259", "--json-keys", "text", "title",
                             "--on-error", "skip"}) {
      arguments.push_back(*word == '\0' ? folder.path("out") : word);
    }
    std::string log = train(arguments);
    EXPECT_NE(log.find("jsonl"), std::string::npos) << log;
    EXPECT_NE(log.find("1 document skipped"), std::string::npos) << log;
    return read_file(folder.path("out/tokenizer.json"));
  };
  std::string from_folder = trained({folder.path("plain")});
  EXPECT_EQ(trained({gz, folder.path("plain/[b]*"), folder.path("plain/c")}), from_folder);
  EXPECT_EQ(trained({zst, folder.path("plain/[bc]*")}), from_folder);
  auto tokenizer = open_tokenizer(folder.path("out"));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{257}), "tw");
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{258}), "two");
}

// A file beyond --max-document-bytes is read in pieces, with the same result as in one piece.
TEST(TokenizerTrain, LongFilesAreReadInPieces) {
  TempFolder folder;
  std::string text, escaped;
  for (int i = 0; text.size() < (std::size_t{9} << 20); ++i) {
    const int number = i * 7919 % 1000;
    text += concat("line ", number, i % 3 == 0 ? "\n\n\n" : "\n");
    escaped += concat("line ", number, i % 3 == 0 ? "\\n\\n\\n" : "\\n");
  }
  const std::string file = folder.write("long.txt", text);
  auto trained = [&](const std::string& input, const std::string& most) {
    train({"--input", input, "--output", folder.path("out"), "--vocab-size", "400",
           "--max-document-bytes", most});
    return read_file(folder.path("out/tokenizer.json"));
  };
  const std::string whole = folder.write("whole.jsonl", "{\"text\": \"" + escaped + "\"}\n");
  EXPECT_EQ(trained(file, "1000"), trained(whole, "100000000"));
}

// The skipped piece ends the document, but its last words are still counted.
TEST(TokenizerTrain, ASkippedPieceLosesNothingElse) {
  TempFolder folder;
  std::string text;
  while (text.size() < (std::size_t{4} << 20) - 1000) text += "one\n";
  while (text.size() < (std::size_t{4} << 20)) text += "zq\n";
  const std::string file = folder.write("long.txt", text + "\xff\n");
  std::string log = train({"--input", file, "--output", folder.path("out"), "--vocab-size", "262",
                           "--on-error", "skip"});
  EXPECT_NE(log.find("not UTF-8"), std::string::npos) << log;
  EXPECT_EQ(open_tokenizer(folder.path("out"))->encode("zq").size(), 1u) << log;
}

TEST(TokenizerTrain, SaysWhenTheTextGivesFewerTokens) {
  TempFolder folder;
  std::string file = folder.write("a.txt", "ab");
  std::string log = train({"--input", file, "--output", folder.path("out"), "--vocab-size", "999"});
  EXPECT_NE(log.find("258 tokens instead of 999"), std::string::npos) << log;
}

TEST(TokenizerTrain, SaysWhatIsWrong) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", "some text"), out = folder.path("out");
  auto fails = [&](ErrorKind kind, const std::vector<std::string>& parts,
                   const std::vector<std::string>& arguments) {
    SCOPED_TRACE(join(arguments, " "));
    expect_error(kind, parts, [&] { train(arguments); });
    EXPECT_FALSE(path_exists(join_path(out, "tokenizer.json")));
  };
  const auto kConfig = ErrorKind::kConfig, kInput = ErrorKind::kInput;
  fails(kConfig, {"--input", "--output"}, {});
  fails(kConfig, {"--vocab-size", "258"},
        {"--input", text, "--output", out, "--vocab-size", "257", "--special-tokens", "a,b"});
  fails(kConfig, {"--special-tokens", "twice"},
        {"--input", text, "--output", out, "--special-tokens", "a,b,a"});
  fails(kConfig, {"--pattern", "llama4"},
        {"--input", text, "--output", out, "--pattern", "llama4"});
  fails(kInput, {"nowhere", "No such file"}, {"--input", folder.path("nowhere"), "--output", out});
  fails(kInput, {"no text"}, {"--input", folder.write("empty.txt", ""), "--output", out});
  fails(ErrorKind::kIo, {"a.txt"}, {"--input", text, "--output", text + "/below"});
  fails(kInput, {"bad.jsonl:2", "not a JSON object", "--on-error skip"},
        {"--input", folder.write("bad.jsonl", "{\"text\": \"a\"}\n[1]\n"), "--output", out});
  fails(kInput, {"latin.txt:1", "not UTF-8"},
        {"--input", folder.write("latin.txt", "caf\xe9"), "--output", out});
  fails(kInput, {"other.jsonl:1", "text", "content", "--json-keys"},
        {"--input", folder.write("other.jsonl", "{\"content\": \"a\"}\n"), "--output", out});
}

}  // namespace
}  // namespace bev
