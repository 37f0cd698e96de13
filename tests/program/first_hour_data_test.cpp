// The first hour of a new user: text, conversations and tokenizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/program/first_hour.h"

namespace bev::first_hour {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// A model of a few thousand parameters on other data, for one iteration.
std::string tiny_train_on(const std::string& data) {
  return "train --family gpt2 --num-layers 1 --hidden-size 16 --num-attention-heads 2 "
         "--ffn-hidden-size 16 --max-position-embeddings 64 --seq-length 64 --micro-batch-size 1 "
         "--train-iters 1 --split 1,0,0 " +
         data;
}

// The same folder for the three commands that read text: one rule, and what was read is said.
TEST(FirstHour, TextFoldersAreReadByOneRule) {
  TempFolder folder;
  const std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  folder.write("d/a.txt", "\xef\xbb\xbfthe first text\r\nwith two lines\r\n");
  folder.write("d/src/main.c", "int main(void) { return 0; }\n");
  folder.write("d/NOTES", std::string(65535, 'n') + "\xe2\x82\xac and a character on the edge\n");
  folder.write("d/rows.json", "[{\"text\": \"a row of an array\"},\n {\"text\": \"another\"}]\n");
  folder.write("d/src/commands.json", "[{\"directory\": \"/\", \"file\": \"main.c\"}]\n");
  folder.write("d/.git/objects/aa/bb", "secret");
  folder.write("d/.env", "PASSWORD=secret\n");
  folder.write("d/src/.cache/x.txt", "secret");
  folder.write("d/logo.png", png);
  folder.write("d/photo.txt", png);  // a wrong ending
  folder.write("d/wide.txt", std::string("\xff\xfeh\0i\0", 6));
  std::filesystem::create_directory_symlink("..", folder.path("d/src/up"));
  std::filesystem::create_symlink("itself", folder.path("d/itself"));
  const std::string foreign =
      "; 1 of JSON as plain text, being no records with the wanted keys (commands.json)";
  const std::string said =
      "left out 3 hidden (.env, .git, src/.cache), 2 binary (logo.png, photo.txt), 1 in UTF-16 "
      "(wide.txt), 2 linked (";
  const std::vector<std::string> commands = {
      "preprocess --tokenizer byte --output-prefix p --input ",
      "tokenizer train --vocab-size 300 --output tok --input ", tiny_train_on("--text ")};
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    Outcome outcome = bevatron(folder, command + "d");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("read 5 files, 64."));
    EXPECT_THAT(outcome.err, HasSubstr(said));
    EXPECT_THAT(outcome.err, HasSubstr(foreign));
    // Given by its name, a binary file is an error; a hidden one was asked for.
    Outcome named = bevatron(folder, command + "d/a.txt d/logo.png");
    EXPECT_EQ(named.code, 2);
    EXPECT_THAT(named.err, HasSubstr("d/logo.png: is a binary file"));
    Outcome none = bevatron(folder, command + "d/.git/objects d/src/.cache");
    EXPECT_EQ(none.code, 0) << none.err;
    std::filesystem::create_directories(folder.path("empty/.git"));
    Outcome empty = bevatron(folder, command + "empty");
    EXPECT_EQ(empty.code, 2);
    EXPECT_THAT(empty.err, HasSubstr("empty: there is no text in it; left out 1 hidden (.git)"));
  }
  bevatron(folder, "preprocess --tokenizer byte --output-prefix p --input d");
  Outcome shown =
      bevatron(folder, "data show --data-path p_text_document --tokenizer byte --count 9");
  EXPECT_THAT(shown.out, HasSubstr("a row of an array"));
  EXPECT_THAT(shown.out, Not(HasSubstr("secret")));
  EXPECT_THAT(shown.out, Not(HasSubstr("\xef\xbb\xbf")));
}

TEST(FirstHour, ARankFileKeepsItsPatternAndSpecialTokens) {
  TempFolder folder;
  std::string ranks = read_file(BEV_SOURCE_DIR "/tests/golden/tokenizers/ranks.tiktoken");
  folder.write("mine.tiktoken", ranks);
  folder.write("special.json", R"({"<|stop|>": 60000, "<|endoftext|>": 60001})");
  folder.write("text.txt", "some words and 12345 numbers <|stop|> for a run of one iteration\n");
  const std::string flags =
      "--tokenizer mine.tiktoken --tiktoken-special-tokens special.json --tiktoken-pattern ";
  const std::string one_digit = R"('\p{N}|\p{L}+|[^\p{N}\p{L}]+' )";
  const std::string text = "--text 'a 2345 b<|stop|>'";
  auto ids = [&](const std::string& words) {
    Outcome outcome = bevatron(folder, concat("tokenize ", text, " ", words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  json digits = ids(flags + one_digit), named = ids(flags + "gpt2");
  EXPECT_EQ(digits.back(), 60000);
  EXPECT_NE(digits, named);
  // The pattern goes into the exported folder, which needs no flags.
  Outcome trained =
      bevatron(folder, tiny_train_on(concat("--text text.txt --export-hf out ", flags, one_digit)));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(ids("--tokenizer out"), digits);
  EXPECT_EQ(json::parse(read_file(folder.path("out/generation_config.json")))["eos_token_id"],
            60001);
  // Text that was tokenized with another pattern is not taken from the cache.
  for (const char* pattern : {"gpt2", "llama3"}) {
    Outcome other = bevatron(folder, concat("preprocess --input text.txt --output-prefix ", pattern,
                                            " ", flags, pattern));
    EXPECT_EQ(other.code, 0) << other.err;
  }
  Outcome typo = bevatron(folder, concat("tokenize ", text, " ", flags, "cl100"));
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("'cl100' is not known; give cl100k, "));
  Outcome bytes = bevatron(folder, "tokenize --text a --tokenizer byte --tiktoken-pattern gpt2");
  EXPECT_EQ(bytes.code, 2);
  EXPECT_THAT(bytes.err, HasSubstr("--tiktoken-pattern: is for rank files"));
}

constexpr const char* kChatTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// Conversations of a file, each as "role:tokens with a loss".
std::string shown_chats(const TempFolder& folder, const std::string& file) {
  Outcome outcome = bevatron(folder, concat("data show --count 9 --tokenizer byte --chat-template "
                                            "chat.jinja --sft-data ",
                                            file));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

TEST(FirstHour, ArraysAndTheUsualChatLayoutsAreRead) {
  TempFolder folder;
  folder.write("chat.jinja", kChatTemplate);
  const std::string open = "\u27e6", close = "\u27e7";
  folder.write("alpaca.json",
               "[\n  {\"instruction\": \"add\", \"input\": \"1 2\", \"output\": \"3]\\\"\"},\n"
               "  {\"system\": \"be short\", \"instruction\": \"hi\", \"input\": \"\", "
               "\"output\": \"ho\"}\n]\n");
  std::string alpaca = shown_chats(folder, "alpaca.json");
  EXPECT_THAT(alpaca, HasSubstr("(alpaca.json, line 2)"));
  EXPECT_THAT(alpaca,
              HasSubstr(concat(open, "<user>add\n\n1 2</s><assistant>", close, "3]\"</s>")));
  EXPECT_THAT(alpaca, HasSubstr(concat(open, "<system>be short</s><user>hi</s><assistant>", close,
                                       "ho</s>")));
  folder.write("sharegpt.json",
               R"([{"id": 1, "system": "s", "conversations": [{"from": "human", "value": "q"},
                    {"from": "gpt", "value": "a"}]}])");
  EXPECT_THAT(shown_chats(folder, "sharegpt.json"),
              HasSubstr("<system>s</s><user>q</s><assistant>" + close + "a</s>"));
  folder.write("openai.json",
               R"([{"messages": [{"role": "user", "content": "q"},
                    {"role": "assistant", "content": "a"}]}, {"messages": []}, {"messages": null}])");
  EXPECT_THAT(shown_chats(folder, "openai.json"),
              HasSubstr("<user>q</s><assistant>" + close + "a"));
  // Empty conversations are counted; a README in the folder is no conversation.
  std::filesystem::create_directory(folder.path("chats"));
  for (const char* name : {"alpaca.json", "sharegpt.json", "openai.json"}) {
    std::filesystem::rename(folder.path(name), folder.path(concat("chats/", name)));
  }
  folder.write("chats/README.md", "# chats");
  Outcome trained =
      bevatron(folder, tiny_train_on("--sft-data chats --tokenizer byte --chat-template chat.jinja "
                                     "--vocab-size 256"));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("6 conversations in "));
  EXPECT_THAT(trained.err, HasSubstr("; 2 left out, being empty"));
  EXPECT_THAT(trained.err, HasSubstr("left out 1 of plain text (README.md)"));
  // Texts may have another key.
  folder.write("content.json", "[{\"content\": \"" + std::string(80, 'c') + "\"}]");
  EXPECT_EQ(bevatron(folder, tiny_train_on("--text content.json --text-key content")).code, 0);
  EXPECT_THAT(
      bevatron(folder, tiny_train_on("--text content.json")).err,
      HasSubstr("the object has 'content'; --json-keys names another (--text-key of train)"));
  // A damaged array names file and line.
  folder.write("cut.json", "[{\"text\": \"a\"},\n{\"text\": \"b");
  Outcome cut = bevatron(folder, tiny_train_on("--text cut.json"));
  EXPECT_EQ(cut.code, 2);
  EXPECT_THAT(cut.err, HasSubstr("cut.json:2: the file ends inside of the array"));
}

TEST(FirstHour, ParquetIsRead) {
  TempFolder folder;
  const std::string golden = BEV_SOURCE_DIR "/tests/golden/parquet/";
  folder.write("chat.jinja", kChatTemplate);
  auto tokens = [&](const std::string& input, const std::string& prefix) {
    Outcome outcome = bevatron(folder, concat("preprocess --tokenizer byte --json-keys same tags "
                                              "--on-error skip --output-prefix ",
                                              prefix, " --input ", input));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_file(folder.path(prefix + "_tags_document.bin")) +
           read_file(folder.path(prefix + "_same_document.idx"));
  };
  const std::string want = tokens(golden + "rows.jsonl", "want");
  const std::string chats = shown_chats(folder, golden + "chats.jsonl");
  auto without_places = [](std::string text) {
    std::string out;
    for (const std::string& line : split(text, '\n')) {
      if (!line.starts_with("conversation ")) out += line + "\n";
    }
    return out;
  };
  for (const char* name : {"snappy_v1", "zstd_v2", "gzip_plain", "none_pages", "plain_v2"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(tokens(concat(golden, "texts_", name, ".parquet"), name), want);
    std::string shown = shown_chats(folder, concat(golden, "chats_", name, ".parquet"));
    EXPECT_EQ(without_places(shown), without_places(chats));
  }
  // Known by its first bytes too; a folder of them trains.
  folder.write("d/part-0", read_file(golden + "texts_snappy_v1.parquet"));
  Outcome nulls = bevatron(folder, tiny_train_on("--text d"));
  EXPECT_EQ(nulls.code, 2);
  EXPECT_THAT(nulls.err, HasSubstr("d/part-0:17: column 9: the value of 'text' is not a text"));
  Outcome unknown = bevatron(folder, tiny_train_on("--text " + golden + "chats_zstd_v2.parquet"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(
      unknown.err,
      HasSubstr(
          "there is no column text; the file has 'messages', 'source'; conversations are for"));
  Outcome delta = bevatron(folder, tiny_train_on("--text " + golden + "delta.parquet"));
  EXPECT_EQ(delta.code, 2);
  EXPECT_THAT(delta.err, HasSubstr("DELTA_BYTE_ARRAY, which is not supported"));
  std::string cut = read_file(golden + "texts_zstd_v2.parquet");
  folder.write("cut.parquet", cut.substr(0, cut.size() - 9));
  Outcome damaged = bevatron(folder, tiny_train_on("--text cut.parquet"));
  EXPECT_EQ(damaged.code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("cut.parquet: the end of the Parquet file is missing"));
}

TEST(FirstHour, DataIsShownWithMaskMarks) {
  TempFolder folder;
  folder.write("chat.jinja", kChatTemplate);
  folder.write("chats.jsonl",
               "{\"prompt\": \"what?\", \"response\": \"\u00e4h\"}\n"
               "{\"prompt\": \"and?\", \"response\": \"yes\"}\n");
  const std::string data = "--sft-data chats.jsonl --tokenizer byte --chat-template chat.jinja ";
  const std::string marked = "\u27e6<user>what?</s><assistant>\u27e7\u00e4h</s>";
  Outcome shown = bevatron(folder, "data show " + data);
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.out,
            "conversation 0 (chats.jsonl, line 1): 33 tokens, 7 with a loss\n" + marked + "\n");
  json line = json::parse(bevatron(folder, "data show --json " + data).out);
  EXPECT_EQ(line["loss_mask"].size(), line["tokens"].size());
  EXPECT_EQ(bevatron(folder, "data show --document 2 " + data).code, 2);
  // The samples of training: packed, padded, marked.
  const std::string samples = "data samples --seq-length 80 --dump 1 " + data;
  Outcome readable = bevatron(folder, samples + "--readable");
  EXPECT_EQ(readable.code, 0) << readable.err;
  EXPECT_THAT(readable.out, HasSubstr("--- train sample 0 of 1: 80 tokens, 14 with a loss\n"));
  EXPECT_THAT(readable.out, HasSubstr(marked + "\n"));
  EXPECT_THAT(readable.out, HasSubstr("(15 tokens of padding)"));
  json machine = json::parse(bevatron(folder, samples).out);
  EXPECT_THAT(machine["train"]["samples"][0]["text"].get<std::string>(), HasSubstr(marked));
  Outcome bare = bevatron(folder,
                          "data samples --mock-data --vocab-size 9 --seq-length 4 --sizes "
                          "1,0,0 --readable");
  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.err, HasSubstr("--tokenizer: is missing"));
}

TEST(FirstHour, TokenizerTrainAndPreprocessSpeakPlainly) {
  TempFolder folder;
  folder.write("one.jsonl", "{\"text\": \"ab\"}\n");
  folder.write("two.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"cd\"}\n");
  folder.write("line.txt", std::string(1 << 20, 'x'));  // one long line
  folder.write("empty.txt", "");
  folder.write("key.jsonl", "{\"body\": \"ab\"}\n");
  folder.write("chat.jsonl", "{\"messages\": []}\n");
  folder.write("late.jsonl", "{\"text\": \"ab\"}\n{\"text\": 5}\n");
  auto preprocess = [&](const std::string& words) {
    Outcome outcome =
        bevatron(folder, "preprocess --tokenizer byte --output-prefix p --input " + words);
    EXPECT_THAT(outcome.err, Not(HasSubstr("0 B")));
    EXPECT_THAT(outcome.err, Not(HasSubstr("0.0 MB/s")));
    EXPECT_THAT(outcome.err, Not(HasSubstr("a stream")));
    return outcome;
  };
  EXPECT_EQ(preprocess("one.jsonl").out, "p_text_document: 1 document, 1 sequence, 2 tokens\n");
  EXPECT_EQ(preprocess("two.jsonl").out, "p_text_document: 2 documents, 2 sequences, 4 tokens\n");
  EXPECT_THAT(preprocess("line.txt").err, HasSubstr("tokenized 1.00 MiB in "));
  EXPECT_THAT(preprocess("empty.txt").err, HasSubstr("holds no tokens: the input has no text"));
  Outcome skipped = preprocess("key.jsonl --on-error skip");
  EXPECT_THAT(skipped.out, HasSubstr("1 document skipped"));
  EXPECT_THAT(skipped.err, HasSubstr("every document was skipped"));
  // To leave documents out helps only where there are others.
  Outcome key = preprocess("key.jsonl");
  EXPECT_EQ(key.code, 2);
  EXPECT_THAT(key.err,
              HasSubstr("there is no key 'text'; the object has 'body'; --json-keys names"));
  EXPECT_THAT(key.err, Not(HasSubstr("--on-error skip")));
  EXPECT_THAT(preprocess("late.jsonl").err, HasSubstr("--on-error skip"));
  EXPECT_THAT(preprocess("chat.jsonl").err, HasSubstr("conversations are for `train --sft-data`"));
  auto train = [&](const std::string& words) {
    return bevatron(folder, "tokenizer train --output tok --vocab-size 300 --input " + words);
  };
  EXPECT_THAT(train("one.jsonl").err, HasSubstr("tok: 258 tokens from 1 different word in "));
  EXPECT_THAT(train("two.jsonl").err, HasSubstr("tok: 259 tokens from 2 different words in "));
  EXPECT_THAT(train("two.jsonl --min-frequency 2").err,
              HasSubstr("no other pair comes 2 times (--min-frequency): the vocabulary has 257"));
  EXPECT_THAT(train("key.jsonl two.jsonl --on-error skip").err,
              HasSubstr("warning: 1 document skipped"));
  EXPECT_THAT(train("empty.txt").err, HasSubstr("no text in empty.txt"));
}

}  // namespace
}  // namespace bev::first_hour
