// HTTP/1.1 client of the load generator and the tests: many requests at a time on one thread, over
// connections that are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace bev {

struct HttpClientOptions {
  std::string url;  // http://HOST[:PORT][/PATH] or https://; the path precedes those asked for
  bool verify_tls = true;
  double connect_timeout_s = 5;
  double timeout_s = 600;  // of a request without a byte of an answer
};

using ExchangeId = std::int64_t;

// All calls come from within HttpClient::run_until() and are about one request each.
class HttpClientSink {
 public:
  virtual ~HttpClientSink() = default;
  virtual void on_head(ExchangeId, const HttpResponse&) {}  // no body yet
  virtual void on_data(ExchangeId, std::string_view) {}     // the next bytes of the body
  // The answer is complete, or `error` says why not ("" if it is).
  virtual void on_done(ExchangeId, const std::string& error) = 0;
};

class HttpClient {
 public:
  // Error(kConfig) if the URL cannot be read.
  HttpClient(const HttpClientOptions& options, HttpClientSink& sink);
  ~HttpClient();

  // Starts a request; Host and Content-Length are added, and the path is percent-encoded. Waits for
  // the name of the host to be resolved, the first time.
  ExchangeId start(HttpRequest request);
  // Closes the connection of the request; on_done comes with an error.
  void cancel(ExchangeId id);
  std::int64_t in_flight() const;
  // Serves events until this time of monotonic_seconds(), or until nothing is in flight.
  void run_until(double monotonic);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One request and its whole answer; Error(kIo) if there is none.
HttpResponse fetch(const HttpClientOptions& options, HttpRequest request);

}  // namespace bev
