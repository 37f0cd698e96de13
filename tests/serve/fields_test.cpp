// Every field of a request changes the answer, or is refused by name, or is known to change
// nothing. The table of docs/serving.md is made from these rows.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "serve/sse.h"
#include "tests/serve/server_rig.h"

namespace bev::test {
namespace {

enum class Effect { kChanges, kRefused, kIgnored, kNotFound };

// What is posted with the field: values that depend on the answer without it.
using Value = std::function<Json(const Json& plain)>;

struct Row {
  const char* routes;  // "chat", "completions" or both
  const char* field;   // "stream_options.include_usage": a field of an object
  Effect effect;
  Value value;
  const char* remark = "";
  Json base = Json::object();  // fields of both calls besides the usual ones
};

Value always(Json value) {
  return [value](const Json&) { return value; };
}

std::string text_of(const Json& answer) {
  const Json& choice = answer["choices"][0];
  return choice.contains("text") ? choice["text"].get<std::string>()
                                 : choice["message"]["content"].get<std::string>();
}

// Two characters in the middle of it that JSON can hold by themselves.
std::string part_of(const Json& answer) {
  const std::string text = text_of(answer);
  for (std::size_t i = 2; i + 1 < text.size(); ++i) {
    if (text[i] > 0 && text[i + 1] > 0) return text.substr(i, 2);
  }
  return "none";
}

std::int64_t third_token(const Json& answer) {
  return answer["choices"][0]["token_ids"][2].get<std::int64_t>();
}

const char* const kBoth = "chat, completions";
const Json kEnds = {{"logit_bias", {{"0", 100}}}};       // the end token comes at once
const Json kSpecial = {{"logit_bias", {{"420", 100}}}};  // a special token comes always
const Json kThinks = {{"chat_template_kwargs", {{"enable_thinking", true}}},
                      {"logit_bias", {{"423", 4}}}};  // reasons, and stops to
const Json kStreams = {{"stream", true}};
const Json kScored = {{"logprobs", true}};
const Json kCool = {{"temperature", 0.3}, {"max_tokens", 40}};
const Json kContinues = {{"messages", Json::parse(R"([{"role": "user", "content": "a"},
                                 {"role": "assistant", "content": "well then"}])")}};

std::vector<Row> sampling_rows() {
  using enum Effect;
  return {
      {kBoth, "temperature", kChanges, always(0), "0 to 2; 0: the likeliest token"},
      {kBoth, "top_p", kChanges, always(0.02), "0 to 1"},
      {kBoth, "top_k", kChanges, always(1), "-1 or 0: all tokens"},
      {kBoth, "min_p", kChanges, always(0.9), "0 to 1"},
      {kBoth, "repetition_penalty", kChanges, always(1.9), "above 0", kCool},
      {kBoth, "presence_penalty", kChanges, always(2), "-2 to 2", kCool},
      {kBoth, "frequency_penalty", kChanges, always(2), "-2 to 2", kCool},
      {kBoth, "logit_bias", kChanges, always({{"17", 100}}), "token ids; -100 to 100"},
      {kBoth, "seed", kChanges, always(8), "the same seed gives the same answer"},
      {kBoth, "n", kChanges, always(2), "1 to 128"},
      {"completions", "best_of", kChanges, always(4), "up to 20; the likeliest n are told"},
      {kBoth, "allowed_token_ids", kChanges, always({5, 6}), "only these are selected"},
      {kBoth, "bad_words", kChanges, always({"a", "e", "i", "o", "r", "s", "t", "n"}),
       "texts that do not occur"},
      {kBoth, "min_tokens", kChanges, always(5), "before that nothing ends", kEnds},
      {kBoth, "ignore_eos", kChanges, always(true), "the end token is an ordinary one", kEnds},
      {kBoth, "stop", kChanges, part_of, "a text, or up to 4"},
      {kBoth, "stop_token_ids", kChanges,
       [](const Json& plain) { return Json{third_token(plain)}; }},
      {kBoth, "include_stop_str_in_output", kChanges, always(true), "",
       Json{{"stop", {" ", "e", "o"}}}},
      {"chat", "max_completion_tokens", kChanges, always(3), "precedes max_tokens"},
      {kBoth, "max_tokens", kChanges, always(3),
       "absent: 16 for completions, for chat what the context has room for"},
      {kBoth, "truncate_prompt_tokens", kChanges, always(2),
       "the last so many; -1: as many as fit"},
      {kBoth, "structured_outputs", kRefused, always({{"regex", "a+"}})},
      {kBoth, "response_format", kRefused, always({{"type", "json_object"}}),
       "type text is accepted"},
      {"chat", "tools", kRefused, always(Json::array({Json::object()}))},
      {"chat", "tool_choice", kRefused, always("required"), "none is accepted"},
      {"chat", "parallel_tool_calls", kRefused, always(true)},
      {"chat", "functions", kRefused, always(Json::array({Json::object()}))},
      {"chat", "function_call", kRefused, always("auto")},
      {"chat", "thinking_token_budget", kRefused, always(5)},
      {"completions", "suffix", kRefused, always("end")},
  };
}

std::vector<Row> form_rows() {
  using enum Effect;
  return {
      {kBoth, "model", kNotFound, always("another"),
       "404 for a name that the server does not have"},
      {"chat", "messages", kChanges, always(conversation({"bye"})["messages"])},
      {"completions", "prompt", kChanges, always("bye"), "a text, texts, ids, or lists of ids"},
      {kBoth, "stream", kChanges, always(true), "server-sent events"},
      {kBoth, "stream_options.include_usage", kChanges, always(true), "", kStreams},
      {kBoth, "stream_options.continuous_usage_stats", kChanges, always(true), "", kStreams},
      {kBoth, "stream_interval", kChanges, always(5), "tokens in an event", kStreams},
      {"chat", "logprobs", kChanges, always(true)},
      {"completions", "logprobs", kChanges, always(2), "0 to 20"},
      {"chat", "top_logprobs", kChanges, always(2), "0 to 20", kScored},
      {kBoth, "prompt_logprobs", kChanges, always(1), "not for streams"},
      {kBoth, "logprob_token_ids", kChanges, always({5, 6}),
       "their log-probabilities with each token", Json{{"logprobs", 1}}},
      {kBoth, "return_tokens_as_token_ids", kChanges, always(true), "\"token_id:17\"",
       Json{{"logprobs", 1}}},
      {kBoth, "return_token_ids", kChanges, always(true)},
      {kBoth, "skip_special_tokens", kChanges, always(false), "", kSpecial},
      {"completions", "echo", kChanges, always(true), "with logprobs: those of the prompt too"},
      {"chat", "echo", kChanges, always(true), "begins with the text that is continued",
       Json{{"messages", kContinues["messages"]}, {"continue_final_message", true}}},
      {kBoth, "add_special_tokens", kChanges,
       [](const Json& plain) { return Json(!plain["choices"][0].contains("text")); },
       "default: true for completions, false for chat"},
      {"chat", "add_generation_prompt", kChanges, always(false)},
      {"chat", "continue_final_message", kChanges, always(true), "", kContinues},
      {"chat", "chat_template", kRefused, always("x"), "unless --trust-request-chat-template"},
      {"chat", "chat_template_kwargs", kChanges, always({{"enable_thinking", true}})},
      {"chat", "documents", kChanges, always(Json::array({{{"text", "read this"}}}))},
      {"chat", "reasoning_effort", kChanges, always("high"), "none to xhigh, for the template"},
      {"chat", "include_reasoning", kChanges, always(false), "", kThinks},
      {kBoth, "request_id", kChanges, always("mine"), "the answer's id ends with it"},
      {kBoth, "cache_salt", kChanges, always("salt"), "prefixes are shared under equal salts only"},
      {kBoth, "priority", kIgnored, always(3), "the lowest goes first, when requests wait"},
      {kBoth, "user", kIgnored, always("me")},
      {kBoth, "metadata", kIgnored, always({{"a", "b"}})},
      {kBoth, "store", kIgnored, always(true)},
      {kBoth, "service_tier", kIgnored, always("auto")},
      {"chat", "prediction", kIgnored, always({{"type", "content"}, {"content", "x"}})},
      {"chat", "modalities", kIgnored, always({"text"}), "text; others are refused"},
      {kBoth, "a_field_of_tomorrow", kIgnored, always(1), "as all unknown fields"},
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = sampling_rows();
  for (Row& row : form_rows()) rows.push_back(std::move(row));
  return rows;
}

class Fields : public testing::Test {
 protected:
  Json usual(const std::string& route) const {
    Json body = {{"temperature", 1}, {"seed", 7}, {"max_tokens", 24}, {"return_token_ids", true}};
    if (route == "completions") body["prompt"] = "hello there my friend";
    if (route == "chat") body["messages"] = conversation({"hello there my friend"})["messages"];
    return body;
  }

  static void set(Json& body, const std::string& field, const Json& value) {
    std::size_t dot = field.find('.');
    if (dot == std::string::npos) {
      body[field] = value;
    } else {
      body[field.substr(0, dot)][field.substr(dot + 1)] = value;
    }
  }

  HttpResponse post(const std::string& route, const Json& body) const {
    return server_.call("POST", route == "chat" ? "/v1/chat/completions" : "/v1/completions",
                        body.dump());
  }

  // The events of a stream, or the answer; without what differs between equal calls.
  static Json parsed(const HttpResponse& response, const std::string& field) {
    Json out = Json::array();
    if (response.content_type.starts_with("application/json")) {
      out.push_back(Json::parse(response.body));
    } else {
      SseParser parser;
      parser.add(response.body, [&](std::string_view data) {
        if (data != "[DONE]") out.push_back(Json::parse(data));
      });
    }
    for (Json& part : out) {
      part.erase("created");
      if (field != "request_id") part.erase("id");
      if (field == "cache_salt" || !part.contains("usage") || part["usage"].is_null()) continue;
      part["usage"].erase("prompt_tokens_details");
    }
    return out;
  }

  void check(const std::string& route, const Row& row) const {
    SCOPED_TRACE(concat(route, " ", row.field));
    Json base = usual(route);
    base.update(row.base);
    if (route == "chat" && base.contains("logprobs")) base["logprobs"] = true;
    if (std::string(row.field) == "return_token_ids") base.erase("return_token_ids");
    // A second call finds the prompt in the prefix cache; its answer is the plain one.
    post(route, base);
    HttpResponse plain = post(route, base);
    ASSERT_EQ(plain.status, 200) << plain.body;
    Json before = parsed(plain, row.field);
    Json asked = base;
    set(asked, row.field, row.value(before[0]));
    HttpResponse response = post(route, asked);
    switch (row.effect) {
      case Effect::kChanges:
        ASSERT_EQ(response.status, 200) << response.body;
        EXPECT_NE(parsed(response, row.field), before) << plain.body;
        break;
      case Effect::kIgnored:
        ASSERT_EQ(response.status, 200) << response.body;
        EXPECT_EQ(parsed(response, row.field), before);
        break;
      case Effect::kRefused:
      case Effect::kNotFound: {
        EXPECT_EQ(response.status, row.effect == Effect::kRefused ? 400 : 404) << response.body;
        Json error = Json::parse(response.body)["error"];
        EXPECT_EQ(error["param"], row.field);
        EXPECT_NE(error["message"].get<std::string>().find(
                      row.effect == Effect::kRefused ? row.field : "another"),
                  std::string::npos);
        break;
      }
    }
    // null means absent.
    Json absent = base;
    set(absent, row.field, nullptr);
    bool replaces = base.contains(row.field) || row.field == std::string("messages") ||
                    row.field == std::string("prompt");
    if (replaces) return;
    HttpResponse empty = post(route, absent);
    ASSERT_EQ(empty.status, 200) << empty.body;
    EXPECT_EQ(parsed(empty, "-"), parsed(plain, "-"));
  }

  ServerRig server_;
};

TEST_F(Fields, EachChangesTheAnswerOrIsRefusedByName) {
  for (const Row& row : all_rows()) {
    for (const char* route : {"chat", "completions"}) {
      if (std::string(row.routes).find(route) != std::string::npos) check(route, row);
    }
  }
}

// Values that do not fit are refused with the field's name.
TEST_F(Fields, RefusesValuesOutOfRange) {
  const std::vector<std::pair<const char*, Json>> wrong = {
      {"temperature", 2.1},
      {"temperature", "hot"},
      {"top_p", -0.1},
      {"top_k", -2},
      {"min_p", 1.5},
      {"n", 0},
      {"n", 129},
      {"n", 1.5},
      {"max_tokens", -1},
      {"stop", {"a", "b", "c", "d", "e"}},
      {"stop", ""},
      {"stop", 5},
      {"logit_bias", {{"424", 1}}},
      {"logit_bias", {{"x", 1}}},
      {"seed", 0.5},
      {"stream", "yes"},
      {"presence_penalty", 3},
      {"stop_token_ids", {-1}},
      {"priority", "high"},
      {"prompt_logprobs", 21},
      {"repetition_penalty", 0},
      {"truncate_prompt_tokens", 0},
      {"allowed_token_ids", {424}},
      {"stream_interval", 0},
      {"min_tokens", 100},
      {"stream_options", {{"include_usage", true}}}};
  for (const auto& [field, value] : wrong) {
    for (const char* route : {"chat", "completions"}) {
      SCOPED_TRACE(concat(route, " ", field, " ", value.dump()));
      Json body = usual(route);
      body[field] = value;
      HttpResponse response = post(route, body);
      EXPECT_EQ(response.status, 400) << response.body;
      std::string param = Json::parse(response.body)["error"]["param"];
      EXPECT_EQ(param.substr(0, param.find('.')), field) << response.body;
    }
  }
}

std::string table() {
  static const std::map<Effect, std::string> kWords = {{Effect::kChanges, "yes"},
                                                       {Effect::kRefused, "400"},
                                                       {Effect::kIgnored, "ignored"},
                                                       {Effect::kNotFound, "yes"}};
  std::string out = "| field | routes | honoured | |\n| --- | --- | --- | --- |\n";
  for (const Row& row : all_rows()) {
    out += concat("| `", row.field, "` | ", row.routes, " | ", kWords.at(row.effect), " | ",
                  row.remark, " |\n");
  }
  return out;
}

TEST(FieldTable, IsThatOfTheDocuments) {
  const std::string path = BEV_SOURCE_DIR "/docs/serving.md";
  const std::string begin = "<!-- fields: from tests/serve/fields_test.cpp -->\n",
                    end = "<!-- end -->";
  std::string text = read_file(path);
  std::size_t from = text.find(begin);
  ASSERT_NE(from, std::string::npos);
  from += begin.size();
  std::size_t to = text.find(end, from);
  if (std::getenv("BEV_UPDATE_DOCS") != nullptr) {
    write_file(path, text.substr(0, from) + table() + text.substr(to));
  } else {
    EXPECT_EQ(text.substr(from, to - from), table()) << "BEV_UPDATE_DOCS=1 writes it";
  }
}

}  // namespace
}  // namespace bev::test
