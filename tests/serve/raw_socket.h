// TCP sockets for tests that write the bytes of HTTP themselves. Every wait ends after
// kPatienceSeconds with a failure of the test.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace bev::test {

inline constexpr int kPatienceSeconds = 20;

class RawSocket {
 public:
  // Connects to 127.0.0.1; receive_bytes: of the kernel's buffer, 0 for the usual size. Tests of
  // many connections come from several addresses, 127.0.0.`source`, so that ports do not run out.
  explicit RawSocket(int port, int receive_bytes = 0, int source = 1);
  // Takes over a connected socket.
  static RawSocket adopt(int descriptor);
  RawSocket(RawSocket&& other) noexcept;
  RawSocket& operator=(RawSocket&& other) noexcept;
  ~RawSocket();

  void send(std::string_view text);
  bool try_send(std::string_view text);  // false if the peer is gone
  // The next bytes, at most this many; "" at the end. A reset counts as one.
  std::string receive(std::size_t most = 65536);
  bool readable(int milliseconds);
  std::string receive_until(std::string_view mark);  // what comes up to this text, and no more
  std::string receive_bytes(std::size_t bytes);
  std::string receive_all();  // up to the end
  // The next answer, read as HTTP; the body of one to HEAD is not waited for.
  HttpResponse answer(bool to_head = false);

  void end_sending();
  void reset();  // closes with RST
  void close();

 private:
  RawSocket() = default;

  int descriptor_ = -1;
  std::string ahead_;  // received, and not yet asked for
};

// A listening socket on a free port of 127.0.0.1, whose connections the test serves.
class RawListener {
 public:
  RawListener();
  ~RawListener();
  int port() const { return port_; }
  RawSocket accept();

 private:
  int descriptor_ = -1, port_ = 0;
};

}  // namespace bev::test
