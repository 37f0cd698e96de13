// What the server refuses: malformed requests, those over a limit, and clients that take too long.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/text.h"
#include "serve/http_server.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using test::RawSocket;
using testing::HasSubstr;
using testing::StartsWith;

struct Served {
  explicit Served(HttpServerOptions options = {}) : server(on_free_port(options), handler) {}
  static HttpServerOptions on_free_port(HttpServerOptions options) {
    options.port = 0;
    return options;
  }
  // What comes back for these bytes, up to the end of the connection.
  std::string reply(std::string_view text) const {
    RawSocket socket(server.port());
    socket.send(text);
    return socket.receive_all();
  }

  test::TestHandler handler;
  HttpServer server;
};

TEST(HttpLimits, RefusesMalformedRequestsAndCloses) {
  struct Row {
    int status;
    std::string text;
  };
  const std::string post = "POST /echo HTTP/1.1\r\nHost: h\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::vector<Row> rows = {
      {400, "GET /echo HTTP/1.1\r\n\r\n"},  // no Host
      {400, "GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
      {400, "GET /echo%4 HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "GET /echo%zz HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "GET /echo%00 HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "GET echo HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "CONNECT host:80 HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "GET  /echo HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "GET\r\nHost: h\r\n\r\n"},
      {400, "GET /echo\r\n\r\n"},
      {505, "GET /echo HTTP/2.0\r\nHost: h\r\n\r\n"},
      {505, "GET /echo HTTP/1.1 \r\nHost: h\r\n\r\n"},
      {400, "GET /echo HTTP/1.1\nHost: h\r\n\r\n"},  // a line feed alone
      {400, "\r\n\n GET"},
      {400, "G@T /echo HTTP/1.1\r\nHost: h\r\n\r\n"},
      {400, "\x16\x03\x01\x02"},  // the first bytes of TLS
      {400, post + "X-A: one\r\n two\r\n\r\n"},
      {400, post + "X-A: one\r\n\ttwo\r\n\r\n"},
      {400, post + "X-A : one\r\n\r\n"},
      {400, post + ": one\r\n\r\n"},
      {400, post + "no colon\r\n\r\n"},
      {400, post + std::string("X-A: a\0b\r\n\r\n", 13)},
      {400, post + "X-A: a\rb\r\n\r\n"},
      {400, post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n"},
      {400, post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
      {400, post + "Content-Length: -1\r\n\r\n"},
      {400, post + "Content-Length: +1\r\n\r\na"},
      {400, post + "Content-Length: 1e2\r\n\r\na"},
      {400, post + "Content-Length: 0x1\r\n\r\na"},
      {400, post + "Content-Length: \r\n\r\n"},
      {400, post + "Content-Length: 99999999999999999999999\r\n\r\n"},
      {501, post + "Transfer-Encoding: gzip\r\n\r\n"},
      {501, post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
      {400, post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {417, post + "Expect: miracles\r\n\r\n"},
      {400, chunked + "g\r\n\r\n"},
      {400, chunked + "\r\n\r\n"},
      {400, chunked + "-1\r\n\r\n"},
      {400, chunked + "1\r\nab\r\n0\r\n\r\n"},
      {400, chunked + "11111111111111111\r\n\r\n"},
      {400, chunked + "1 1\r\na\r\n0\r\n\r\n"},
      {400, chunked + "1;=x\r\na\r\n0\r\n\r\n"},
      {400, chunked + "0\r\nno colon\r\n\r\n"},
  };
  Served served;
  for (const Row& row : rows) {
    std::string reply = served.reply(row.text);
    EXPECT_THAT(reply, StartsWith(concat("HTTP/1.1 ", row.status, " "))) << row.text;
    EXPECT_THAT(reply, HasSubstr("\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\""));
  }
  EXPECT_TRUE(test::eventually([&] { return served.server.connections() == 0; }));
}

TEST(HttpLimits, HeadersAreBoundedExactly) {
  HttpServerOptions options;
  options.max_header_bytes = 1000;
  Served served(options);
  const std::string begin = "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: ";
  std::string fits = begin + std::string(1000 - 4 - begin.size(), 'x') + "\r\n\r\n";
  ASSERT_EQ(fits.size(), 1000u);
  EXPECT_THAT(served.reply(fits), StartsWith("HTTP/1.1 200 "));
  std::string over = served.reply(begin + "x" + fits.substr(begin.size()));
  EXPECT_THAT(over, StartsWith("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
  EXPECT_THAT(over, HasSubstr("the header has more than 1000 bytes"));
  // Many short lines count too, as does one that does not end.
  std::string many = begin;
  for (int i = 0; i < 1000; ++i) many.append("\r\nA: b");
  EXPECT_THAT(served.reply(many), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(served.reply(std::string(1000, 'x')), StartsWith("HTTP/1.1 431 "));
}

TEST(HttpLimits, BodiesAreBoundedExactly) {
  HttpServerOptions options;
  options.max_body_bytes = 100'000;
  Served served(options);
  const std::string post = "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string half(50'000, 'x');
  EXPECT_THAT(served.reply(post + "Content-Length: 100000\r\n\r\n" + half + half),
              HasSubstr(concat("\r\n\r\n", half, half)));
  EXPECT_THAT(served.reply(chunked + "C350\r\n" + half + "\r\nC350\r\n" + half + "\r\n0\r\n\r\n"),
              HasSubstr(concat("\r\n\r\n", half, half)));
  std::string over = served.reply(post + "Content-Length: 100001\r\n\r\n");
  EXPECT_THAT(over, StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  EXPECT_THAT(over, HasSubstr("the body has more than 100000 bytes"));
  EXPECT_THAT(served.reply(chunked + "C350\r\n" + half + "\r\nC351\r\n"),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(served.reply(chunked + "FFFFFFFFFFFFFFFF\r\n"), StartsWith("HTTP/1.1 413 "));
  // A client that asks first gets no 100 Continue.
  EXPECT_THAT(served.reply(post + "Expect: 100-continue\r\nContent-Length: 100001\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
}

// The client is still sending when it is refused: closing at once would reset the connection.
TEST(HttpLimits, RefusalReachesAClientThatIsSending) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  Served served(options);
  RawSocket socket(served.server.port());
  socket.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n");
  for (int i = 0; i < 80; ++i) socket.send(std::string(100'000, 'x'));
  EXPECT_EQ(socket.answer().status, 413);
  EXPECT_EQ(socket.receive_all(), "");
}

TEST(HttpLimits, ChunkFramingHasAnEnd) {
  HttpServerOptions options;
  options.max_header_bytes = 2000;
  Served served(options);
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(served.reply(chunked + "1;" + std::string(4000, 'x')), StartsWith("HTTP/1.1 400 "));
  std::string trailers = chunked + "0\r\n";
  for (int i = 0; i < 1000; ++i) trailers.append("A: b\r\n");
  EXPECT_THAT(served.reply(trailers), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpLimits, SlowRequestsTimeOutHoweverTheyTrickle) {
  HttpServerOptions options;
  options.read_timeout_s = 0.1;
  Served served(options);
  for (const char* begin : {"GET /echo HTTP/1.1\r\nHost: h\r\nX: ",
                            "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n"}) {
    RawSocket socket(served.server.port());
    socket.send(begin);
    while (!socket.readable(10)) socket.send("x");
    EXPECT_EQ(socket.answer().status, 408);
    EXPECT_EQ(socket.receive_all(), "");
  }
}

// At 64 KiB/s and more a body has longer than read_timeout_s.
TEST(HttpLimits, LargeBodiesMayTakeLonger) {
  HttpServerOptions options;
  options.read_timeout_s = 0.05;
  Served served(options);
  RawSocket socket(served.server.port());
  const std::string part(64 << 10, 'x');
  constexpr int kParts = 16;
  socket.send(concat("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: ", part.size() * kParts,
                     "\r\n\r\n"));
  double begin = monotonic_seconds();
  for (int i = 0; i < kParts; ++i) {
    socket.send(part);
    if (i + 1 == kParts) break;
    EXPECT_FALSE(socket.readable(10));
  }
  EXPECT_GT(monotonic_seconds() - begin, 0.15);
  HttpResponse answer = socket.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.size(), part.size() * kParts);
}

TEST(HttpLimits, IdleConnectionsAreClosedSilently) {
  HttpServerOptions options;
  options.keep_alive_s = 0.05;
  Served served(options);
  EXPECT_EQ(served.reply(""), "");
  EXPECT_EQ(served.reply("\r\n"), "");
  RawSocket socket(served.server.port());
  socket.send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(socket.answer().status, 200);
  EXPECT_EQ(socket.receive_all(), "");
  EXPECT_TRUE(test::eventually([&] { return served.server.connections() == 0; }));
}

}  // namespace
}  // namespace bev
