// One call of the API: the HTTP exchange, and the requests that it has with the engine, which end
// when the client goes away. It is over, and counted, when nobody refers to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serve/call_registry.h"
#include "serve/engine_loop.h"
#include "serve/http_server.h"
#include "serve/metrics.h"

namespace bev {

class ApiCall {
 public:
  // What calls of a server share.
  struct Shared {
    CallRegistry& registry;
    Metrics& metrics;
    EngineLoop& loop;
  };

  // handler: the route, for metrics. headers: those of every answer to it.
  ApiCall(const Shared& shared, std::shared_ptr<HttpExchange> exchange, std::string id,
          std::string handler, std::vector<HttpHeader> headers);
  ~ApiCall();

  HttpExchange& exchange() { return *exchange_; }
  const HttpRequest& request() const { return exchange_->request(); }
  const std::string& id() const { return id_; }  // header X-Request-Id
  double arrival() const { return arrival_; }    // on monotonic_seconds()
  EngineLoop& loop() { return shared_.loop; }
  Metrics& metrics() { return shared_.metrics; }

  // All from any thread.
  void respond(HttpResponse response);
  void begin_stream(HttpResponse head);
  // Submits unless the client is gone.
  void submit(Request request, std::shared_ptr<EngineClient> client, std::int64_t part);
  // What was submitted ends at the next step.
  void cancel();
  // The client is gone: what it asked for is cancelled, now and later.
  void closed();

 private:
  struct Tickets;

  Shared shared_;
  std::shared_ptr<HttpExchange> exchange_;
  std::string id_, handler_;
  std::vector<HttpHeader> headers_;
  double arrival_ = 0;
  int status_ = 0;
  std::unique_ptr<Tickets> tickets_;
};

}  // namespace bev
