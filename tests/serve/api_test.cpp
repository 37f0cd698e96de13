// What the API answers, against what the engine alone gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/text.h"
#include "infer/embedding.h"
#include "serve/access.h"
#include "tests/serve/server_rig.h"

namespace bev::test {
namespace {

using Ids = std::vector<std::int32_t>;

Request greedy(const Ids& prompt, std::int64_t tokens) {
  Request request;
  request.prompt = prompt;
  request.max_new_tokens = tokens;
  request.end_tokens = {0};
  return request;
}

std::string joined(const std::vector<Json>& events, const char* field, std::int64_t index = 0) {
  std::string out;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      const Json& part = choice.contains("delta") ? choice["delta"] : choice;
      if (part.contains(field)) out += part[field].get<std::string>();
    }
  }
  return out;
}

TEST(Completions, GiveTheEnginesTokens) {
  ServerRig server;
  const Ids prompt = {5, 6, 7, 8, 9};
  Json answer = server.completion({{"prompt", prompt},
                                   {"max_tokens", 12},
                                   {"temperature", 0},
                                   {"logprobs", 3},
                                   {"skip_special_tokens", false},
                                   {"return_token_ids", true}});
  Request request = greedy(prompt, 12);
  request.top_logprobs = 3;
  SequenceResult alone = run_alone({}, {request})[0].sequences[0];
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"].get<Ids>(), alone.tokens);
  EXPECT_EQ(choice["prompt_token_ids"].get<Ids>(), prompt);
  EXPECT_EQ(choice["text"], replace_invalid_utf8(server.model().tokenizer->decode(alone.tokens)));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_EQ(answer["usage"]["total_tokens"], 17);
  const Json& scores = choice["logprobs"];
  EXPECT_EQ(scores["token_logprobs"].get<std::vector<double>>(), alone.logprobs);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(scores[list].size(), 12u) << list;
  }
  // A greedy token is the likeliest: to the bit, as lm-evaluation-harness asks.
  for (std::size_t i = 0; i < 12; ++i) {
    double best = -1e9;
    for (const auto& [token, value] : scores["top_logprobs"][i].items()) {
      best = std::max(best, value.get<double>());
    }
    EXPECT_EQ(scores["token_logprobs"][i].get<double>(), best);
  }
}

TEST(Completions, EchoScoresThePrompt) {
  ServerRig server;
  const Ids prompt = {5, 6, 7, 8, 9, 300};
  Json answer = server.completion({{"prompt", {prompt, {7, 7}}},
                                   {"max_tokens", 1},
                                   {"temperature", 0},
                                   {"logprobs", 1},
                                   {"seed", 1234},
                                   {"echo", true}});
  Request request = greedy(prompt, 1);
  request.prompt_logprobs = true;
  request.prompt_top_logprobs = 1;
  RequestResult alone = run_alone({}, {request})[0];
  ASSERT_EQ(answer["choices"].size(), 2u);
  const Json& scores = answer["choices"][0]["logprobs"];
  ASSERT_EQ(scores["token_logprobs"].size(), 7u);
  EXPECT_TRUE(scores["token_logprobs"][0].is_null());
  EXPECT_TRUE(scores["top_logprobs"][0].is_null());
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    EXPECT_EQ(scores["token_logprobs"][i + 1].get<double>(), alone.prompt_logprobs[i]);
    double best = -1e9;
    for (const auto& [token, value] : scores["top_logprobs"][i + 1].items()) {
      best = std::max(best, value.get<double>());
    }
    EXPECT_EQ(best, alone.prompt_top_logprobs[i][0].logprob);
  }
  // Only the prompt.
  Json scored = server.completion({{"prompt", "hello"}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(scored["choices"][0]["text"], "hello");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
}

TEST(Completions, NumberTheirChoicesByPromptAndSequence) {
  ServerRig server;
  Json answer = server.completion({{"prompt", {"one", "two", "three"}},
                                   {"n", 2},
                                   {"seed", 3},
                                   {"max_tokens", 5},
                                   {"ignore_eos", true},
                                   {"return_token_ids", true}});
  ASSERT_EQ(answer["choices"].size(), 6u);
  std::int64_t prompts = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const Json& choice = answer["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["prompt_token_ids"], answer["choices"][i / 2 * 2]["prompt_token_ids"]);
    if (i % 2 == 0) prompts += static_cast<std::int64_t>(choice["prompt_token_ids"].size());
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], prompts);  // each once
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  EXPECT_NE(answer["choices"][0]["token_ids"], answer["choices"][1]["token_ids"]);
}

TEST(Completions, BestOfTellsTheLikeliest) {
  ServerRig server;
  Json body = {{"prompt", "hello"}, {"n", 4}, {"seed", 3}, {"max_tokens", 6}, {"logprobs", 0}};
  Json all = server.completion(body);
  auto mean = [](const Json& choice) {
    double sum = 0;
    for (const Json& value : choice["logprobs"]["token_logprobs"]) sum += value.get<double>();
    return sum / static_cast<double>(choice["logprobs"]["token_logprobs"].size());
  };
  std::string best;
  double highest = -1e9;
  for (const Json& choice : all["choices"]) {
    if (mean(choice) > highest) best = choice["text"], highest = mean(choice);
  }
  body["n"] = 1;
  body["best_of"] = 4;
  Json one = server.completion(body);
  ASSERT_EQ(one["choices"].size(), 1u);
  EXPECT_EQ(one["choices"][0]["text"], best);
  EXPECT_EQ(one["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);
}

// The parts of a stream make the whole, for several choices, with stops inside of tokens.
TEST(Streams, SayWhatTheWholeAnswerSays) {
  ServerRig server;
  for (int seed = 0; seed < 12; ++seed) {
    Json body = {{"prompt", concat("a prompt of number ", seed)},
                 {"seed", seed},
                 {"n", 2},
                 {"max_tokens", 40},
                 {"logprobs", 1},
                 {"return_token_ids", true}};
    if (seed % 3 > 0) body["stop"] = {"e", "th", "\n", "o"};
    if (seed % 3 > 1) body["min_tokens"] = 10;
    if (seed % 4 == 3) body["include_stop_str_in_output"] = true;
    Json whole = server.completion(body);
    std::vector<Json> events = server.stream("/v1/completions", body);
    for (const Json& choice : whole["choices"]) {
      EXPECT_EQ(joined(events, "text", choice["index"]), choice["text"]) << seed;
      Ids tokens;
      std::vector<double> scores;
      Json finish;
      for (const Json& event : events) {
        const Json& part = event["choices"][0];
        if (part["index"] != choice["index"]) continue;
        EXPECT_TRUE(finish.is_null()) << "an event after the last";
        finish = part["finish_reason"];
        for (const Json& id : part["token_ids"]) tokens.push_back(id);
        for (const Json& value : part["logprobs"]["token_logprobs"]) scores.push_back(value);
      }
      EXPECT_EQ(tokens, choice["token_ids"].get<Ids>());
      // Other batches round otherwise.
      EXPECT_THAT(choice["logprobs"]["token_logprobs"].get<std::vector<double>>(),
                  testing::Pointwise(testing::DoubleNear(1e-4), scores));
      EXPECT_EQ(finish, choice["finish_reason"]);
      if (choice["stop_reason"].is_string() && !body.contains("include_stop_str_in_output")) {
        std::string text = choice["text"], stop = choice["stop_reason"];
        // Before min_tokens it is ordinary text.
        if (!body.contains("min_tokens")) {
          EXPECT_EQ(text.find(stop), std::string::npos);
        }
        EXPECT_EQ(choice["finish_reason"], "stop");
      }
    }
  }
}

TEST(Chat, AnswersInOpenAisShape) {
  ServerRig server;
  Json body = conversation({"hello"});
  body.update({{"seed", 5}, {"max_completion_tokens", 9}, {"logprobs", true}, {"top_logprobs", 2}});
  Json answer = server.chat(body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_TRUE(choice["message"]["refusal"].is_null());
  // The tokens' bytes make the content.
  std::string bytes;
  for (const Json& token : choice["logprobs"]["content"]) {
    for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  EXPECT_EQ(replace_invalid_utf8(bytes), choice["message"]["content"]);

  std::vector<Json> events = server.stream("/v1/chat/completions", body);
  EXPECT_EQ(events.front()["choices"][0]["delta"],
            Json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(events.back()["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(joined(events, "content"), choice["message"]["content"]);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    EXPECT_FALSE(event.contains("usage"));
  }
  body["stream_options"] = {{"include_usage", true}};
  events = server.stream("/v1/chat/completions", body);
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 9);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i]["usage"].is_null());
}

TEST(Chat, RendersTheTemplate) {
  ServerRig server;
  auto tokens = [&](const Json& body) {
    return server.post("/tokenize", body)["tokens"].get<Ids>();
  };
  auto encoded = [&](const char* text) { return server.model().tokenizer->encode(text); };
  Json body = conversation({"hi", "yes", "and?"});
  EXPECT_EQ(tokens(body), encoded("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes"
                                  "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n"
                                  "<|im_start|>assistant\n"));
  // Parts are joined, developer is system's newer name, and what the template takes it gets.
  body = Json::parse(R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "user", "content": "c"}], "add_generation_prompt": false})");
  EXPECT_EQ(tokens(body),
            encoded("<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"));
  body = conversation({"hi", "The answer is "});
  body["continue_final_message"] = true;
  EXPECT_EQ(tokens(body), encoded("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
                                  "The answer is "));
  // The end of the turn ends an answer.
  body = conversation({"hi"});
  body.update({{"logit_bias", {{"421", 100}}}, {"max_tokens", 20}});
  Json answer = server.chat(body);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
}

TEST(Chat, GivesReasoningApart) {
  ServerRig server;
  // "</think>" becomes likely; before it the model reasons, after it it answers.
  Json body = conversation({"hello"});
  body.update({{"chat_template_kwargs", {{"enable_thinking", true}}}, {"max_tokens", 60}});
  bool both = false;
  for (int seed = 0; seed < 30 && !both; ++seed) {
    body["seed"] = seed;
    body["logit_bias"] = {{"423", 4}};
    Json answer = server.chat(body);
    const Json& message = answer["choices"][0]["message"];
    if (!message.contains("reasoning")) continue;
    EXPECT_EQ(message["reasoning"], message["reasoning_content"]);
    std::vector<Json> events = server.stream("/v1/chat/completions", body);
    EXPECT_EQ(joined(events, "content"), message["content"]);
    EXPECT_EQ(joined(events, "reasoning_content"), message["reasoning"]);
    std::int64_t reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    EXPECT_GT(reasoning, 0);
    EXPECT_LT(reasoning, answer["usage"]["completion_tokens"].get<std::int64_t>());
    both = !message["content"].get<std::string>().empty();
  }
  EXPECT_TRUE(both);
}

TEST(Api, EmbedsAsTheModelDoes) {
  ServerRig server;
  Json floats = server.post("/v1/embeddings", {{"input", {"hello there", "x"}}});
  Json packed = server.post("/v1/embeddings",
                            {{"input", {"hello there", "x"}}, {"encoding_format", "base64"}});
  ASSERT_EQ(floats["data"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<double> row = floats["data"][i]["embedding"];
    EXPECT_EQ(row.size(), 20u);
    double square = 0;
    std::string bytes;
    for (double value : row) {
      square += value * value;
      auto narrow = static_cast<float>(value);
      bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    }
    EXPECT_NEAR(square, 1, 1e-6);
    EXPECT_EQ(packed["data"][i]["embedding"], base64(bytes));
    EXPECT_EQ(floats["data"][i]["index"], i);
  }
  Json ids = server.post("/v1/embeddings",
                         {{"input", server.post("/tokenize", {{"prompt", "x"}})["tokens"]}});
  EXPECT_THAT(ids["data"][0]["embedding"].get<std::vector<double>>(),
              testing::Pointwise(testing::DoubleNear(1e-6),
                                 floats["data"][1]["embedding"].get<std::vector<double>>()));
}

TEST(Api, TokenizesBothWays) {
  ServerRig server;
  Json tokens = server.post("/tokenize", {{"prompt", "Grüße 🙂"}, {"return_token_strs", true}});
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 128);
  Json plain =
      server.post("/tokenize", {{"prompt", "Grüße 🙂"}, {"add_special_tokens", false}});
  EXPECT_EQ(server.post("/detokenize", {{"tokens", plain["tokens"]}})["prompt"], "Grüße 🙂");
}

TEST(Api, ServesModelsWithoutATokenizer) {
  ServerRig server({.tokenizer = false});
  Json answer = server.completion(
      {{"prompt", {5, 6}}, {"max_tokens", 4}, {"temperature", 0}, {"return_token_ids", true}});
  EXPECT_EQ(answer["choices"][0]["token_ids"].get<Ids>(),
            run_alone({}, {greedy({5, 6}, 4)})[0].sequences[0].tokens);
  EXPECT_EQ(answer["choices"][0]["text"], "");
  std::vector<Json> events = server.stream(
      "/v1/completions", {{"prompt", {5, 6}}, {"max_tokens", 4}, {"return_token_ids", true}});
  EXPECT_EQ(events.size(), 5u);  // one for each token, and the end
  EXPECT_EQ(server.completion({{"prompt", "text"}}, 400)["error"]["param"], "prompt");
  EXPECT_EQ(server.chat(conversation({"hi"}), 400)["error"]["code"], "no_tokenizer");
  ServerRig base({.chat = false});
  EXPECT_EQ(base.chat(conversation({"hi"}), 400)["error"]["code"], "no_chat_template");
}

// The same answers under every layout.
TEST(Api, ServesEveryLayout) {
  std::vector<Json> answers;
  for (auto [tp, dp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    ServerRig server({.tp = tp, .dp = dp});
    Json all = Json::array();
    for (int seed = 0; seed < 6; ++seed) {
      Json body = {{"prompt", concat("prompt ", seed)},
                   {"seed", std::int64_t{1} << 60 | seed},
                   {"n", 2},
                   {"max_tokens", 10},
                   {"stop", {"zz"}},
                   {"presence_penalty", 0.5},
                   {"logit_bias", {{"9", 1.5}}},
                   {"cache_salt", "s"},
                   {"return_token_ids", true}};
      const Json answer = server.completion(body);
      for (const Json& choice : answer["choices"]) {
        all.push_back(choice["token_ids"]);
      }
      std::vector<Json> events = server.stream("/v1/completions", body);
      EXPECT_GT(events.size(), 10u) << "tokens come one by one, whichever replica makes them";
    }
    Json embedded = server.post("/v1/embeddings", {{"input", "hello"}});
    EXPECT_EQ(embedded["data"][0]["embedding"].size(), 20u);
    answers.push_back(all);
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST(Api, AnswersMegatronsClients) {
  ServerRig server;
  Json body = {
      {"prompts", {"hello", "bye"}}, {"tokens_to_generate", 5}, {"top_k", 1}, {"logprobs", true}};
  HttpResponse response = server.call("PUT", "/api", body.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  Json answer = Json::parse(response.body);
  for (std::size_t i = 0; i < 2; ++i) {
    Ids tokens = answer["tokens"][i];
    std::string prompt = body["prompts"][i];
    EXPECT_TRUE(answer["text"][i].get<std::string>().starts_with(prompt));
    EXPECT_EQ(answer["segments"][i].size(), tokens.size());
    EXPECT_EQ(answer["logprobs"][i].size(), tokens.size() - 1);
    Ids asked = server.model().tokenizer->encode(prompt);
    asked.resize(std::min(asked.size(), tokens.size()));
    EXPECT_EQ(Ids(tokens.begin(), tokens.begin() + std::ssize(asked)), asked);
    EXPECT_EQ(Ids(tokens.begin() + std::ssize(asked), tokens.end()),
              run_alone({}, {greedy(asked, 5)})[0].sequences[0].tokens);
  }
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"beam_width", 4},
                                                 {"max_len", 5},
                                                 {"sentences", {"x"}},
                                                 {"top_p_decay", 0.5},
                                                 {"top_p_bound", 0.1},
                                                 {"length_penalty", 2},
                                                 {"prevent_newline_after_colon", true},
                                                 {"temperature", 0},
                                                 {"top_p", 0.5},
                                                 {"tokens_to_generate", -1},
                                                 {"stop_token", 424}}) {
    Json wrong = body;
    wrong[field] = value;
    response = server.call("PUT", "/api", wrong.dump());
    EXPECT_EQ(response.status, 400) << field;
    Json error = Json::parse(response.body);
    EXPECT_EQ(error["error"]["param"], field);
    EXPECT_EQ(error["message"], error["error"]["message"]);
  }
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, Json>>{{"add_BOS", true},
                                                 {"stop_token", 5},
                                                 {"random_seed", 3},
                                                 {"top_k", 0},
                                                 {"temperature", 90},
                                                 {"tokens_to_generate", 2},
                                                 {"logprobs", false}}) {
    Json plain = {{"prompts", {"hello"}},
                  {"tokens_to_generate", 5},
                  {"random_seed", 1},
                  {"logprobs", true},
                  {"top_k", 1}};
    if (std::string(field) == "random_seed" || std::string(field) == "temperature")
      plain["top_k"] = 0;
    if (std::string(field) == "stop_token") continue;
    Json asked = plain;
    asked[field] = value;
    EXPECT_NE(server.call("PUT", "/api", asked.dump()).body,
              server.call("PUT", "/api", plain.dump()).body)
        << field;
  }
}

TEST(Api, SaysWhatIsWrong) {
  ServerRig server;
  struct Wrong {
    const char *method, *path, *body;
    int status;
    const char *param, *part;
  };
  const Wrong rows[] = {
      {"GET", "/nowhere", "", 404, "", "/nowhere"},
      {"GET", "/v1/completions", "", 405, "", "POST"},
      {"DELETE", "/v1/models", "", 405, "", "GET"},
      {"GET", "/v1/models/another", "", 404, "model", "another"},
      {"POST", "/v1/completions", "{", 400, "", "JSON"},
      {"POST", "/v1/completions", "[1]", 400, "", "object"},
      {"POST", "/v1/completions", "{}", 400, "prompt", "missing"},
      {"POST", "/v1/completions", R"({"prompt": ""})", 200, "", ""},  // <|endoftext|> is added
      {"POST", "/v1/completions", R"({"prompt": []})", 400, "prompt", ""},
      {"POST", "/v1/completions", R"({"prompt": [[]]})", 400, "prompt", "empty"},
      {"POST", "/v1/completions", R"({"prompt": [424]})", 400, "prompt", "424"},
      {"POST", "/v1/completions", R"({"prompt": [1, "a"]})", 400, "prompt", "token id"},
      {"POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 0})", 400, "max_tokens", "echo"},
      {"POST", "/v1/completions", R"({"prompt": "a", "n": 3, "best_of": 2})", 400, "best_of", "2"},
      {"POST", "/v1/chat/completions", "{}", 400, "messages", "missing"},
      {"POST", "/v1/chat/completions", R"({"messages": []})", 400, "messages", "empty"},
      {"POST", "/v1/chat/completions", R"({"messages": [{"role": "boss", "content": "x"}]})", 400,
       "messages[0].role", "boss"},
      {"POST", "/v1/chat/completions", R"({"messages": [{"role": "user"}]})", 400,
       "messages[0].content", "missing"},
      {"POST", "/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400,
       "messages[0].content[0].type", "image_url"},
      {"POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "raise"}]})",
       400, "messages", "no such word"},
      {"POST", "/v1/embeddings", "{}", 400, "input", "missing"},
      {"POST", "/v1/embeddings", R"({"input": "a", "dimensions": 3})", 400, "dimensions", "20"},
      {"POST", "/v1/embeddings", R"({"input": "a", "encoding_format": "hex"})", 400,
       "encoding_format", "hex"},
      {"POST", "/tokenize", "{}", 400, "prompt", "missing"},
      {"POST", "/detokenize", R"({"tokens": [-1]})", 400, "tokens", "-1"},
      {"POST", "/pause", "", 403, "", "--control-key"},
  };
  for (const Wrong& row : rows) {
    HttpResponse response = server.call(row.method, row.path, row.body);
    EXPECT_EQ(response.status, row.status) << row.path << row.body << response.body;
    if (response.status == 200) continue;
    Json error = Json::parse(response.body)["error"];
    ASSERT_EQ(error.size(), 4u) << response.body;
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), row.param)
        << response.body;
    EXPECT_NE(error["message"].get<std::string>().find(row.part), std::string::npos)
        << row.path << row.body << response.body;
  }
  HttpResponse form = server.call("POST", "/v1/completions", "",
                                  {{"Content-Type", "application/x-www-form-urlencoded"}});
  EXPECT_EQ(form.status, 400);  // there is no body that could have a type
}

TEST(Api, SaysBothNumbersOfAPromptTooLong) {
  ServerRig server;
  Ids prompt(100, 5);
  Json error = server.completion({{"prompt", prompt}, {"max_tokens", 29}}, 400)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  std::string message = error["message"];
  for (const char* part :
       {"This model's maximum context length is 128 tokens", "129", "100", "29"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  server.completion({{"prompt", prompt}, {"max_tokens", 28}});
  Json body = {{"prompt", Ids(500, 5)}, {"max_tokens", 28}, {"truncate_prompt_tokens", -1}};
  EXPECT_EQ(server.completion(body)["usage"]["prompt_tokens"], 100);
  // A chat goes on up to the context's end.
  Json chat = conversation({"hello"});
  chat["ignore_eos"] = true;
  EXPECT_EQ(server.chat(chat)["usage"]["total_tokens"], 128);
}

TEST(Api, TakesKeys) {
  RigOptions options;
  options.api.access = {.api_keys = {"first", "second"},
                        .control_keys = {"master"},
                        .origins = {"https://chat.example.org"}};
  // The rig waits for /health, which needs no key.
  ServerRig server(options);
  auto status = [&](const char* path, std::vector<HttpHeader> headers, const char* method = "GET") {
    return server.call(method, path, "", std::move(headers)).status;
  };
  for (const char* path : {"/v1/models", "/metrics", "/version", "/", "/v1/health", "/ping"}) {
    EXPECT_EQ(status(path, {}), 401) << path;
    EXPECT_EQ(status(path, {{"Authorization", "Bearer firs"}}), 401) << path;
    EXPECT_EQ(status(path, {{"Authorization", "Bearer first2"}}), 401) << path;
    EXPECT_EQ(status(path, {{"Authorization", "Bearer master"}}), 401) << path;
    EXPECT_EQ(status(path, {{"Authorization", "bearer  second"}}), 200) << path;
    EXPECT_EQ(status(path, {{"Authorization", concat("Basic ", base64("me:first"))}}), 200) << path;
  }
  EXPECT_EQ(status("/health", {}), 200);
  EXPECT_EQ(status("/weight_info", {{"Authorization", "Bearer first"}}), 401);
  EXPECT_EQ(status("/weight_info", {{"Authorization", "Bearer master"}}), 200);
  // Browsers: the page asks for the key; pages elsewhere only if they are allowed to call.
  HttpResponse page = server.get("/");
  bool asks = std::ranges::any_of(page.headers, [](const HttpHeader& header) {
    return header.name == "WWW-Authenticate" && header.value.starts_with("Basic");
  });
  EXPECT_TRUE(asks);
  auto allowed = [&](const char* origin) {
    HttpResponse response = server.call("OPTIONS", "/v1/completions", "", {{"Origin", origin}});
    EXPECT_EQ(response.status, 204);
    return std::string(find_header(response.headers, "Access-Control-Allow-Origin"));
  };
  EXPECT_EQ(allowed("https://chat.example.org"), "https://chat.example.org");
  EXPECT_EQ(allowed("https://evil.example.org"), "");
  std::vector<HttpHeader> foreign = {{"Origin", "https://evil.example.org"},
                                     {"Authorization", "Bearer first"}};
  EXPECT_EQ(status("/v1/completions", foreign, "POST"), 403);
}

TEST(Access, ComparesWholeKeys) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* wrong : {"", "s", "secre", "secretx", "Secret", "secreu"}) {
    EXPECT_FALSE(equal_in_constant_time(wrong, "secret")) << wrong;
  }
}

}  // namespace
}  // namespace bev::test
