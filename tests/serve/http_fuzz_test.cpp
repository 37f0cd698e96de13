// Random changes and cuts of requests: the server answers or closes each, and goes on. Every case
// follows from its number. BEV_TEST_FULL=1 tries many more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "base/environment.h"
#include "base/text.h"
#include "serve/http_parser.h"
#include "serve/http_server.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using std::string_literals::operator""s;
using test::RawSocket;

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> texts = {
      "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
      "GET http://h:1/stream?x=%20 HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n",
      "GET /keep HTTP/1.1\r\nHost: h\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
      "HEAD /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
      "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n12345",
      "GET /stream HTTP/1.0\r\n\r\n",
      "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
      "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;a=b\r\nabc\r\n0a\r\n0123456789\r\n0\r\nT: t\r\n\r\nGET /stream HTTP/1.1\r\nHost: "
      "h\r\n\r\n",
      "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
      "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n",
      "GET /%00%zz HTTP/1.1\r\nHost: h\r\nX: y\r\n folded\r\n\r\n",
      "GET /a HTTP/1.1\r\nHost: h\0\r\n\xff: \x80\r\n\r\n"s,
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
  };
  return texts;
}

class Case {
 public:
  explicit Case(std::uint32_t number) : random_(number) {
    text = pick(seeds());
    for (std::size_t changes = below(6); changes > 0; --changes) change();
  }

  std::size_t below(std::size_t n) { return random_() % n; }
  // The text in up to four pieces.
  std::vector<std::string_view> pieces() {
    std::vector<std::size_t> cuts = {0, text.size()};
    for (std::size_t count = below(4); count > 0; --count) cuts.push_back(below(text.size() + 1));
    std::ranges::sort(cuts);
    std::vector<std::string_view> out;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      out.push_back(std::string_view(text).substr(cuts[i], cuts[i + 1] - cuts[i]));
    }
    return out;
  }

  std::string text;

 private:
  const std::string& pick(const std::vector<std::string>& list) { return list[below(list.size())]; }
  void change() {
    static const std::vector<std::string> kParts = {"\r\n",
                                                    "\n",
                                                    "\r",
                                                    "\r\n\r\n",
                                                    std::string(1, '\0'),
                                                    " ",
                                                    "\t",
                                                    ":",
                                                    "%",
                                                    "?",
                                                    ";",
                                                    "0\r\n\r\n",
                                                    "Host: h\r\n",
                                                    "Content-Length: 1\r\n",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "HTTP/1.1",
                                                    "\xff",
                                                    "Connection: close\r\n",
                                                    "Expect: 100-continue\r\n",
                                                    "99999999999999999999"};
    std::size_t place = below(text.size() + 1), size = below(12);
    switch (below(6)) {
      case 0:
        text.insert(place, pick(kParts));
        break;
      case 1:
        text.erase(place, size);
        break;
      case 2:
        if (place < text.size()) text[place] = static_cast<char>(below(256));
        break;
      case 3:
        text.insert(place, text.substr(below(text.size() + 1), size));
        break;
      case 4:
        text.resize(place);
        break;
      default:
        text.append(pick(seeds()));
    }
  }

  std::mt19937 random_;
};

// Answers at once, in pieces, or not before the client has gone.
struct FuzzHandler final : HttpHandler {
  void on_request(std::shared_ptr<HttpExchange> exchange) override {
    const std::string& path = exchange->request().path;
    if (path == "/stream") {
      exchange->begin_stream({.body = "first"});
      exchange->write("second");
      exchange->end_stream();
    } else if (path == "/keep") {
      kept.push_back(std::move(exchange));
    } else {
      exchange->respond({.body = exchange->request().body});
    }
  }
  void on_closed(HttpExchange& exchange) override {
    std::erase_if(kept, [&](const auto& other) { return other.get() == &exchange; });
  }
  std::vector<std::shared_ptr<HttpExchange>> kept;  // the I/O thread's
};

bool full() { return environment_variables().contains("BEV_TEST_FULL"); }

TEST(HttpFuzz, ServerAnswersOrClosesWhateverComes) {
  const std::uint32_t cases = full() ? 1'000'000 : 20'000;
  constexpr std::uint32_t kAtATime = 64;
  FuzzHandler handler;
  HttpServerOptions options;
  options.port = 0;
  options.max_header_bytes = 4096;
  options.max_body_bytes = 4096;
  HttpServer server(options, handler);
  for (std::uint32_t begin = 0; begin < cases; begin += kAtATime) {
    std::vector<RawSocket> sockets;
    for (std::uint32_t number = begin; number < begin + kAtATime; ++number) {
      Case one(number);
      RawSocket& socket =
          sockets.emplace_back(server.port(), 0, 2 + static_cast<int>(number % 200));
      for (std::string_view piece : one.pieces()) socket.try_send(piece);
      if (one.below(8) == 0) {
        socket.reset();
        sockets.pop_back();
      } else {
        socket.end_sending();
      }
    }
    for (RawSocket& socket : sockets) {
      std::string reply = socket.receive_all();
      ASSERT_TRUE(reply.empty() || reply.starts_with("HTTP/1.")) << "after case " << begin;
    }
  }
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 0; }));
  RawSocket socket(server.port());
  socket.send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nalive");
  EXPECT_EQ(socket.answer().body, "alive");
}

// What a parser makes of a text, as a text.
std::string parsed(std::span<const std::string_view> pieces) {
  constexpr HttpLimits kLimits = {.header_bytes = 4096, .body_bytes = 4096};
  RequestParser parser(kLimits);
  std::string inbox, out;
  for (std::string_view piece : pieces) {
    inbox.append(piece);
    while (true) {
      std::size_t used = parser.put(inbox);
      inbox.erase(0, used);
      if (parser.fault().status != 0) {
        return out + concat("fault ", parser.fault().status, " ", parser.fault().text);
      }
      if (parser.done()) {
        bool kept = parser.keep_alive();
        HttpRequest request = parser.take_request();
        out.append(concat(request.method, " ", request.path, " ", request.query, " ", kept, "\n"));
        for (const HttpHeader& header : request.headers) {
          out.append(concat(header.name, ": ", header.value, "\n"));
        }
        out.append(request.body).append("\n");
        parser = RequestParser(kLimits);
      } else if (used == 0) {
        break;
      }
    }
  }
  return out + (parser.head_done() ? "head" : "nothing");
}

TEST(HttpFuzz, CutsDoNotMatterToTheParser) {
  const std::uint32_t cases = full() ? 2'000'000 : 100'000;
  for (std::uint32_t number = 0; number < cases; ++number) {
    Case one(number);
    const std::string_view whole[] = {one.text};
    std::vector<std::string_view> pieces = one.pieces();
    ASSERT_EQ(parsed(pieces), parsed(whole)) << "case " << number << ": " << one.text;
  }
  for (const std::string& text : seeds()) {
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < text.size(); ++i)
      bytes.push_back(std::string_view(text).substr(i, 1));
    const std::string_view whole[] = {text};
    EXPECT_EQ(parsed(bytes), parsed(whole)) << text;
  }
}

}  // namespace
}  // namespace bev
