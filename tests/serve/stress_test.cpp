// The server under load, under faults, and at its end.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/text.h"
#include "serve/sse.h"
#include "tests/serve/server_rig.h"

namespace bev::test {
namespace {

// Streams on one thread, with what came of each.
class Streams : public HttpClientSink {
 public:
  struct Stream {
    int status = 0;
    std::int64_t events = 0;
    bool done = false;      // [DONE] came
    bool finished = false;  // the answer is complete, or lost
    std::string error, body;
    double last = 0;
    std::vector<double> gaps;
    SseParser parser;
  };

  explicit Streams(const std::string& url) : client_({.url = url}, *this) {}

  ExchangeId start(const std::string& path, const Json& body) {
    HttpRequest request{.method = "POST", .path = path};
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body.dump();
    ExchangeId id = client_.start(std::move(request));
    streams_.try_emplace(id);
    return id;
  }
  void cancel(ExchangeId id) { client_.cancel(id); }
  Stream& at(ExchangeId id) { return streams_[id]; }
  std::map<ExchangeId, Stream>& all() { return streams_; }
  std::int64_t in_flight() const { return client_.in_flight(); }

  // Serves until the condition holds; a failure after some seconds.
  template <class Condition>
  void run_until(const Condition& holds, double seconds = 30) {
    const double end = monotonic_seconds() + seconds;
    while (!holds()) {
      if (monotonic_seconds() > end) {
        ADD_FAILURE() << "waited in vain; " << client_.in_flight() << " in flight";
        return;
      }
      client_.run_until(monotonic_seconds() + 0.01);
    }
  }
  void step() { client_.run_until(monotonic_seconds() + 0.001); }
  void run() {
    run_until([&] { return client_.in_flight() == 0; });
  }

  void on_head(ExchangeId id, const HttpResponse& head) override {
    streams_[id].status = head.status;
    streams_[id].last = monotonic_seconds();
  }
  void on_data(ExchangeId id, std::string_view bytes) override {
    Stream& stream = streams_[id];
    stream.body += bytes;
    stream.parser.add(bytes, [&](std::string_view data) {
      double now = monotonic_seconds();
      stream.done = stream.done || data == "[DONE]";
      ++stream.events;
      stream.gaps.push_back(now - stream.last);
      stream.last = now;
    });
  }
  void on_done(ExchangeId id, const std::string& error) override {
    streams_[id].finished = true;
    streams_[id].error = error;
  }

 private:
  std::map<ExchangeId, Stream> streams_;
  HttpClient client_;
};

// A stream with an event for each token: all of them are letters.
Json endless(std::int64_t tokens) {
  std::vector<int> letters;
  for (int id = 65; id < 90; ++id) letters.push_back(id);
  return {{"prompt", "a prompt"},
          {"max_tokens", tokens},
          {"allowed_token_ids", letters},
          {"stream", true}};
}

TEST(Stress, AClosedConnectionFreesItsBlocks) {
  RigOptions options;
  options.positions = 1 << 16;
  ServerRig server(options);
  Streams streams(server.url());
  std::vector<ExchangeId> ids;
  // More than run at a time: some wait.
  for (int i = 0; i < 12; ++i) ids.push_back(streams.start("/v1/completions", endless(60'000)));
  streams.run_until([&] { return streams.at(ids[0]).events > 3 && server.snapshot().waiting > 0; });
  EXPECT_GT(server.snapshot().blocks.used, 0);
  const std::int64_t before = server.snapshot().statistics.steps;
  for (ExchangeId id : ids) streams.cancel(id);
  streams.run();
  ServerRig::wait_for([&] { return server.snapshot().blocks.used == 0; }, "free blocks");
  EXPECT_EQ(server.snapshot().running + server.snapshot().waiting, 0);
  // The engine then has nothing to do: it steps no more.
  std::int64_t after = server.snapshot().statistics.steps;
  EXPECT_LT(after - before, 60'000);
  server.completion({{"prompt", "x"}, {"max_tokens", 1}});
  EXPECT_LE(server.snapshot().statistics.steps - after, 2);
  ServerRig::wait_for(
      [&] { return server.metric("request_success_total", "finished_reason=\"abort\"") == 12; },
      "the count of aborted requests");
  EXPECT_EQ(server.metric("num_requests_running"), 0);
  EXPECT_EQ(server.metric("num_requests_waiting"), 0);
}

TEST(Stress, AFullQueueRefusesAtOnce) {
  RigOptions options;
  options.positions = 1 << 16;
  options.engine.max_sequences = 2;
  options.api.max_waiting = 3;
  ServerRig server(options);
  Streams streams(server.url());
  std::vector<ExchangeId> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(streams.start("/v1/completions", endless(60'000)));
    streams.run_until([&] {
      return server.metric("num_requests_running") + server.metric("num_requests_waiting") == i + 1;
    });
  }
  HttpResponse refused = server.call("POST", "/v1/completions", endless(5).dump());
  EXPECT_EQ(refused.status, 429);
  EXPECT_FALSE(find_header(refused.headers, "Retry-After").empty());
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "queue_full");
  // What runs goes on, and room is there again once something ends.
  std::int64_t seen = streams.at(ids[0]).events;
  streams.run_until([&] { return streams.at(ids[0]).events > seen; });
  streams.cancel(ids[1]);
  streams.run_until([&] { return server.metric("num_requests_waiting") == 2; });
  ExchangeId late = streams.start("/v1/completions", endless(3));
  for (ExchangeId id : ids) streams.cancel(id);
  streams.run();
  EXPECT_TRUE(streams.at(late).done);
}

// Much more than can run: every request has an answer, and streams that run go on.
TEST(Stress, OverloadLeavesNoRequestWithoutAnAnswer) {
  RigOptions options;
  options.positions = 4096;
  options.engine.max_sequences = 4;
  options.api.max_waiting = 8;
  ServerRig server(options);
  Streams streams(server.url());
  ExchangeId first = streams.start("/v1/completions", endless(400));
  streams.run_until([&] { return streams.at(first).events > 5; });
  for (int i = 0; i < 120; ++i) streams.start("/v1/completions", endless(20));
  streams.run();
  std::map<int, int> statuses;
  for (auto& [id, stream] : streams.all()) {
    ++statuses[stream.status];
    EXPECT_TRUE(stream.finished && stream.error.empty()) << stream.error;
    EXPECT_TRUE(stream.status != 200 || stream.done);
  }
  EXPECT_EQ(statuses[200] + statuses[429], 121);
  EXPECT_GT(statuses[429], 0);
  EXPECT_EQ(streams.at(first).events, 402);  // the tokens, the end, [DONE]
  EXPECT_EQ(server.snapshot().blocks.used, 0);
}

TEST(Stress, OneRequestsNanFailsAlone) {
  RigOptions options;
  options.change_weights = [](RankModel& model) {
    for (const Param* param : model.store().params()) {
      if (param->name != "embedding.word_embeddings.weight") continue;
      WeightLease value = model.store().local_value(*param);
      std::fill_n(value.view.as<float>() + 7 * 20, 20, NAN);
    }
  };
  ServerRig server(options);
  auto body = [](std::vector<int> prompt) {
    return Json{{"prompt", prompt}, {"max_tokens", 20}, {"seed", 1}, {"logit_bias", {{"7", -100}}}};
  };
  Json alone = server.completion(body({1, 2}));
  Streams streams(server.url());
  std::vector<ExchangeId> good, bad;
  for (int i = 0; i < 6; ++i) {
    bad.push_back(streams.start("/v1/completions", body({3, 7})));
    good.push_back(streams.start("/v1/completions", body({1, 2})));
  }
  Json streamed = body({3, 7});
  streamed["stream"] = true;
  ExchangeId in_stream = streams.start("/v1/completions", streamed);
  streams.run();
  for (ExchangeId id : bad) {
    EXPECT_EQ(streams.at(id).status, 500);
    EXPECT_NE(streams.at(id).body.find("NaN"), std::string::npos) << streams.at(id).body;
  }
  EXPECT_EQ(streams.at(in_stream).status, 500);
  for (ExchangeId id : good) {
    ASSERT_EQ(streams.at(id).status, 200);
    EXPECT_EQ(Json::parse(streams.at(id).body)["choices"], alone["choices"]);
  }
  EXPECT_EQ(server.metric("request_success_total", "finished_reason=\"error\""), 7);
  // A token that brings NaN in the middle of a stream.
  streamed = {{"prompt", {1, 2}}, {"max_tokens", 9}, {"stream", true},
              {"temperature", 0}, {"min_tokens", 9}, {"logit_bias", {{"7", 100}}}};
  HttpResponse response = server.call("POST", "/v1/completions", streamed.dump());
  EXPECT_EQ(response.status, 200);
  EXPECT_NE(response.body.find("\"error\""), std::string::npos) << response.body;
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST(Stress, Answers503UntilTheModelIsLoaded) {
  RigOptions options;
  options.may_load = std::make_shared<std::atomic<bool>>(false);
  options.api.access.control_keys = {"k"};
  ServerRig server(options);
  EXPECT_EQ(Json::parse(server.get("/health").body)["status"], "loading");
  EXPECT_EQ(server.get("/health").status, 503);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/embeddings"}) {
    HttpResponse response = server.call("POST", path, "{}");
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_FALSE(find_header(response.headers, "Retry-After").empty());
  }
  EXPECT_EQ(server.get("/v1/models").status, 503);
  EXPECT_EQ(server.call("POST", "/resume", "", {{"Authorization", "Bearer k"}}).status, 503);
  EXPECT_EQ(server.get("/metrics").status, 200);
  *options.may_load = true;
  ServerRig::wait_for([&] { return server.get("/health").status == 200; }, "readiness");
  server.completion({{"prompt", "x"}, {"max_tokens", 1}});
}

TEST(Stress, PausesInThreeWays) {
  RigOptions options;
  options.positions = 1 << 16;
  options.api.access.control_keys = {"k"};
  ServerRig server(options);
  const std::vector<HttpHeader> key = {{"Authorization", "Bearer k"}};
  auto control = [&](const char* path) {
    HttpResponse response = server.call("POST", path, "", key);
    EXPECT_EQ(response.status, 200) << path << response.body;
  };
  auto paused = [&] {
    return Json::parse(server.call("GET", "/is_paused", "", key).body)["is_paused"].get<bool>();
  };
  Streams streams(server.url());
  // keep: nothing is computed until resume, and the answer is whole.
  Json body = endless(2000);
  body["seed"] = 5;
  ExchangeId kept = streams.start("/v1/completions", body);
  streams.run_until([&] { return streams.at(kept).events > 3; });
  control("/pause?mode=keep");
  EXPECT_TRUE(paused());
  EXPECT_EQ(server.completion({{"prompt", "x"}}, 503)["error"]["type"],
            "service_unavailable_error");
  std::int64_t steps = server.snapshot().statistics.steps;
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.snapshot().statistics.steps, steps);
  control("/resume");
  streams.run();
  EXPECT_TRUE(streams.at(kept).done);
  // wait: what runs ends first.
  ExchangeId waited = streams.start("/v1/completions", body);
  streams.run_until([&] { return streams.at(waited).events > 3; });
  control("/pause?mode=wait");
  streams.run();
  EXPECT_TRUE(streams.at(waited).done);
  EXPECT_EQ(streams.at(waited).events, streams.at(kept).events);
  control("/resume");
  // abort: what runs ends now.
  ExchangeId aborted = streams.start("/v1/completions", endless(60'000));
  streams.run_until([&] { return streams.at(aborted).events > 3; });
  control("/pause");
  streams.run();
  EXPECT_NE(streams.at(aborted).body.find(R"("finish_reason":"abort")"), std::string::npos);
  EXPECT_EQ(server.snapshot().blocks.used, 0);
  control("/resume");
  control("/reset_prefix_cache");
  EXPECT_EQ(server.call("POST", "/pause?mode=never", "", key).status, 400);
  server.completion({{"prompt", "x"}, {"max_tokens", 1}});
}

TEST(Stress, DrainsAtItsEnd) {
  RigOptions options;
  options.positions = 1 << 16;
  options.drain_s = 10;
  ServerRig server(options);
  Streams streams(server.url());
  ExchangeId id = streams.start("/v1/completions", endless(3000));
  streams.run_until([&] { return streams.at(id).events > 3; });
  std::thread end([&] { server.drain(); });
  ServerRig::wait_for(
      [&] { return Json::parse(server.get("/health").body)["status"] == "draining"; }, "draining");
  server.completion({{"prompt", "x"}}, 503);
  streams.run();
  end.join();
  EXPECT_TRUE(streams.at(id).done);
  EXPECT_EQ(streams.at(id).events, 3002);
}

TEST(Stress, CutsWhatDoesNotEndInTime) {
  RigOptions options;
  options.positions = 1 << 20;
  options.engine.max_sequences = 1;
  options.drain_s = 0.05;
  ServerRig server(options);
  Streams streams(server.url());
  ExchangeId id = streams.start("/v1/completions", endless(1'000'000));
  streams.run_until([&] { return streams.at(id).events > 3; });
  std::thread end([&] { server.drain(); });
  streams.run();
  end.join();
  EXPECT_TRUE(streams.at(id).done);
  EXPECT_NE(streams.at(id).body.find(R"("finish_reason":"abort")"), std::string::npos);
}

TEST(Stress, ServesManyStreamsOnFewThreads) {
  RigOptions options;
  options.positions = 256;
  options.engine.max_sequences = 1024;
  ServerRig server(options);
  Streams streams(server.url());
  for (int i = 0; i < 1024; ++i) streams.start("/v1/completions", endless(40));
  streams.run();
  for (auto& [id, stream] : streams.all()) {
    EXPECT_TRUE(stream.done) << stream.status << stream.error << stream.body.substr(0, 200);
  }
  EXPECT_EQ(server.metric("generation_tokens_total"), 1024 * 40);
}

// Requests of all kinds, some cancelled, some malformed, some long. Nothing is lost or kept.
TEST(Stress, SoakOfMixedRequests) {
  const bool full = std::getenv("BEV_TEST_FULL") != nullptr;
  const int requests = full ? 100'000 : 3000, at_a_time = 48;
  RigOptions options;
  options.positions = 512;
  options.engine.max_sequences = 16;
  options.engine.kv_cache_tokens = 4096;  // preempts
  options.api.max_waiting = 256;
  ServerRig server(options);
  Streams streams(server.url());
  const std::string long_text(100'000, 'x');
  std::map<ExchangeId, double> cancel_at;
  std::map<int, std::int64_t> statuses;
  std::int64_t started = 0, lost = 0;
  auto random = [&](std::uint32_t what) { return philox({what, 0, 0, 0}, 77)[0]; };
  auto start_one = [&] {
    auto bits = random(static_cast<std::uint32_t>(started++));
    const std::string prompt = concat("prompt number ", bits % 50);
    Json body = {{"prompt", prompt},
                 {"max_tokens", bits % 30 + 1},
                 {"seed", bits % 7},
                 {"stream", bits % 2 == 0},
                 {"n", bits % 11 == 0 ? 3 : 1}};
    std::string path = "/v1/completions";
    if (bits % 5 == 1) {
      path = "/v1/chat/completions";
      body.erase("prompt");
      body["messages"] = conversation({"hello"})["messages"];
    }
    if (bits % 20 == 3) body["temperature"] = "hot";
    if (bits % 50 == 4) body["prompt"] = long_text;
    if (bits % 37 == 5) {
      path = "/v1/embeddings";
      body = {{"input", prompt}};
    }
    ExchangeId id = streams.start(path, body);
    bool patient = (bits >> 8) % 5 != 0;
    if (!patient) cancel_at[id] = monotonic_seconds() + 1e-5 * (bits >> 16 & 255);
  };
  std::int64_t after_warm_up = 0;
  auto resident_kb = [] {
    for (const std::string& line : split(read_file("/proc/self/status"), '\n')) {
      if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
    }
    return 0LL;
  };
  const double end = monotonic_seconds() + (full ? 3600 : 120);
  while (started < requests || streams.in_flight() > 0) {
    ASSERT_LT(monotonic_seconds(), end) << started << " of " << requests;
    while (started < requests && streams.in_flight() < at_a_time) start_one();
    streams.step();
    double now = monotonic_seconds();
    std::erase_if(cancel_at, [&](const auto& each) {
      if (each.second > now) return false;
      auto found = streams.all().find(each.first);
      bool over = found == streams.all().end() || found->second.finished;
      if (!over) streams.cancel(each.first);
      return true;
    });
    std::erase_if(streams.all(), [&](const auto& each) {
      if (!each.second.finished) return false;
      ++statuses[each.second.error.empty() ? each.second.status : 0];  // 0: cancelled
      bool whole = !each.second.error.empty() || each.second.status != 200 ||
                   each.second.body.ends_with("data: [DONE]\n\n") || Json::accept(each.second.body);
      if (!whole) ++lost;
      return true;
    });
    if (after_warm_up == 0 && started >= requests / 3) after_warm_up = resident_kb();
  }
  EXPECT_EQ(lost, 0);
  const std::int64_t cancelled = statuses[0];
  EXPECT_GT(statuses[200], requests / 2);
  EXPECT_GT(statuses[400], requests / 40);
  EXPECT_GT(cancelled, requests / 20);
  ServerRig::wait_for([&] { return server.snapshot().blocks.used == 0; }, "free blocks");
  ServerRig::wait_for([&] { return server.metric("num_requests_running") == 0; }, "no requests");
  EXPECT_EQ(server.metric("num_requests_waiting"), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what is freed
  EXPECT_LE(static_cast<double>(resident_kb()), 1.01 * static_cast<double>(after_warm_up) + 1024);
#endif
  // The server counts as the clients do.
  double counted_200 = 0, counted_400 = 0;
  for (const char* handler : {"/v1/completions", "/v1/chat/completions", "/v1/embeddings"}) {
    auto count = [&](int status) {
      double value = server.metric(
          "http_requests_total",
          concat("method=\"POST\",handler=\"", handler, "\",status=\"", status, "\""));
      return std::max(value, 0.0);
    };
    counted_200 += count(200);
    counted_400 += count(400);
  }
  EXPECT_GE(counted_200, statuses[200]);  // some were cancelled after their last byte
  EXPECT_LE(counted_200, statuses[200] + cancelled);
  EXPECT_GE(counted_400, statuses[400]);
  EXPECT_LE(counted_400, statuses[400] + cancelled);
}

}  // namespace
}  // namespace bev::test
