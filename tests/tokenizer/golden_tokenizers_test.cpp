// Tokenizers of every kind against the reference libraries: tests/golden/tokenizers.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/text/utf8.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/tokenizers/";

Json read_json(const std::string& name) { return Json::parse(read_file(kFolder + name)); }

struct Case {
  std::string tokenizer;  // path in the folder
  std::string expected;
};

std::ostream& operator<<(std::ostream& out, const Case& test) { return out << test.tokenizer; }

class GoldenTokenizer : public testing::TestWithParam<Case> {};

void compare_with_reference(const Tokenizer& tokenizer, const std::string& expected_name) {
  const Json strings = read_json("strings.json");
  const Json expected = read_json(expected_name + ".expected.json");
  ASSERT_GE(strings.size(), 300u);
  const Ids before = expected.value("before", Ids{}), after = expected.value("after", Ids{});
  for (std::size_t i = 0; i < strings.size(); ++i) {
    SCOPED_TRACE(strings[i].dump());
    std::string text = strings[i].get<std::string>();
    Ids want = expected["ids"][i].get<Ids>();
    ASSERT_EQ(tokenizer.encode(text), want);
    const Json& shown = expected["text"][i];
    ASSERT_EQ(to_valid_utf8(tokenizer.decode(want)),
              shown.is_null() ? text : shown.get<std::string>());
    if (!expected.contains("before")) continue;
    tokenizer.add_special_tokens(want);
    Ids around = before;
    Ids plain = expected["ids"][i].get<Ids>();
    around.insert(around.end(), plain.begin(), plain.end());
    around.insert(around.end(), after.begin(), after.end());
    ASSERT_EQ(want, around);
  }
}

TEST_P(GoldenTokenizer, GivesTheReferencesIdsAndText) {
  compare_with_reference(*open_tokenizer(kFolder + GetParam().tokenizer), GetParam().expected);
}

// transformers substitutes its own steps for the file's; the file alone is read as it is.
TEST(LlamaFolder, IsReadAsTransformersReadsIt) {
  struct Row {
    const char* members;
    const char* model_type;  // "": no config.json
    const char* expected;
  };
  const char* kLlama = R"("tokenizer_class": "LlamaTokenizer")";
  const char* kFast = R"("tokenizer_class": "LlamaTokenizerFast", "legacy": true)";
  for (const Row& row :
       {Row{R"("tokenizer_class": "LlamaTokenizer", "legacy": true)", "", "llama_folder_always"},
        Row{kFast, "llama", "llama_folder_always"}, Row{kLlama, "", "llama_folder_first"},
        Row{R"("tokenizer_class": "LlamaTokenizer", "legacy": false)", "llama",
            "llama_folder_first"},
        Row{R"("tokenizer_class": "LlamaTokenizer", "add_prefix_space": false)", "",
            "llama_folder_never"},
        Row{kFast, "phi3", "llama2_legacy"}, Row{R"("legacy": false)", "", "llama2_legacy"}}) {
    SCOPED_TRACE(row.members);
    TempFolder folder;
    folder.write("tokenizer.json", read_file(kFolder + "llama2_legacy.json"));
    folder.write("tokenizer_config.json", std::string("{") + row.members + "}");
    if (*row.model_type != '\0') {
      folder.write("config.json", std::string(R"({"model_type": ")") + row.model_type + "\"}");
    }
    compare_with_reference(*open_tokenizer(folder.path()), row.expected);
    compare_with_reference(*open_tokenizer(folder.path("tokenizer.json")), "llama2_legacy");
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* name : {"gpt2",           "roberta",       "llama3",
                           "qwen2",          "o200k",         "deepseek",
                           "cl100k_in_onig", "odd_regex",     "clip",
                           "llama2_legacy",  "llama2_first",  "metaspace_unk",
                           "bert",           "bert_cased",    "word_level",
                           "digits",         "splits",        "t5",
                           "falcon",         "bloom",         "tekken",
                           "olmo",           "phi4",          "gemma3",
                           "albert",         "unigram_ties",  "trained_gpt2",
                           "trained_llama3", "trained_o200k", "trained_regex"}) {
    out.push_back({std::string(name) + ".json", name});
  }
  for (const char* name : {"sp_bpe", "sp_bpe_plain", "sp_unigram", "sp_suffix"}) {
    out.push_back({std::string(name) + ".model", name});
  }
  for (const char* name : {"gpt2", "cl100k_base", "o200k_base", "llama3"}) {
    out.push_back({std::string("ranks.tiktoken:") + name, std::string("tiktoken_") + name});
  }
  out.push_back({"gpt2_files", "gpt2"});
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return test.param.expected + std::to_string(test.index);
                         });

}  // namespace
}  // namespace bev
