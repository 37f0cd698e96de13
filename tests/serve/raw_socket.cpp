#include "tests/serve/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/http_parser.h"

namespace bev::test {

namespace {
sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void await_readable(int descriptor, const char* what) {
  pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
  BEV_CHECK(::poll(&wait, 1, kPatienceSeconds * 1000) == 1, ErrorKind::kIo, "test: no ", what);
}
}  // namespace

RawSocket::RawSocket(int port, int receive_bytes, int source)
    : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_bytes > 0) {
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  }
  int on = 1;
  ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (source != 1) {
    sockaddr_in own = loopback(0);
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + static_cast<std::uint32_t>(source));
    ::setsockopt(descriptor_, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    ::bind(descriptor_, reinterpret_cast<sockaddr*>(&own), sizeof own);
  }
  sockaddr_in address = loopback(port);
  int failed = ::connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address);
  if (failed == 0) return;
  ::close(descriptor_);
  BEV_FAIL(ErrorKind::kIo, "test: cannot connect to port ", port);
}

RawSocket RawSocket::adopt(int descriptor) {
  RawSocket socket;
  socket.descriptor_ = descriptor;
  return socket;
}

RawSocket::RawSocket(RawSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), ahead_(std::move(other.ahead_)) {}
RawSocket& RawSocket::operator=(RawSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  ahead_.swap(other.ahead_);
  return *this;
}
RawSocket::~RawSocket() { close(); }

void RawSocket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void RawSocket::send(std::string_view text) {
  BEV_CHECK(try_send(text), ErrorKind::kIo, "test: the peer is gone");
}

bool RawSocket::try_send(std::string_view text) {
  while (!text.empty()) {
    ssize_t put = ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
    if (put < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

std::string RawSocket::receive(std::size_t most) {
  if (ahead_.empty()) {
    await_readable(descriptor_, "bytes");
    ahead_.resize(most);
    ssize_t got = ::recv(descriptor_, ahead_.data(), most, 0);
    ahead_.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  std::string out = ahead_.substr(0, most);
  ahead_.erase(0, out.size());
  return out;
}

bool RawSocket::readable(int milliseconds) {
  pollfd wait{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return !ahead_.empty() || ::poll(&wait, 1, milliseconds) == 1;
}

std::string RawSocket::receive_until(std::string_view mark) {
  std::string out;
  while (out.find(mark) == std::string::npos) {
    std::string piece = receive();
    BEV_CHECK(!piece.empty(), ErrorKind::kIo, "test: the peer ended after: ", out);
    out.append(piece);
  }
  std::size_t end = out.find(mark) + mark.size();
  ahead_.insert(0, out.substr(end));
  out.resize(end);
  return out;
}

std::string RawSocket::receive_bytes(std::size_t bytes) {
  std::string out;
  while (out.size() < bytes) {
    std::string piece = receive(bytes - out.size());
    BEV_CHECK(!piece.empty(), ErrorKind::kIo, "test: the peer ended after: ", out);
    out.append(piece);
  }
  return out;
}

std::string RawSocket::receive_all() {
  std::string out;
  for (std::string piece = receive(); !piece.empty(); piece = receive()) out.append(piece);
  return out;
}

HttpResponse RawSocket::answer(bool to_head) {
  ResponseParser parser(to_head);
  std::string body, inbox = std::exchange(ahead_, {});
  auto add = [&](std::string_view piece) { body.append(piece); };
  while (true) {
    std::string_view rest = inbox;
    while (std::size_t used = parser.put(rest, add)) rest.remove_prefix(used);
    inbox.erase(0, inbox.size() - rest.size());
    if (parser.done()) break;
    std::string piece = receive();
    if (piece.empty()) parser.put_end();
    BEV_CHECK(parser.fault().text.empty(), ErrorKind::kIo, "test: ", parser.fault().text);
    inbox.append(piece);
  }
  ahead_ = std::move(inbox);
  HttpResponse answer = parser.head();
  answer.body = std::move(body);
  return answer;
}

void RawSocket::end_sending() { ::shutdown(descriptor_, SHUT_WR); }

void RawSocket::reset() {
  linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

RawListener::RawListener() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  bool listens = ::bind(descriptor_, plain, size) == 0 && ::listen(descriptor_, 64) == 0 &&
                 ::getsockname(descriptor_, plain, &size) == 0;
  BEV_CHECK(listens, ErrorKind::kIo, "test: cannot listen");
  port_ = ntohs(address.sin_port);
}
RawListener::~RawListener() { ::close(descriptor_); }

RawSocket RawListener::accept() {
  await_readable(descriptor_, "connection");
  return RawSocket::adopt(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
}

}  // namespace bev::test
