// TCP sockets: owned descriptors, listening, connecting with patience, whole reads and writes.
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

// Deadlines are of monotonic_seconds().

// On all addresses of this machine; port 0: any that is free.
Socket listen_on(int port);
int port_of(const Socket& listener);
// The next connection and the numeric address of its other end; invalid when none came in time.
Socket accept_from(const Socket& listener, double deadline, std::string& address);
// Tries again while nobody listens there; Error(kComm) at the deadline or when the name is unknown.
Socket connect_to(const std::string& address, int port, double deadline);
// All bytes; false when the connection ended or the deadline passed.
bool write_all(const Socket& socket, const void* data, std::size_t size, double deadline);
bool read_all(const Socket& socket, void* data, std::size_t size, double deadline);
// For messages: small ones go at once, and a machine that vanished is noticed.
void make_message_socket(const Socket& socket);

}  // namespace bev
