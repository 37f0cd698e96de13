// The event loop of one thread: tasks from other threads, streams (io_stream.h) and a listener.
// Over Boost.Asio, which stays within the sources. As one thread serves all streams, what they
// share needs no locks and each of them is a strand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/function_ref.h"
#include "serve/io_task.h"

namespace boost::asio {
class io_context;
}

namespace bev {

class IoStream;
class IoTls;

class IoLoop {
 public:
  IoLoop();
  ~IoLoop();

  // From any thread; tasks run in order. Those that come before the loop wakes cost one wake-up.
  // What they throw is logged. After close() they are dropped.
  void post(std::unique_ptr<IoTask> task);
  // Is this the thread that serves the loop?
  bool here() const;

  // Serves until close(), and then until nothing is open.
  void run();
  // Serves until this time of monotonic_seconds(), or until done() after an event; if that
  // time is past, what is ready.
  void run_until(double monotonic, FunctionRef<bool()> done);
  // On the thread of the loop.
  void close();

  // For streams: what is written in one turn of the loop is sent at its end.
  boost::asio::io_context& context();
  void flush_at_end_of_turn(std::shared_ptr<IoStream> stream);
  void end_turn();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class IoListenerSink {
 public:
  virtual ~IoListenerSink() = default;
  virtual void on_accept(std::shared_ptr<IoStream> stream) = 0;
};

// Accepts connections until it is closed or destroyed, on the thread of the loop.
class IoListener {
 public:
  // Error(kConfig) if the address cannot be used. TLS may be null.
  IoListener(IoLoop& loop, const std::string& host, int port, std::shared_ptr<const IoTls> tls,
             IoListenerSink& sink);
  ~IoListener();

  int port() const;
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bev
