// TCP sockets: RAII descriptors, listen, connect with retry, complete reads and writes.
#pragma once

#include <cstddef>
#include <string>

namespace bev {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = other.release();
    }
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int descriptor() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }
  int release();
  void reset();

 private:
  int descriptor_ = -1;
};

// Deadlines are in monotonic_seconds().

// Listens on all addresses of this machine; port 0: any free port.
Socket listen_on(int port);
int port_of(const Socket& listener);
// Next connection and the numeric address of its peer; invalid if none came before the deadline.
Socket accept_from(const Socket& listener, double deadline, std::string& address);
// Retries while nobody listens there; throws Error(kComm) at the deadline or if the name is
// unknown.
Socket connect_to(const std::string& address, int port, double deadline);
// Transfer all bytes; false if the connection ended or the deadline passed.
bool write_all(const Socket& socket, const void* data, std::size_t size, double deadline);
bool read_all(const Socket& socket, void* data, std::size_t size, double deadline);
// Sets TCP_NODELAY and keep-alive, so that small messages are sent at once and a vanished machine
// is noticed.
void make_message_socket(const Socket& socket);

}  // namespace bev
