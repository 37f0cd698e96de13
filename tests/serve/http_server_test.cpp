#include "serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "serve/http_answer.h"
#include "serve/http_client.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using test::post_to;
using test::RawSocket;
using test::run_on;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  static HttpServerOptions options() {
    HttpServerOptions out;
    out.port = 0;
    return out;
  }
  RawSocket connect() const { return RawSocket(server_.port()); }

  test::TestHandler handler_;
  HttpServer server_{options(), handler_};
};

std::string post_text(std::string_view path, std::string_view body) {
  return concat("POST ", path, " HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(), "\r\n\r\n",
                body);
}
std::string get_text(std::string_view target) {
  return concat("GET ", target, " HTTP/1.1\r\nHost: h\r\n\r\n");
}

TEST_F(HttpServerTest, AnswersWithAllItsHeadersAndKeepsTheConnection) {
  RawSocket socket = connect();
  for (const char* body : {"hello", ""}) {
    socket.send(post_text("/echo", body));
    std::string head = socket.receive_until("\r\n\r\n");
    EXPECT_THAT(head,
                MatchesRegex(concat("HTTP/1.1 200 OK\r\nDate: ..., .. ... .... ..:..:.. GMT\r\n"
                                    "Server: bevatron\r\nContent-Type: text/plain\r\n"
                                    "Content-Length: ",
                                    std::string_view(body).size(), "\r\n\r\n")));
    EXPECT_EQ(socket.receive_bytes(std::string_view(body).size()), body);
  }
  EXPECT_EQ(server_.connections(), 1);
  EXPECT_EQ(server_.url(), concat("http://127.0.0.1:", server_.port()));
  socket.close();
  EXPECT_TRUE(test::eventually([&] { return server_.connections() == 0; }));
}

TEST_F(HttpServerTest, ReadsMethodTargetHeadersAndBody) {
  RawSocket socket = connect();
  auto describe = [&](std::string_view text) {
    socket.send(text);
    return socket.answer().body;
  };
  EXPECT_EQ(describe("GET /describe?a=%20b?c HTTP/1.1\r\nHOST: here:1\r\nX-FIRST:  \t one two \r\n"
                     "x-first: other\r\n\r\n"),
            "GET\na=%20b?c\none two\nhere:1\n");
  EXPECT_EQ(describe("BREW /%64e%73cribe HTTP/1.1\r\nhost:\r\ncontent-length: 3\r\n\r\nabc"),
            "BREW\n\n\n\nabc");
  EXPECT_EQ(describe("GET http://any:80/describe?q HTTP/1.1\r\nHost: h\r\n\r\n"), "GET\nq\n\nh\n");
  EXPECT_EQ(describe("\r\n\r\nGET /describe HTTP/1.1\r\nHost: h\r\n\r\n"), "GET\n\n\nh\n");
  // The body counts in bytes, and may hold any.
  EXPECT_EQ(describe(post_text("/echo", std::string_view("\0\r\n\xFF", 4))),
            std::string_view("\0\r\n\xFF", 4));
}

TEST_F(HttpServerTest, HandlersSeeTheDecodedPath) {
  RawSocket socket = connect();
  for (auto [target, path] : {std::pair{"/a%20b/%C3%A9%2f", "/a b/\xC3\xA9/"},
                              {"*", "*"},
                              {"http://only.host", "/"},
                              {"http://host?query", "/"},
                              {"//two", "//two"}}) {
    socket.send(get_text(target));
    std::shared_ptr<HttpExchange> exchange = handler_.take();
    EXPECT_EQ(exchange->request().path, path) << target;
    exchange->respond({.status = 404});
    EXPECT_EQ(socket.answer().status, 404);
  }
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  RawSocket socket = connect();
  socket.send("HEAD /describe HTTP/1.1\r\nHost: h\r\n\r\n" + get_text("/describe"));
  HttpResponse head = socket.answer(true), whole = socket.answer();
  EXPECT_EQ(head.header("content-length"), "9");
  EXPECT_EQ(whole.body, "GET\n\n\nh\n");
}

TEST_F(HttpServerTest, StatusesWithoutABodyHaveNone) {
  RawSocket socket = connect();
  socket.send(get_text("/held") + get_text("/describe"));
  handler_.take()->respond({.status = 204, .body = "never sent"});
  EXPECT_THAT(socket.receive_until("\r\n\r\n"), Not(HasSubstr("Content-")));
  EXPECT_EQ(socket.answer().body, "GET\n\n\nh\n");
}

TEST_F(HttpServerTest, ServesClientsOfHttp10) {
  RawSocket socket = connect();
  socket.send("POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na");
  std::string head = socket.receive_until("\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("Connection: keep-alive\r\n"));
  EXPECT_EQ(socket.receive_bytes(1), "a");
  socket.send("POST /echo HTTP/1.0\r\nContent-Length: 1\r\n\r\nb");
  EXPECT_THAT(socket.receive_all(),
              MatchesRegex("HTTP/1.0 200 OK\r\n.*Connection: close\r\n\r\nb"));
}

TEST_F(HttpServerTest, ClosesWhenTheClientAsksForIt) {
  RawSocket socket = connect();
  socket.send("GET /describe HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n" +
              get_text("/never"));
  EXPECT_THAT(socket.receive_all(), HasSubstr("Connection: close\r\n\r\nGET\n\n\nh\n"));
  EXPECT_EQ(handler_.kept(), 0u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsOneAtATimeInOrder) {
  RawSocket socket = connect();
  std::string text;
  for (int i = 0; i < 3; ++i) text.append(get_text(concat("/held", i)));
  socket.send(text + post_text("/echo", "last"));
  for (int i = 0; i < 3; ++i) {
    std::shared_ptr<HttpExchange> exchange = handler_.take();
    EXPECT_EQ(exchange->request().path, concat("/held", i));
    run_on(server_, [] {});
    EXPECT_EQ(handler_.kept(), 0u);  // the next one waits for the answer
    exchange->respond({.body = concat(i)});
    EXPECT_EQ(socket.answer().body, concat(i));
  }
  EXPECT_EQ(socket.answer().body, "last");
}

TEST_F(HttpServerTest, PipelinedRequestsBeyondTheBuffersWait) {
  constexpr int kRequests = 4000;  // some 130 KB of text, more than is read ahead
  RawSocket socket = connect();
  socket.send(get_text("/held"));
  std::shared_ptr<HttpExchange> first = handler_.take();
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) socket.send(get_text("/describe"));
  });
  first->respond({.body = "first"});
  EXPECT_EQ(socket.answer().body, "first");
  for (int i = 0; i < kRequests; ++i) ASSERT_EQ(socket.answer().body, "GET\n\n\nh\n") << i;
  sender.join();
}

TEST_F(HttpServerTest, SaysContinueBeforeABodyThatWaitsForIt) {
  RawSocket socket = connect();
  socket.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(socket.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  socket.send("body");
  EXPECT_EQ(socket.answer().body, "body");
  // A body that comes at once needs none; nor does HTTP/1.0.
  socket.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_THAT(socket.receive_until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ReadsChunkedBodiesCutAnywhere) {
  const std::string text =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;name=\"value\"\r\nabc\r\n00A\r\n0123456789\r\n0\r\nTrailer: ignored\r\n\r\n";
  RawSocket socket = connect();
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    socket.send(text.substr(0, cut));
    run_on(server_, [] {});  // the first part is most likely read by itself
    socket.send(text.substr(cut));
    ASSERT_EQ(socket.answer().body, "abc0123456789") << cut;
  }
}

TEST_F(HttpServerTest, FailuresOfTheHandlerBecome500) {
  RawSocket socket = connect();
  socket.send(get_text("/throw") + get_text("/forget") + get_text("/held"));
  EXPECT_EQ(socket.answer().status, 500);
  EXPECT_EQ(socket.answer().status, 500);
  handler_.take().reset();  // on another thread
  HttpResponse answer = socket.answer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.content_type, "application/json");
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"the request was not answered","type":"invalid_request_error",)"
            R"("param":null,"code":null}})");
}

TEST_F(HttpServerTest, NoHeaderCanBeginAnother) {
  RawSocket socket = connect();
  for (HttpResponse bad : {HttpResponse{.headers = {{"X", "a\r\nEvil: b"}}},
                           {.headers = {{"X: y\r\nEvil", "b"}}},
                           {.content_type = "text/html\nEvil: b"},
                           {.status = 99},
                           {.headers = {{"", "b"}}}}) {
    socket.send(get_text("/held"));
    handler_.take()->respond(std::move(bad));
    std::string head = socket.receive_until("\r\n\r\n");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 500 "));
    EXPECT_THAT(head, Not(HasSubstr("Evil")));
    socket.receive_until("}}");
  }
  // Framing is not the handler's.
  socket.send(get_text("/held"));
  handler_.take()->respond({.headers = {{"content-length", "7"}, {"X-Own", "y"}}, .body = "abc"});
  HttpResponse answer = socket.answer();
  EXPECT_EQ(answer.body, "abc");
  EXPECT_EQ(answer.header("x-own"), "y");
}

TEST_F(HttpServerTest, RunsTasksOfEachThreadInOrder) {
  constexpr int kThreads = 8, kTasks = 2000;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  std::thread::id runner;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto& list = seen[static_cast<std::size_t>(t)];
      for (int i = 0; i < kTasks; ++i) post_to(server_, [&list, i] { list.push_back(i); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  run_on(server_, [&] { runner = std::this_thread::get_id(); });
  EXPECT_NE(runner, std::this_thread::get_id());
  for (const std::vector<int>& list : seen) {
    ASSERT_EQ(list.size(), static_cast<std::size_t>(kTasks));
    for (int i = 0; i < kTasks; ++i) ASSERT_EQ(list[static_cast<std::size_t>(i)], i);
  }
}

TEST_F(HttpServerTest, TaskThatThrowsStopsNothing) {
  post_to(server_, [] { BEV_FAIL(ErrorKind::kInternal, "wanted by the test"); });
  bool ran = false;
  run_on(server_, [&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST_F(HttpServerTest, AnswersFromManyThreads) {
  constexpr int kRequests = 200;
  struct Sink final : HttpClientSink {
    void on_data(ExchangeId id, std::string_view bytes) override {
      bodies[static_cast<std::size_t>(id)].append(bytes);
    }
    void on_done(ExchangeId, const std::string& error) override { EXPECT_EQ(error, ""); }
    std::vector<std::string> bodies = std::vector<std::string>(kRequests + 1);
  } sink;
  HttpClient client({.url = server_.url()}, sink);
  for (int i = 0; i < kRequests; ++i) client.start({.method = "GET", .path = "/held"});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRequests / 4; ++i) {
        std::shared_ptr<HttpExchange> exchange = handler_.take();
        exchange->begin_stream({.content_type = "text/plain"});
        for (const char* piece : {"a", "b", "c"}) exchange->write(piece);
        exchange->end_stream();
      }
    });
  }
  while (client.in_flight() > 0) client.run_until(1e18);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 1; i < sink.bodies.size(); ++i) EXPECT_EQ(sink.bodies[i], "abc");
}

TEST_F(HttpServerTest, StopsAcceptingButFinishesAnswers) {
  RawSocket idle = connect(), streaming = connect(), held = connect();
  idle.send(post_text("/echo", "x"));
  EXPECT_EQ(idle.answer().body, "x");
  streaming.send(get_text("/a"));
  std::shared_ptr<HttpExchange> stream = handler_.take();
  stream->begin_stream({.content_type = "text/plain"});
  streaming.receive_until("\r\n\r\n");
  held.send(get_text("/b"));
  std::shared_ptr<HttpExchange> exchange = handler_.take();

  server_.stop_accepting();
  EXPECT_EQ(idle.receive_all(), "");
  EXPECT_THROW(connect(), Error);
  stream->write("z");
  stream->end_stream();
  EXPECT_EQ(streaming.receive_all(), "1\r\nz\r\n0\r\n\r\n");
  exchange->respond({.body = "b"});
  EXPECT_THAT(held.receive_all(), HasSubstr("Connection: close\r\n\r\nb"));
  streaming.close();
  held.close();
  EXPECT_TRUE(test::eventually([&] { return server_.connections() == 0; }));
}

TEST(HttpServer, ExchangesMayOutliveIt) {
  test::TestHandler handler;
  HttpServerOptions options;
  options.port = 0;
  auto server = std::make_unique<HttpServer>(options, handler);
  RawSocket held(server->port()), streaming(server->port());
  held.send(get_text("/held"));
  std::shared_ptr<HttpExchange> first = handler.take();
  streaming.send(get_text("/streaming"));
  std::shared_ptr<HttpExchange> second = handler.take();
  second->begin_stream({.content_type = "text/plain"});
  streaming.receive_until("\r\n\r\n");
  server.reset();
  EXPECT_THAT(handler.await_closed(2), testing::UnorderedElementsAre("/held", "/streaming"));
  EXPECT_TRUE(first->closed());
  EXPECT_EQ(first->request().path, "/held");
  first->respond({.body = "nobody hears it"});
  second->write("nor this");
  second->end_stream();
  EXPECT_EQ(held.receive_all(), "");
  EXPECT_EQ(streaming.receive_all(), "");  // a reset: without the last chunk
}

TEST(HttpServer, TellsConnectionsOverTheLimitToComeBack) {
  test::TestHandler handler;
  HttpServerOptions options;
  options.port = 0;
  options.max_connections = 2;
  HttpServer server(options, handler);
  RawSocket first(server.port()), second(server.port());
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 2; }));
  RawSocket third(server.port());
  third.send(post_text("/echo", "x"));
  HttpResponse answer = third.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("retry-after"), "1");
  EXPECT_EQ(third.receive_all(), "");
  third.close();
  first.close();
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 1; }));
  RawSocket fourth(server.port());
  fourth.send(post_text("/echo", "welcome"));
  EXPECT_EQ(fourth.answer().body, "welcome");
}

// Without descriptors a connection waits; the I/O thread does not spin meanwhile.
TEST(HttpServer, WaitsForFreeDescriptors) {
  test::TestHandler handler;
  HttpServerOptions options;
  options.port = 0;
  HttpServer server(options, handler);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::size_t open = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++open;
  }
  std::vector<int> fillers;
  rlimit tight = before;
  tight.rlim_cur = open + 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (int file = ::dup(0); file >= 0; file = ::dup(0)) fillers.push_back(file);
  ::close(fillers.back());
  fillers.pop_back();
  RawSocket socket(server.port());  // takes the last one
  socket.send(post_text("/echo", "late"));
  std::clock_t used = std::clock();
  EXPECT_FALSE(socket.readable(150));
  EXPECT_LT(std::clock() - used, CLOCKS_PER_SEC / 20);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(socket.answer().body, "late");
  for (int file : fillers) ::close(file);
}

TEST(HttpServer, SaysWhyItCannotListen) {
  test::TestHandler handler;
  HttpServerOptions options;
  options.port = 0;
  HttpServer first(options, handler);
  auto reason = [&](const HttpServerOptions& wanted) -> std::string {
    try {
      HttpServer second(wanted, handler);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "";
  };
  options.port = first.port();
  EXPECT_EQ(reason(options), concat("serve: cannot listen on 127.0.0.1:", first.port(),
                                    ": Address already in use; give another --port"));
  options.port = 70000;
  EXPECT_EQ(reason(options), "serve: --port 70000 is not within 0 to 65535");
  options.port = 0;
  options.host = "192.0.2.1";
  EXPECT_EQ(
      reason(options),
      "serve: cannot listen on 192.0.2.1:0: Cannot assign requested address; give another --host");
  options.host = "no.such.host.invalid";
  EXPECT_THAT(reason(options), StartsWith("serve: --host no.such.host.invalid: the host "
                                          "no.such.host.invalid is not known: "));
}

TEST(HttpServer, ListensOnNamesAndOnIpv6) {
  test::TestHandler handler;
  for (const char* host : {"localhost", "::1", "0.0.0.0"}) {
    HttpServerOptions options;
    options.host = host;
    options.port = 0;
    try {
      HttpServer server(options, handler);
      HttpRequest request = {.method = "POST", .path = "/echo", .body = host};
      EXPECT_EQ(fetch({.url = server.url()}, request).body, host);
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(host), "::1") << error.what();  // a machine without IPv6
    }
  }
}

TEST(HttpServer, WritesDatesAsHttpDoes) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
}

}  // namespace
}  // namespace bev
