// Where the template of a tokenizer comes from, and what it sees.
#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "chat/jinja/value_text.h"
#include "chat/token_spans.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

jinja::Value messages(const std::string& json = R"([{"role": "user", "content": "hi"}])") {
  return jinja::parse_json(json, "messages");
}

class ChatTemplateFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::string path = folder_.path(name);
    make_directories(parent_path(path));
    write_file(path, text);
  }
  std::string render(const std::string& chosen = "", bool tools = false) {
    return ChatTemplate::load(folder_.path(""), chosen, tools).render(messages(), {}).text;
  }

  TempFolder folder_;
};

TEST_F(ChatTemplateFolder, TheJinjaFileWinsOverTheConfiguration) {
  write("tokenizer_config.json",
        R"({"chat_template": "config {{ bos_token }}", "bos_token": "B"})");
  EXPECT_EQ(render(), "config B");
  write("chat_template.jinja", "file {{ bos_token }}{{ eos_token is defined }}");
  EXPECT_EQ(render(), "file BFalse");
}

TEST_F(ChatTemplateFolder, ChoosesAmongNamedTemplates) {
  write("tokenizer_config.json", R"({"chat_template": [
      {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
      {"name": "rag", "template": "rag"}]})");
  EXPECT_EQ(render(), "plain");
  EXPECT_EQ(render("", true), "tools");
  EXPECT_EQ(render("rag"), "rag");
  expect_error(ErrorKind::kInput, {"no_such", "default, rag, tool_use"},
               [&] { render("no_such"); });
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "rag"}]})");
  expect_error(ErrorKind::kInput, {"none of its chat templates is the default", "rag"},
               [&] { render(); });
}

TEST_F(ChatTemplateFolder, FindsAdditionalTemplatesAndThoseOfProcessors) {
  write("chat_template.json", R"({"chat_template": "processor"})");
  EXPECT_EQ(render(), "processor");
  write("chat_template.jinja", "default");
  write("additional_chat_templates/tool_use.jinja", "more tools");
  EXPECT_EQ(render(), "default");
  EXPECT_EQ(render("", true), "more tools");
}

TEST_F(ChatTemplateFolder, SpecialTokensAreTextsOrObjectsAndMayComeFromTheMap) {
  write("tokenizer_config.json", R"({"bos_token": {"content": "<b>", "lstrip": false},
      "pad_token": null, "eos_token": "<e>"})");
  write("special_tokens_map.json", R"({"eos_token": "other", "unk_token": {"content": "<u>"}})");
  write("chat_template.jinja",
        "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token is defined }}");
  EXPECT_EQ(render(), "<b><e><u>False");
}

TEST_F(ChatTemplateFolder, WithoutATemplateSaysHowToGiveOne) {
  expect_error(ErrorKind::kInput, {"no chat template", "--chat-template"}, [&] { render(); });
  write("tokenizer_config.json", R"({"chat_template": 5})");
  expect_error(ErrorKind::kInput, {"tokenizer_config.json", "no text and no list"},
               [&] { render(); });
}

TEST(ChatTemplate, VariablesWinOverSpecialTokensAndReasoningHasItsNames) {
  jinja::Dict special;
  special.set("bos_token", "B");
  ChatTemplate chat(jinja::Template("{{ bos_token }}{{ x }}{{ messages[0]|tojson }}", "t"),
                    special);
  ChatOptions options;
  options.variables.set("bos_token", "C");
  options.variables.set("x", 5);
  EXPECT_EQ(
      chat.render(messages(R"([{"role": "assistant", "reasoning": "r", "content": "c"}])"), options)
          .text,
      R"(C5{"thinking": "r", "role": "assistant", "reasoning": "r", "content": "c", )"
      R"("reasoning_content": "r"})");
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  ChatTemplate chat(jinja::Template("x", "t"), {});
  for (const char* wrong : {"[]", "5", "{}", R"("text")"}) {
    expect_error(ErrorKind::kInput, {"not empty"}, [&] { chat.render(messages(wrong), {}); });
  }
  expect_error(ErrorKind::kInput, {"message 1 is a str"},
               [&] { chat.render(messages(R"([{"role": "user"}, "x"])"), {}); });
}

TEST(TokenSpans, CoverTheTextAlsoWhereTheTokenizerNormalizesIt) {
  auto tokenizer = open_tokenizer(BEV_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json");
  std::string text =
      "e\xcc\x81"
      "a \xf0\x9f\x8e\x89 e\xcc\x81";  // decomposed, and an emoji
  auto ids = tokenizer->encode(text);
  auto spans = token_spans(*tokenizer, text, ids);
  ASSERT_EQ(spans.size(), ids.size());
  EXPECT_EQ(spans.front().begin, 0u);
  EXPECT_EQ(spans.back().end, text.size());
  for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].end, spans[i - 1].end);
}

TEST(TokenSpans, RefuseATokenizerThatRewritesTheText) {
  auto tokenizer = open_tokenizer(BEV_SOURCE_DIR "/tests/golden/tokenizers/bert.json");
  std::string text = "Hello WORLD";
  auto ids = tokenizer->encode(text);
  expect_error(ErrorKind::kInput, {"changes the text"},
               [&] { token_spans(*tokenizer, text, ids); });
}

}  // namespace
}  // namespace bev
