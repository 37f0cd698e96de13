// Answers in pieces, clients that leave or read slowly, and many streams at a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/text.h"
#include "serve/http_client.h"
#include "serve/http_server.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using test::RawSocket;
using test::run_on;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr const char* kGet = "GET /held HTTP/1.1\r\nHost: h\r\n\r\n";

struct Served {
  explicit Served(HttpServerOptions options = {}) : server(on_free_port(options), handler) {}
  static HttpServerOptions on_free_port(HttpServerOptions options) {
    options.port = 0;
    return options;
  }
  std::shared_ptr<HttpExchange> ask(RawSocket& socket, std::string_view text = kGet) {
    socket.send(text);
    return handler.take();
  }

  test::TestHandler handler;
  HttpServer server;
};

TEST(HttpStream, PiecesAreChunks) {
  Served served;
  RawSocket socket(served.server.port());
  for (int i = 0; i < 2; ++i) {  // the connection is kept
    std::shared_ptr<HttpExchange> exchange = served.ask(socket);
    exchange->begin_stream({.status = 201, .content_type = "text/event-stream", .body = "first"});
    exchange->write("second piece is 27 bytes...");
    exchange->write("");  // no piece at all
    exchange->end_stream();
    exchange->write("too late");
    EXPECT_THAT(
        socket.receive_until("\r\n\r\n"),
        MatchesRegex("HTTP/1.1 201 Created\r\nDate: [^\r]*\r\nServer: bevatron\r\n"
                     "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"));
    EXPECT_EQ(socket.receive_until("0\r\n\r\n"),
              "5\r\nfirst\r\n1b\r\nsecond piece is 27 bytes...\r\n0\r\n\r\n");
    EXPECT_FALSE(exchange->closed());
  }
}

TEST(HttpStream, Http10ReadsUntilTheEnd) {
  Served served;
  RawSocket socket(served.server.port());
  auto exchange = served.ask(socket, "GET /held HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  exchange->begin_stream({.content_type = "text/plain"});
  exchange->write("one");
  exchange->write("two");
  exchange->end_stream();
  std::string reply = socket.receive_all();
  EXPECT_THAT(reply, EndsWith("Connection: close\r\n\r\nonetwo"));
  EXPECT_THAT(reply, Not(HasSubstr("chunked")));
}

TEST(HttpStream, HeadGetsNoPieces) {
  Served served;
  RawSocket socket(served.server.port());
  for (int i = 0; i < 2; ++i) {
    auto exchange = served.ask(socket, "HEAD /held HTTP/1.1\r\nHost: h\r\n\r\n");
    exchange->begin_stream({.body = "never sent"});
    exchange->write("nor this");
    exchange->end_stream();
    EXPECT_EQ(socket.answer(true).header("transfer-encoding"), "chunked");
  }
}

TEST(HttpStream, PiecesOfOneTurnAreSentTogether) {
  Served served;
  RawSocket socket(served.server.port());
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  exchange->begin_stream({.content_type = "text/plain"});
  socket.receive_until("\r\n\r\n");
  std::string expected;
  for (int i = 0; i < 100; ++i) expected.append("3\r\nabc\r\n");
  run_on(served.server, [&] {
    for (int i = 0; i < 100; ++i) exchange->write("abc");
  });
  EXPECT_EQ(socket.receive(), expected);  // by one call
}

TEST(HttpStream, LeftWithoutItsEndIsCutOff) {
  Served served;
  RawSocket socket(served.server.port());
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  exchange->begin_stream({.content_type = "text/plain"});
  socket.receive_until("\r\n\r\n");
  exchange.reset();
  EXPECT_EQ(socket.receive_all(), "");
}

TEST(HttpStream, ClientThatLeavesIsSeenWhileNothingIsWritten) {
  Served served;
  enum class Way { kClose, kReset, kHalfClose };
  std::size_t left = 0;
  for (Way way : {Way::kClose, Way::kReset, Way::kHalfClose}) {
    for (bool streams : {false, true}) {
      RawSocket socket(served.server.port());
      std::shared_ptr<HttpExchange> exchange = served.ask(socket);
      if (streams) {
        exchange->begin_stream({.content_type = "text/plain"});
        socket.receive_until("\r\n\r\n");
      }
      if (way == Way::kClose) socket.close();
      if (way == Way::kReset) socket.reset();
      if (way == Way::kHalfClose) socket.end_sending();
      served.handler.await_closed(++left);
      EXPECT_TRUE(exchange->closed());
      exchange->write("ignored");
      exchange->respond({});
      EXPECT_TRUE(test::eventually([&] { return served.server.connections() == 0; }));
    }
  }
}

// Some turns of the loop after the client's FIN, on_closed has been called: nothing polls.
TEST(HttpStream, ClientThatLeavesIsSeenWithinTurnsOfTheLoop) {
  Served served;
  for (std::size_t i = 0; i < 200; ++i) {
    RawSocket socket(served.server.port());
    std::shared_ptr<HttpExchange> exchange = served.ask(socket);
    socket.close();
    for (int turn = 0; turn < 2; ++turn) run_on(served.server, [] {});
    ASSERT_TRUE(exchange->closed()) << i;
  }
}

TEST(HttpStream, ReadsAheadWhileItAnswersAndSeesTheEndBehind) {
  Served served;
  RawSocket socket(served.server.port());
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  std::string ahead;
  for (int i = 0; i < 100; ++i) ahead.append(kGet);
  socket.send(ahead);
  socket.close();
  EXPECT_THAT(served.handler.await_closed(1), ElementsAre("/held"));
  EXPECT_EQ(served.handler.kept(), 0u);
}

TEST(HttpStream, SlowReaderIsDroppedAndMemoryBounded) {
  HttpServerOptions options;
  options.max_unsent_bytes = 256 << 10;
  Served served(options);
  RawSocket socket(served.server.port(), 16 << 10);
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  exchange->begin_stream({.content_type = "text/plain"});
  std::int64_t written = 0;
  constexpr std::int64_t kMost = 64 << 20;  // the kernel's buffers are part of it
  while (!exchange->closed() && written < kMost) {
    run_on(served.server, [&] { exchange->write(std::string(4096, 'x')); });
    written += 4096;
  }
  EXPECT_LT(written, kMost);
  EXPECT_GT(written, options.max_unsent_bytes);
  served.handler.await_closed(1);
  EXPECT_TRUE(test::eventually([&] { return served.server.connections() == 0; }));
}

TEST(HttpStream, ReaderWithoutProgressIsDropped) {
  HttpServerOptions options;
  options.write_timeout_s = 0.1;
  options.max_unsent_bytes = 64 << 20;
  Served served(options);
  RawSocket socket(served.server.port(), 16 << 10);
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  exchange->begin_stream({.content_type = "text/plain"});
  exchange->write(std::string(32 << 20, 'x'));
  served.handler.await_closed(1);
  EXPECT_TRUE(exchange->closed());
}

TEST(HttpStream, WholeAnswersMayBeLargerThanTheBufferOfStreams) {
  HttpServerOptions options;
  options.max_unsent_bytes = 64 << 10;
  Served served(options);
  RawSocket socket(served.server.port(), 16 << 10);
  std::shared_ptr<HttpExchange> exchange = served.ask(socket);
  std::string body;
  for (int i = 0; body.size() < (20u << 20); ++i) body.append(concat(i, ","));
  exchange->respond({.body = body});
  EXPECT_EQ(socket.answer().body, body);
}

// What the load generator does to it, without the load: a thousand streams that all get events.
TEST(HttpStream, ServesAThousandStreamsWithFewThreadsAndLittleMemory) {
  constexpr std::size_t kStreams = 1024;
  constexpr int kEvents = 50;
  struct Sink final : HttpClientSink {
    void on_head(ExchangeId, const HttpResponse& head) override { opened += head.status == 200; }
    void on_data(ExchangeId id, std::string_view bytes) override {
      received[static_cast<std::size_t>(id)].append(bytes);
    }
    void on_done(ExchangeId, const std::string& error) override { failed += !error.empty(); }
    std::vector<std::string> received = std::vector<std::string>(kStreams + 1);
    std::size_t opened = 0, failed = 0;
  } sink;
  Served served;
  HttpClient client({.url = served.server.url()}, sink);
  std::int64_t memory = test::resident_bytes();
  std::vector<std::shared_ptr<HttpExchange>> streams;
  for (std::size_t i = 0; i < kStreams; ++i) client.start({.method = "GET", .path = "/held"});
  while (streams.size() < kStreams) {
    client.run_until(0);
    while (served.handler.kept() > 0) streams.push_back(served.handler.take());
  }
  run_on(served.server, [&] {
    for (const auto& stream : streams) stream->begin_stream({.content_type = "text/event-stream"});
  });
  EXPECT_EQ(served.server.connections(), static_cast<std::int64_t>(kStreams));
  EXPECT_LE(test::process_threads(), 8);
  for (int event = 0; event < kEvents; ++event) {
    run_on(served.server, [&] {
      for (const auto& stream : streams) stream->write(concat("data: ", event, "\n\n"));
    });
    client.run_until(0);
  }
  // Both ends: the server's is half of it.
  EXPECT_LT(test::resident_bytes() - memory, 128 << 20);
  run_on(served.server, [&] {
    for (const auto& stream : streams) stream->end_stream();
  });
  while (client.in_flight() > 0) client.run_until(1e18);
  std::string expected;
  for (int event = 0; event < kEvents; ++event) expected.append(concat("data: ", event, "\n\n"));
  sink.received.erase(sink.received.begin());
  EXPECT_THAT(sink.received, Each(expected));
  EXPECT_EQ(sink.opened, kStreams);
  EXPECT_EQ(sink.failed, 0u);
}

}  // namespace
}  // namespace bev
