// The load generator against a server whose answers are scripted: counts and order, no durations.
#include "serve/http_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "infer/load_metrics.h"
#include "serve/completion_event.h"
#include "serve/http_server.h"
#include "serve/sse.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

using Exchange = std::shared_ptr<HttpExchange>;

std::string token_event(std::vector<int> ids) {
  json event = {{"id", "cmpl-1"},
                {"choices", {{{"index", 0}, {"text", "\"token_ids\":[1,2]"}, {"token_ids", ids}}}},
                {"usage", nullptr}};
  return sse_event(event.dump());
}
std::string usage_event(int tokens, int cached = 0) {
  json event = {
      {"choices", json::array()},
      {"usage",
       {{"completion_tokens", tokens}, {"prompt_tokens_details", {{"cached_tokens", cached}}}}}};
  return sse_event(event.dump());
}
void begin(const Exchange& exchange) {
  exchange->begin_stream({.content_type = "text/event-stream"});
}
// All events at once, each in a piece of its own.
void answer(const Exchange& exchange, const std::vector<std::string>& events) {
  begin(exchange);
  for (const std::string& event : events) exchange->write(event);
  exchange->end_stream();
}
const std::string kDone = sse_event("[DONE]");

// Answers as a model with 50 tokens and a context of 64 would, or as the test says.
class ScriptedModel : public HttpHandler {
 public:
  using Script = std::function<void(const Exchange& exchange, const json& body)>;

  void on_request(Exchange exchange) override {
    const HttpRequest& request = exchange->request();
    keys.push_back(std::string(request.header("Authorization")));
    if (request.path == "/v1/models") return exchange->respond({.body = models});
    const json body = json::parse(request.body);
    std::lock_guard lock(mutex);
    bodies.push_back(body);
    open.push_back(exchange);
    most_open = std::max(most_open, open.size());
    if (request.path != "/v1/completions") return exchange->respond({.status = 404});
    script(exchange, body);
    std::erase_if(open, [&](const Exchange&) { return !held; });
  }
  void on_closed(HttpExchange&) override {}

  static void complete(const Exchange& exchange, const json& body) {
    std::vector<std::string> events;
    for (int i = 0; i < body["max_tokens"]; ++i) events.push_back(token_event({i}));
    events.push_back(token_event({}));
    events.push_back(usage_event(body["max_tokens"], 3));
    events.push_back(kDone);
    answer(exchange, events);
  }

  std::string models = R"({"data":[{"id":"m","vocab_size":50,"max_model_len":64},
                                   {"id":"n","vocab_size":7,"max_model_len":64}]})";
  Script script = complete;
  bool held = false;  // requests stay open
  std::mutex mutex;
  std::vector<std::string> keys;
  std::vector<json> bodies;
  std::vector<Exchange> open;
  std::size_t most_open = 0;
};

class HttpLoad : public testing::Test {
 protected:
  static HttpServerOptions server_options() {
    HttpServerOptions out;
    out.port = 0;
    return out;
  }
  LoadResult run(const StopSignal* stop = nullptr) {
    if (http_.url.empty()) http_.url = server_.url();
    return run_http_load(http_, load_, stop, true);
  }
  std::vector<bool> completed(const LoadResult& result) {
    std::vector<bool> out;
    for (const RequestRecord& record : result.requests) out.push_back(record.completed);
    return out;
  }
  std::string failure() {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  // Does this for the n-th completion, and what a model does for the others.
  void script(std::size_t n, ScriptedModel::Script odd) {
    model_.script = [this, n, odd = std::move(odd)](const Exchange& exchange, const json& body) {
      model_.bodies.size() == n ? odd(exchange, body) : ScriptedModel::complete(exchange, body);
    };
  }

  ScriptedModel model_;
  HttpServer server_{server_options(), model_};
  HttpLoadOptions http_{.timeout_s = 20, .warmup = 0};
  LoadOptions load_{.requests = 3, .input_tokens = 6, .output_tokens = 4};
};

TEST_F(HttpLoad, PostsPromptsOfTheOfflineLoadAndCountsTheirTokens) {
  load_.concurrency = 1;
  load_.shared_prefix_tokens = 4;
  LoadResult result = run();
  ASSERT_THAT(result.requests, SizeIs(3));
  for (const RequestRecord& record : result.requests) {
    EXPECT_TRUE(record.completed);
    EXPECT_EQ(record.cached_tokens, 3);
    ASSERT_THAT(record.token_times, SizeIs(4));
    EXPECT_LT(record.arrival, record.token_times.front());
    EXPECT_TRUE(std::ranges::is_sorted(record.token_times));
  }
  EXPECT_LT(result.requests[0].token_times.back(), result.requests[1].arrival);
  ASSERT_THAT(model_.bodies, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) {
    const json& body = model_.bodies[i];
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["prompt"], load_request(load_, 50, static_cast<std::int64_t>(i)).prompt);
    EXPECT_EQ(body["max_tokens"], 4);
    EXPECT_EQ(body["min_tokens"], 4);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_EQ(body["cache_salt"], model_.bodies[0]["cache_salt"]);
    EXPECT_FALSE(body.contains("seed"));
  }
  LoadMetrics metrics = load_metrics(load_, result, {});
  EXPECT_EQ(metrics.completed, 3);
  EXPECT_EQ(metrics.output_tokens, 12);
  EXPECT_EQ(metrics.cached_tokens, 9);
  EXPECT_TRUE(metrics.ttft_ms && metrics.itl_ms && metrics.tpot_ms && metrics.e2e_ms);
  std::string salt = model_.bodies[0]["cache_salt"];
  run();
  EXPECT_NE(model_.bodies.back()["cache_salt"], salt);
}

TEST_F(HttpLoad, ChoosesAModelSendsAKeyAndSampling) {
  http_.url = server_.url() + "/v1/";
  http_.model = "n";
  http_.api_key = "secret";
  load_.sampling = {.temperature = 0.5, .top_k = 9, .seed = 11};
  run();
  EXPECT_THAT(model_.keys, AllOf(SizeIs(4), Each("Bearer secret")));
  const json& body = model_.bodies[1];
  EXPECT_EQ(body["prompt"], load_request(load_, 7, 1).prompt);
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_k"], 9);
  EXPECT_EQ(body["seed"], 12);
}

TEST_F(HttpLoad, ClosedLoopKeepsSoManyInFlight) {
  load_.requests = 20;
  model_.held = true;
  // Every second request lets the one before it and itself go.
  model_.script = [this](const Exchange&, const json& body) {
    if (model_.open.size() < 2) return;
    for (const Exchange& each : std::exchange(model_.open, {})) {
      ScriptedModel::complete(each, body);
    }
  };
  load_.concurrency = 2;
  LoadResult result = run();
  EXPECT_THAT(completed(result), AllOf(SizeIs(20), Each(true)));
  EXPECT_EQ(model_.most_open, 2);
}

TEST_F(HttpLoad, OpenLoopArrivesByTheRate) {
  load_.requests = 30;
  load_.rate = 2000;
  LoadResult result = run();
  EXPECT_THAT(completed(result), AllOf(SizeIs(30), Each(true)));
  const std::vector<double> arrivals = arrival_times(load_);
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    EXPECT_EQ(result.requests[i].arrival, arrivals[i]);
    EXPECT_LT(arrivals[i], result.requests[i].token_times.front());
  }
}

TEST_F(HttpLoad, CountsTokensOfAllEventForms) {
  load_.requests = 1;
  auto times_with = [&](const std::vector<std::string>& events) {
    model_.script = [&](const Exchange& exchange, const json&) { answer(exchange, events); };
    LoadResult result = run();
    EXPECT_TRUE(result.requests[0].completed) << events.front();
    return result.requests[0].token_times;
  };
  // Several tokens in an event come together.
  std::vector<double> times = times_with({token_event({1, 2, 3}), token_event({4}), kDone});
  ASSERT_THAT(times, SizeIs(4));
  EXPECT_EQ(times[0], times[2]);
  // Servers without token ids: an event is a token, and usage has the last word.
  const std::string plain = sse_event(R"({"choices": [{"text": "x", "finish_reason": null}]})");
  EXPECT_THAT(times_with({plain, plain, plain, plain, kDone}), SizeIs(4));
  EXPECT_THAT(times_with({plain, plain, plain, plain, plain, usage_event(4), kDone}), SizeIs(4));
  times = times_with({plain, plain, usage_event(4), kDone});
  ASSERT_THAT(times, SizeIs(4));
  EXPECT_EQ(times[1], times[3]);
}

TEST_F(HttpLoad, AnswersThatAreNoStreamHaveOneTime) {
  http_.stream = false;
  model_.script = [](const Exchange& exchange, const json& body) {
    EXPECT_FALSE(body.contains("stream"));
    exchange->respond({.body = R"({"choices":[{"text":"a"}],"usage":{"completion_tokens":4}})"});
  };
  for (const RequestRecord& record : run().requests) {
    EXPECT_TRUE(record.completed);
    ASSERT_THAT(record.token_times, SizeIs(4));
    EXPECT_EQ(record.token_times.front(), record.token_times.back());
  }
}

TEST_F(HttpLoad, FailuresAreCountedAndTheOthersGoOn) {
  load_.concurrency = 1;
  std::vector<ScriptedModel::Script> odd = {
      [](const Exchange& exchange, const json&) {
        exchange->respond({.status = 429, .body = R"({"error":{"message":"the queue is full"}})"});
      },
      [](const Exchange& exchange, const json&) {  // an error in mid-stream
        answer(exchange, {token_event({1}), sse_event(R"({"error":{"message":"NaN"}})"), kDone});
      },
      [this](const Exchange& exchange, const json&) {  // the connection is lost in mid-stream
        begin(exchange);
        exchange->write(token_event({1}));
        struct Drop final : IoTask {
          explicit Drop(Exchange dropped) : exchange(std::move(dropped)) {}
          void run() override {}
          Exchange exchange;
        };
        server_.post(std::make_unique<Drop>(exchange));
      },
      [](const Exchange& exchange, const json&) {
        answer(exchange, {token_event({1, 2, 3, 4})});
      },
      [](const Exchange& exchange, const json&) {
        answer(exchange, {token_event({1}), kDone});
      },
      [](const Exchange& exchange, const json&) {
        answer(exchange, {usage_event(9), kDone});
      },
      [](const Exchange& exchange, const json&) {
        answer(exchange, {sse_event(R"({"usage":{"completion_tokens":)"), kDone});
      },
      [](const Exchange& exchange, const json&) { answer(exchange, {}); },
  };
  for (std::size_t i = 0; i < odd.size(); ++i) {
    SCOPED_TRACE(i);
    model_.bodies.clear();
    script(2, odd[i]);
    LoadResult result = run();
    EXPECT_THAT(completed(result), ElementsAre(true, false, true));
    LoadMetrics metrics = load_metrics(load_, result, {});
    EXPECT_EQ(metrics.failed, 1);
    EXPECT_EQ(metrics.completed, 2);
  }
}

TEST_F(HttpLoad, ARequestThatHearsNothingFails) {
  http_.timeout_s = 0.2;
  model_.held = true;
  script(2, [](const Exchange& exchange, const json&) { begin(exchange); });
  EXPECT_THAT(completed(run()), ElementsAre(true, false, true));
}

TEST_F(HttpLoad, WarmsUpWithAPromptOfItsOwn) {
  http_.warmup = 2;
  load_.shared_prefix_tokens = 6;
  run();
  ASSERT_THAT(model_.bodies, SizeIs(5));
  EXPECT_EQ(model_.bodies[0]["prompt"], model_.bodies[1]["prompt"]);
  EXPECT_NE(model_.bodies[1]["prompt"], model_.bodies[2]["prompt"]);
  EXPECT_EQ(model_.bodies[2]["prompt"], model_.bodies[3]["prompt"]);
  model_.script = [](const Exchange& exchange, const json&) { exchange->respond({.status = 503}); };
  EXPECT_THAT(failure(), AllOf(HasSubstr("warm up"), HasSubstr("HTTP 503")));
}

// The signal is blocked before the thread of the server begins.
struct BlockedSignal {
  StopSignal stop{"the test"};
};
class HttpLoadStopped : public BlockedSignal, public HttpLoad {};

TEST_F(HttpLoadStopped, ASignalEndsIt) {
  load_ = {.requests = 5, .input_tokens = 6, .output_tokens = 4, .concurrency = 1};
  model_.held = true;
  script(2, [](const Exchange& exchange, const json&) {
    begin(exchange);
    ::kill(::getpid(), SIGTERM);
  });
  EXPECT_THAT(completed(run(&stop)), ElementsAre(true));
}

TEST_F(HttpLoad, SaysWhatTheServerDoesNotHave) {
  http_.model = "x";
  EXPECT_THAT(failure(), AllOf(HasSubstr("--served-model-name"), HasSubstr("m, n")));
  http_.model = "";
  load_.input_tokens = 61;
  EXPECT_THAT(failure(), AllOf(HasSubstr("61"), HasSubstr("64")));
  load_.input_tokens = 6;
  model_.models = R"({"data":[{"id":"m"}]})";
  EXPECT_THAT(failure(), HasSubstr("--vocab-size"));
  http_.vocab_size = 5;
  EXPECT_EQ(failure(), "");
  for (const char* models : {R"({"data":[]})", R"({"data":[3]})", "{}", "[", "3"}) {
    model_.models = models;
    EXPECT_THAT(failure(), HasSubstr("/v1/models")) << models;
  }
  http_.url = "http://127.0.0.1:1";
  EXPECT_THAT(failure(), HasSubstr("127.0.0.1:1"));
}

TEST(CompletionEvent, CountsTokensOnlyUnderTheirKey) {
  auto tokens = [](std::string_view text) { return read_completion_event(text).tokens; };
  EXPECT_EQ(tokens(R"({"choices":[{"text":"\"token_ids\":[1,2]","token_ids":[7]}]})"), 1);
  EXPECT_EQ(tokens(R"({"choices":[{"prompt_token_ids":[1,2],"token_ids" : [ 7, 8 , 9 ]}]})"), 3);
  EXPECT_EQ(tokens(R"({"choices":[{"token_ids":[ ],"finish_reason":"length"}]})"), 0);
  EXPECT_EQ(tokens(R"({"choices":[{"token_ids":null,"finish_reason":null}]})"), 1);
  EXPECT_EQ(tokens(R"({"choices":[],"usage":null})"), 0);
  EXPECT_EQ(tokens(""), 0);
}

TEST(CompletionEvent, FindsErrorsWhereverTheyAre) {
  auto error = [](std::string_view text) { return read_completion_event(text).error; };
  EXPECT_EQ(error(R"({"error":{"message":"no","code":500}})"), "no");
  EXPECT_EQ(error(R"({"error": "no"})"), "no");
  EXPECT_EQ(error(R"({"object":"error","message":"no"})"), "no");
  EXPECT_EQ(error(R"({"choices":[{"text":"an \"error\"","finish_reason":"error"}]})"), "");
  for (const char* text : {"", "x", "[1]", R"({"error")"}) EXPECT_NE(error(text), "") << text;
  EXPECT_EQ(http_failure(429, R"({"error":{"message":"full"}})"), "HTTP 429: full");
  EXPECT_EQ(http_failure(502, "<html>"), "HTTP 502");
}

}  // namespace
}  // namespace bev
