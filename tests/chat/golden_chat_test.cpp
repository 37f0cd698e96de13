// Chat templates against transformers: tests/golden/chat.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "chat/assistant_spans.h"
#include "chat/chat_template.h"
#include "chat/jinja/value_text.h"

namespace bev {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/chat/";

Json read_golden(const std::string& name) { return Json::parse(read_file(kFolder + name)); }

jinja::Value value_of(const Json& json) { return jinja::parse_json(json.dump(), "golden"); }

std::string read_template(const std::string& name) {
  return read_file(kFolder + "templates/" + name + ".jinja");
}

// Runs the action; what it throws becomes null.
template <class Action>
Json text_or_null(Action action) {
  try {
    return action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    return nullptr;
  }
}

TEST(GoldenChat, SmallTemplatesGiveTheReferencesText) {
  const Json golden = read_golden("features.json");
  const jinja::Value context = value_of(golden["context"]);
  ASSERT_GE(golden["templates"].size(), 500u);
  for (const Json& row : golden["templates"]) {
    SCOPED_TRACE(row["template"].dump());
    Json spans = Json::array();
    Json text = text_or_null([&] {
      auto rendered =
          jinja::Template(row["template"].get<std::string>(), "small").render(*context.dict());
      for (auto span : rendered.spans) spans.push_back({span.begin, span.end});
      return rendered.text;
    });
    EXPECT_EQ(text, row["text"]);
    EXPECT_EQ(spans, row.value("spans", Json::array()));
  }
}

ChatOptions read_options(const Json& json) {
  ChatOptions options;
  const jinja::Value variables = value_of(json);
  for (const auto& [name, value] : variables.dict()->items) {
    if (*name.string() == "tools") {
      options.tools = value;
    } else if (*name.string() == "documents") {
      options.documents = value;
    } else if (*name.string() == "add_generation_prompt") {
      options.add_generation_prompt = value.truth();
    } else {
      options.variables.set(name, value);
    }
  }
  return options;
}

TEST(GoldenChat, PublishedTemplatesGiveTheReferencesText) {
  const Json golden = read_golden("chats.json");
  const jinja::Value special_tokens = value_of(golden["special_tokens"]);
  std::size_t refused = 0;
  std::map<std::string, ChatTemplate> templates;
  ASSERT_GE(golden["rows"].size(), 2000u);
  for (const Json& row : golden["rows"]) {
    SCOPED_TRACE(row.dump());
    std::string name = row[0];
    auto [chat, added] = templates.try_emplace(name, jinja::Template(read_template(name), name),
                                               *special_tokens.dict());
    Json text = text_or_null([&] {
      return chat->second
          .render(value_of(golden["conversations"][row[1].get<std::string>()]),
                  read_options(golden["options"][row[2].get<std::size_t>()]))
          .text;
    });
    Json expected = row[3].is_null() ? row[3] : golden["texts"][row[3].get<std::size_t>()];
    ASSERT_EQ(text, expected);
    refused += text.is_null() ? 1 : 0;
  }
  EXPECT_GT(refused, 100u);  // refusals are compared too
}

TEST(GoldenChat, AssistantMasksAreTheReferences) {
  const Json golden = read_golden("masks.json"), chats = read_golden("chats.json");
  const jinja::Value special_tokens = value_of(chats["special_tokens"]);
  ASSERT_GE(golden.size(), 100u);
  for (const Json& row : golden) {
    SCOPED_TRACE(row.dump());
    std::string name = row["template"];
    auto tokenizer = open_tokenizer(BEV_SOURCE_DIR "/tests/golden/tokenizers/" +
                                    row["tokenizer"].get<std::string>() + ".json");
    ChatTemplate chat(jinja::Template(read_template(name), name), *special_tokens.dict());
    EncodedChat encoded =
        encode_chat(chat, *tokenizer,
                    value_of(chats["conversations"][row["conversation"].get<std::string>()]), {});
    ASSERT_EQ(encoded.ids, row["ids"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(Json(encoded.assistant), row["mask"]);
  }
}

// trl's variants of these templates have {% generation %} blocks; without them provenance finds the
// same spans. What a variant's block has of the generation prompt is taken off in provenance.py.
TEST(GoldenChat, ProvenanceFindsTheSpansOfTemplatesWithTags) {
  const Json golden = read_golden("provenance.json"), chats = read_golden("chats.json");
  const jinja::Value special_tokens = value_of(chats["special_tokens"]);
  ASSERT_GE(golden["rows"].size(), 100u);
  std::map<std::string, ChatTemplate> templates;
  for (const Json& row : golden["rows"]) {
    SCOPED_TRACE(row.dump());
    std::string name = row[0];
    auto [chat, added] = templates.try_emplace(name, jinja::Template(read_template(name), name),
                                               *special_tokens.dict());
    const jinja::Value messages = value_of(golden["conversations"][row[1].get<std::string>()]);
    ChatOptions options;
    if (row[2].get<bool>()) options.tools = value_of(chats["options"][2]["tools"]);
    jinja::Rendered rendered = chat->second.render(messages, options);
    std::vector<std::vector<std::size_t>> spans;
    for (jinja::GenerationSpan span :
         assistant_spans(rendered, messages.sequence()->items, chat->second.header())) {
      spans.push_back({span.begin, span.end});
    }
    EXPECT_EQ(Json(spans), row[3]) << rendered.text;
  }
}

}  // namespace
}  // namespace bev
