#include <gtest/gtest.h>

#include "app/commands.h"
#include "base/fields.h"
#include "base/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

// Runs `tokenizer train` with these flags and gives what it logged.
std::string train(const std::vector<std::string>& arguments) {
  const Command& command = find_command("tokenizer train");
  CommandConfig config;
  FieldList fields;
  command.fields(config, fields);
  Options options = parse_options(fields, arguments);
  testing::internal::CaptureStderr();
  try {
    EXPECT_EQ(command.run(config, fields, options), kExitOk);
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
  fails(kInput, {"nowhere", "no such"}, {"--input", folder.path("nowhere"), "--output", out});
  fails(kInput, {"no text"}, {"--input", folder.write("empty.txt", ""), "--output", out});
  fails(ErrorKind::kIo, {"a.txt"}, {"--input", text, "--output", text + "/below"});
  fails(kInput, {"bad.jsonl:2", "not a JSON object"},
        {"--input", folder.write("bad.jsonl", "{\"text\": \"a\"}\n[1]\n"), "--output", out});
  fails(kInput, {"other.jsonl:1", "\"text\"", "--json-keys"},
        {"--input", folder.write("other.jsonl", "{\"content\": \"a\"}\n"), "--output", out});
}

}  // namespace
}  // namespace bev
