#include "comm/process/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace bev {

namespace {

bool wait_for(const Socket& socket, short events, double deadline) {
  while (true) {
    double left = deadline - monotonic_seconds();
    if (left <= 0) return false;
    pollfd item{socket.descriptor(), events, 0};
    int ready = ::poll(&item, 1, static_cast<int>(std::min(left, 1.0) * 1000) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void set_option(const Socket& socket, int level, int name, int value) {
  ::setsockopt(socket.descriptor(), level, name, &value, sizeof value);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  BEV_CHECK(error == 0, ErrorKind::kComm, "cannot find ", address, ": ", ::gai_strerror(error));
  return Addresses(list);
}

}  // namespace

int Socket::release() {
  int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor;
}

void Socket::reset() {
  if (valid()) ::close(release());
}

Socket listen_on(int port) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool wide = socket.valid();
  if (!wide) socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  int bound = -1;
  if (wide) {
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), sizeof any);
  } else {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), sizeof any);
  }
  constexpr int kQueue = 1024;
  BEV_CHECK(bound == 0 && ::listen(socket.descriptor(), kQueue) == 0, ErrorKind::kComm,
            "cannot listen on port ", port, ": ", std::strerror(errno));
  return socket;
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &size);
  // The port is at the same offset for IPv4 and IPv6.
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Socket accept_from(const Socket& listener, double deadline, std::string& address) {
  if (!wait_for(listener, POLLIN, deadline)) return {};
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  Socket socket(
      ::accept4(listener.descriptor(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
  char text[NI_MAXHOST] = "";
  ::getnameinfo(reinterpret_cast<sockaddr*>(&from), size, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  address = text;
  constexpr std::string_view kMapped = "::ffff:";
  if (address.starts_with(kMapped)) address.erase(0, kMapped.size());
  return socket;
}

Socket connect_to(const std::string& address, int port, double deadline) {
  while (true) {
    Addresses list = resolve(address, port);
    int error = 0;
    for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
      Socket socket(::socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol));
      if (::connect(socket.descriptor(), to->ai_addr, to->ai_addrlen) == 0) return socket;
      error = errno;
    }
    BEV_CHECK(monotonic_seconds() < deadline, ErrorKind::kComm, "cannot connect to ", address,
              " port ", port, ": ", std::strerror(error));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool write_all(const Socket& socket, const void* data, std::size_t size, double deadline) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    if (!wait_for(socket, POLLOUT, deadline)) return false;
    ssize_t put = ::send(socket.descriptor(), at, size, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    size -= static_cast<std::size_t>(put);
  }
  return true;
}

bool read_all(const Socket& socket, void* data, std::size_t size, double deadline) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    if (!wait_for(socket, POLLIN, deadline)) return false;
    ssize_t got = ::recv(socket.descriptor(), at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

void make_message_socket(const Socket& socket) {
  constexpr int kIdleSeconds = 20, kBetweenSeconds = 5, kProbes = 4;
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kBetweenSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  int flags = ::fcntl(socket.descriptor(), F_GETFL);
  ::fcntl(socket.descriptor(), F_SETFL, flags | O_NONBLOCK);
}

}  // namespace bev
