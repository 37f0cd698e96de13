// HTTP/1.1 server: one I/O thread serves all connections, in plain text or TLS. It knows nothing of
// what is served: a handler receives whole requests and answers them at once, later, or piece by
// piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serve/http.h"
#include "serve/io_task.h"

namespace bev {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                           // 0: one that is free
  std::string tls_certificate, tls_key;      // PEM files; both or none
  std::int64_t max_connections = 4096;       // further ones get 503 and are closed
  std::int64_t max_header_bytes = 64 << 10;  // else 431
  std::int64_t max_body_bytes = 32 << 20;    // else 413
  // Bytes of a stream that are held for a client that reads slowly; beyond, it is dropped. A whole
  // answer may be larger.
  std::int64_t max_unsent_bytes = 8 << 20;
  // For a request, from its first byte to its last, and a second more for each 64 KiB of its body;
  // else 408.
  double read_timeout_s = 30;
  double keep_alive_s = 75;     // of an idle connection
  double write_timeout_s = 60;  // without any progress the connection is dropped
};

// A request and its answer: respond() once, or begin_stream(), write() any number of times, and
// end_stream(). From any thread, also after the end of the server; nothing happens any more once
// the connection is closed. If all references go without an answer, the client gets 500; without
// the end of a stream, its connection is reset.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual bool closed() const = 0;

  virtual void respond(HttpResponse response) = 0;
  // Sends status and headers; the body of `head` is its first piece, if it is not empty.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end_stream() = 0;
};

// All calls come from the I/O thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void on_request(std::shared_ptr<HttpExchange> exchange) = 0;
  // The client closed the connection, or its sending side, or it was dropped, before the answer was
  // complete.
  virtual void on_closed(HttpExchange& exchange) = 0;
};

class HttpServer {
 public:
  // Binds and listens: Error(kConfig) naming the address if it cannot be used, or if the
  // certificate cannot. The handler must outlive the server.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  // Closes all connections and joins the I/O thread.
  ~HttpServer();

  int port() const;
  std::string url() const;  // http://127.0.0.1:8000

  // Runs the task on the I/O thread; from any thread, in order.
  void post(std::unique_ptr<IoTask> task);
  // Soon there are no further connections; those that are idle are closed, the others after their
  // answer.
  void stop_accepting();
  std::int64_t connections() const;  // open ones

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
