// One connection of the server: reads requests, hands them to the handler one at a time, and sends
// their answers. All of it happens on the I/O thread.
//
//   kOpening -> kIdle <-> kReading -> kAnswering -> kStreaming -> kIdle or kEnding -> kClosed
//
// While a request is answered the connection still reads: so the end of the client is seen at once,
// also where nothing is being written. A client that closes only its sending side counts as gone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http_parser.h"
#include "serve/http_server.h"
#include "serve/io_loop.h"
#include "serve/io_stream.h"

namespace bev {

class HttpConnection;

// What connections need of their server.
class HttpConnectionOwner {
 public:
  virtual ~HttpConnectionOwner() = default;
  virtual const HttpServerOptions& options() const = 0;
  virtual HttpHandler& handler() = 0;
  virtual const std::shared_ptr<IoLoop>& loop() = 0;
  virtual std::string_view date() = 0;  // of now, for headers
  virtual bool accepting() const = 0;   // false: each answer is its connection's last
  virtual void remove(HttpConnection& connection) = 0;
};

class HttpConnection final : public IoStreamSink,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  // One that is not admitted gets 503.
  HttpConnection(HttpConnectionOwner& owner, std::shared_ptr<IoStream> stream, bool admitted);

  void open();
  // Closes at once; the handler hears of a request that is not answered.
  void drop();
  void close_if_idle();

  // The answer to request number `serial`; nothing happens if that is not the one being answered.
  bool answers(std::int64_t serial) const;
  void respond(HttpResponse response);
  void begin_stream(HttpResponse head);
  void write(std::string_view piece);
  void end_stream();
  // Nobody will answer.
  void abandon();

 private:
  enum class Phase : std::uint8_t {
    kOpening,    // TLS is being agreed on
    kIdle,       // no byte of a request is here
    kReading,    // some are
    kAnswering,  // the handler has the request
    kStreaming,  // and has begun its answer
    kEnding,     // nothing is answered any more: the rest is sent, then the client's end awaited
    kClosed,
  };
  class Exchange;

  void on_open() override;
  void on_bytes(std::string_view bytes) override;
  void on_progress() override;
  void on_deadline() override;
  void on_eof() override;
  void on_failed(const std::string& reason) override;

  bool busy() const { return phase_ == Phase::kAnswering || phase_ == Phase::kStreaming; }
  void enter(Phase phase);
  void advance();
  bool read_request();
  void hand_over();
  void send(std::string bytes);
  void send_answer(HttpResponse& response, bool bodiless);
  void finish_answer();
  void refuse(HttpResponse response);
  void end();
  void set_deadline();
  double phase_deadline() const;

  HttpConnectionOwner& owner_;
  std::shared_ptr<IoStream> stream_;
  bool admitted_;
  Phase phase_ = Phase::kOpening;
  double since_;         // when the phase began
  double progress_ = 0;  // when bytes were last sent, or began to wait
  std::string inbox_;    // what is not read yet
  RequestParser parser_;
  bool advancing_ = false, ended_by_client_ = false;

  // The request being answered.
  std::int64_t serial_ = 0;
  std::weak_ptr<Exchange> exchange_;
  bool http_1_1_ = true, keep_alive_ = true, is_head_ = false, drops_body_ = false;
};

}  // namespace bev
