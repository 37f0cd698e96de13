#include "serve/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "serve/http_server.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using test::RawListener;
using test::RawSocket;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// All that a client says, as lines.
struct Log final : HttpClientSink {
  void on_head(ExchangeId id, const HttpResponse& head) override {
    lines.push_back(concat(id, " head ", head.status, " ", head.content_type));
    after_head(id);
  }
  void on_data(ExchangeId id, std::string_view bytes) override { data[id].append(bytes); }
  void on_done(ExchangeId id, const std::string& error) override {
    lines.push_back(concat(id, " done ", error));
    after_done(id);
  }

  std::vector<std::string> lines;
  std::map<ExchangeId, std::string> data;
  std::function<void(ExchangeId)> after_head = [](ExchangeId) {};
  std::function<void(ExchangeId)> after_done = [](ExchangeId) {};
};

void finish(HttpClient& client) {
  while (client.in_flight() > 0) client.run_until(1e18);
}

// A server of one connection after the other, which does for each what the test says.
class ScriptedServer {
 public:
  using Script = std::function<void(RawSocket&)>;
  explicit ScriptedServer(std::vector<Script> scripts)
      : thread_([this, scripts = std::move(scripts)] {
          for (const Script& script : scripts) {
            RawSocket socket = listener_.accept();
            script(socket);
          }
        }) {}
  ~ScriptedServer() { thread_.join(); }
  HttpClientOptions options() const {
    return {.url = concat("http://127.0.0.1:", listener_.port())};
  }

 private:
  RawListener listener_;
  std::thread thread_;
};

// Reads a request and answers it with these bytes.
ScriptedServer::Script replying(std::string text) {
  return [text = std::move(text)](RawSocket& socket) {
    socket.receive_until("\r\n\r\n");
    socket.try_send(text);
  };
}

HttpRequest get(std::string path) { return {.method = "GET", .path = std::move(path)}; }

std::string failure_of(const HttpClientOptions& options) {
  try {
    fetch(options, get("/x"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    return error.what();
  }
  return "";
}

class HttpClientTest : public testing::Test {
 protected:
  static HttpServerOptions server_options() {
    HttpServerOptions out;
    out.port = 0;
    return out;
  }
  HttpClientOptions options() const { return {.url = server_.url()}; }

  test::TestHandler handler_;
  HttpServer server_{server_options(), handler_};
};

TEST_F(HttpClientTest, SendsWhatTheServerReads) {
  HttpRequest request = {.method = "PATCH",
                         .path = "/describe",
                         .query = "a=%20",
                         .headers = {{"X-First", "one"}},
                         .body = "body"};
  HttpResponse answer = fetch(options(), request);
  EXPECT_EQ(answer.body, concat("PATCH\na=%20\none\n127.0.0.1:", server_.port(), "\nbody"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.content_type, "text/plain");
  EXPECT_EQ(answer.header("SERVER"), "bevatron");
}

TEST_F(HttpClientTest, EncodesPathsBehindThatOfTheUrl) {
  Log log;
  HttpClient client({.url = server_.url() + "/v1/"}, log);
  client.start(get("/a b?\xC3\xA9%41"));
  while (handler_.kept() == 0) client.run_until(0);
  std::shared_ptr<HttpExchange> exchange = handler_.take();
  EXPECT_EQ(exchange->request().path, "/v1/a b?\xC3\xA9%41");
  EXPECT_EQ(exchange->request().query, "");
}

TEST_F(HttpClientTest, KeepsConnections) {
  Log log;
  HttpClient client(options(), log);
  for (int i = 1; i <= 5; ++i) {
    client.start({.method = "POST", .path = "/echo", .body = concat("body ", i)});
    finish(client);
    EXPECT_EQ(log.data[i], concat("body ", i));
    EXPECT_EQ(server_.connections(), 1);
  }
  EXPECT_THAT(log.lines, testing::SizeIs(10));
  EXPECT_THAT(std::span(log.lines).first(3),
              ElementsAre("1 head 200 text/plain", "1 done ", "2 head 200 text/plain"));
}

TEST_F(HttpClientTest, ServesManyRequestsAtATime) {
  constexpr int kRequests = 2000;
  Log log;
  int left = kRequests;
  HttpClient client(options(), log);
  // A request that is done starts the next one, from within the call.
  auto start_next = [&](ExchangeId) {
    if (left-- > 0) client.start({.method = "POST", .path = "/echo", .body = concat(left)});
  };
  log.after_done = start_next;
  for (int i = 0; i < 100; ++i) start_next(0);
  finish(client);
  EXPECT_EQ(server_.connections(), 100);
  ASSERT_EQ(log.data.size(), static_cast<std::size_t>(kRequests));
  for (const auto& [id, body] : log.data) ASSERT_EQ(body, concat(kRequests - id));
}

TEST_F(HttpClientTest, HeadHasNoBody) {
  Log log;
  HttpClient client(options(), log);
  client.start({.method = "HEAD", .path = "/describe"});
  finish(client);
  EXPECT_THAT(log.lines, ElementsAre("1 head 200 text/plain", "1 done "));
  EXPECT_THAT(log.data, IsEmpty());
}

TEST_F(HttpClientTest, DeliversPiecesAsTheyCome) {
  Log log;
  HttpClient client(options(), log);
  client.start(get("/held"));
  while (handler_.kept() == 0) client.run_until(0);
  std::shared_ptr<HttpExchange> exchange = handler_.take();
  exchange->begin_stream({.content_type = "text/event-stream"});
  std::string sent;
  for (int i = 0; i < 10; ++i) {
    exchange->write(concat("piece ", i));
    sent.append(concat("piece ", i));
    while (log.data[1] != sent) client.run_until(0);
  }
  exchange->end_stream();
  finish(client);
  EXPECT_THAT(log.lines, ElementsAre("1 head 200 text/event-stream", "1 done "));
}

TEST_F(HttpClientTest, CancelledRequestsCloseTheirConnection) {
  Log log;
  HttpClient client(options(), log);
  ExchangeId first = client.start(get("/held")), second = client.start(get("/held"));
  while (handler_.kept() < 2) client.run_until(0);
  client.cancel(first);
  client.cancel(first);  // and 99, which there is not
  client.cancel(99);
  EXPECT_THAT(log.lines, IsEmpty());
  client.run_until(monotonic_seconds());
  EXPECT_THAT(log.lines, ElementsAre("1 done cancelled"));
  handler_.await_closed(1);
  for (int i = 0; i < 2; ++i) handler_.take()->respond({.body = "x"});
  finish(client);
  EXPECT_EQ(log.lines.back(), concat(second, " done "));
}

TEST_F(HttpClientTest, RequestsMayBeCancelledByTheirSink) {
  Log log;
  HttpClient client(options(), log);
  log.after_head = [&](ExchangeId id) { client.cancel(id); };
  client.start({.method = "POST", .path = "/echo", .body = "never seen"});
  finish(client);
  EXPECT_THAT(log.lines, ElementsAre("1 head 200 text/plain", "1 done cancelled"));
  EXPECT_THAT(log.data, IsEmpty());
  EXPECT_TRUE(test::eventually([&] { return server_.connections() == 0; }));
}

TEST_F(HttpClientTest, RunsNoLongerThanAsked) {
  Log log;
  HttpClient client(options(), log);
  client.run_until(1e18);  // nothing is in flight
  client.start(get("/held"));
  double begin = monotonic_seconds();
  client.run_until(begin + 0.03);
  EXPECT_GE(monotonic_seconds(), begin + 0.03);
  EXPECT_EQ(client.in_flight(), 1);
}

TEST(HttpClient, ReadsAnswersOfEveryFraming) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n";
  for (const std::string& text :
       {head + "Content-Length: 4\r\n\r\nbody",
        head + "Transfer-Encoding: chunked\r\n\r\n2;x\r\nbo\r\n2\r\ndy\r\n0\r\nT: t\r\n\r\n",
        head + "\r\nbody", std::string("HTTP/1.0 200 OK\r\ncontent-type: a/b\r\n\r\nbody"),
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + head +
            "Content-Length: 4\r\n\r\nbody"}) {
    ScriptedServer server({replying(text)});
    HttpResponse answer = fetch(server.options(), get("/"));
    EXPECT_EQ(answer.body, "body") << text;
    EXPECT_EQ(answer.content_type, "a/b");
  }
}

TEST(HttpClient, SaysWhyAnAnswerIsMissing) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  for (const std::string& text : {std::string(), head, head + "Content-Length: 5\r\n\r\nbody",
                                  head + "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"}) {
    ScriptedServer server({replying(text)});
    EXPECT_THAT(failure_of(server.options()),
                HasSubstr("the server closed the connection before the answer was complete"))
        << text;
  }
  for (const std::string& text :
       {std::string("SSH-2.0-OpenSSH\r\n\r\n"), head + " folded: a\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    ScriptedServer server({replying(text)});
    EXPECT_THAT(failure_of(server.options()), HasSubstr("the answer cannot be read: ")) << text;
  }
}

TEST(HttpClient, SaysWhoRefusesAConnection) {
  int port = RawListener().port();
  EXPECT_EQ(failure_of({.url = concat("http://127.0.0.1:", port)}),
            concat("GET http://127.0.0.1:", port, "/x: connection refused by 127.0.0.1:", port));
  EXPECT_THAT(failure_of({.url = "http://no.such.host.invalid"}),
              StartsWith("GET http://no.such.host.invalid/x: the host no.such.host.invalid is not "
                         "known: "));
}

TEST(HttpClient, TimesOutWithoutBytesOfAnAnswer) {
  test::TestHandler handler;
  HttpServerOptions server_options;
  server_options.port = 0;
  HttpServer server(server_options, handler);
  EXPECT_THAT(failure_of({.url = server.url(), .timeout_s = 0.05}),
              HasSubstr(concat("no answer from 127.0.0.1:", server.port(), " for 0.05 s")));
  // A listener that accepts nothing completes the connection, but not TLS.
  RawListener silent;
  EXPECT_THAT(
      failure_of({.url = concat("https://127.0.0.1:", silent.port()), .connect_timeout_s = 0.05}),
      HasSubstr(concat("no connection to 127.0.0.1:", silent.port(), " within 0.05 s")));
}

// The server may close a kept connection while the next request is on its way.
TEST(HttpClient, TriesOnceMoreWhereAKeptConnectionIsClosed) {
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
  auto answer_then_close_unread = [&](RawSocket& socket) {
    socket.receive_until("\r\n\r\n");
    socket.send(answer + "a");
    socket.receive_until("\r\n\r\n");
  };
  ScriptedServer server({answer_then_close_unread, replying(answer + "b")});
  Log log;
  HttpClient client(server.options(), log);
  client.start(get("/"));
  finish(client);
  client.start(get("/"));
  finish(client);
  EXPECT_EQ(log.data[1], "a");
  EXPECT_EQ(log.data[2], "b");
  EXPECT_THAT(log.lines, ElementsAre("1 head 200 ", "1 done ", "2 head 200 ", "2 done "));
}

TEST(HttpClient, TriesNoMoreOnceBytesHaveCome) {
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
  ScriptedServer server({[&](RawSocket& socket) {
    socket.receive_until("\r\n\r\n");
    socket.send(answer + "a");
    socket.receive_until("\r\n\r\n");
    socket.send("HTTP/1.1 200");
  }});
  Log log;
  HttpClient client(server.options(), log);
  client.start(get("/"));
  finish(client);
  client.start(get("/"));
  finish(client);
  EXPECT_THAT(log.lines.back(), StartsWith("2 done the server closed the connection"));
}

TEST(HttpClient, ReadsUrls) {
  Log log;
  for (const char* url : {"http://h", "https://h/", "HTTP://h:80/v1", "http://[::1]:8000/x",
                          "http://[::1]", "http://127.0.0.1:65535"}) {
    EXPECT_NO_THROW(HttpClient({.url = url}, log)) << url;
  }
  for (const char* url : {"", "h", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:x",
                          "http://h:70000", "http://user@h", "http://[::1", "http://h?q"}) {
    EXPECT_THROW(HttpClient({.url = url}, log), Error) << url;
  }
  EXPECT_THROW(
      fetch({.url = "http://h"}, {.method = "GET", .path = "/", .headers = {{"A", "b\r\n"}}}),
      Error);
}

}  // namespace
}  // namespace bev
