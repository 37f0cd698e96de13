// Incremental parsers of HTTP/1.1 messages: each reads one message from bytes that come in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "serve/http.h"

namespace bev {

// Why a message is refused.
struct HttpFault {
  int status = 0;  // of the answer that says so; 0: no fault
  std::string text;
};

struct HttpLimits {
  std::int64_t header_bytes = 0, body_bytes = 0;
};

class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits);
  RequestParser(RequestParser&& other);
  RequestParser& operator=(RequestParser&& other);
  ~RequestParser();

  // Reads from the front of `bytes`, and returns how many of them are used; the others must come
  // again, with more behind them. To be called until it uses nothing, or done() or fault() says to
  // stop.
  std::size_t put(std::string_view bytes);
  bool head_done() const;
  bool done() const;
  const HttpFault& fault() const;

  // Once the head is done.
  bool http_1_1() const;
  bool keep_alive() const;
  bool expects_continue() const;
  std::int64_t body_bytes() const;  // so far
  HttpRequest take_request();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ResponseParser {
 public:
  // No body follows the answer to a HEAD request, whatever its head says.
  explicit ResponseParser(bool answers_head);
  ResponseParser(ResponseParser&& other);
  ResponseParser& operator=(ResponseParser&& other);
  ~ResponseParser();

  // As that of a request; each(piece) is called for the bytes of the body.
  std::size_t put(std::string_view bytes, FunctionRef<void(std::string_view piece)> each);
  // The connection has ended: the answer is then done, or faulty because some of it is missing.
  void put_end();
  bool head_done() const;
  bool done() const;
  const HttpFault& fault() const;

  // Once the head is done.
  const HttpResponse& head() const;  // without a body
  bool keep_alive() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
