// Byte streams over TCP, in plain text or TLS, on the thread of an IoLoop.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class IoLoop;
class IoTls;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// What happens to a stream. Any of these calls may close it.
class IoStreamSink {
 public:
  virtual ~IoStreamSink() = default;
  virtual void on_open() = 0;  // connected, and TLS agreed
  virtual void on_bytes(std::string_view bytes) = 0;
  virtual void on_progress() = 0;  // bytes were sent
  virtual void on_deadline() = 0;
  virtual void on_eof() = 0;  // the peer sends no more
  // The stream is of no use any more: "connection refused by 127.0.0.1:8000".
  virtual void on_failed(const std::string& reason) = 0;
};

class IoStream {
 public:
  virtual ~IoStream() = default;

  // Connects, or agrees on TLS, then reads. Until close(), `sink` hears what happens.
  virtual void open(IoStreamSink& sink) = 0;
  // Bytes go out at the end of the loop's turn, together with others.
  virtual void send(std::string bytes) = 0;
  virtual std::int64_t unsent_bytes() const = 0;
  // Sends nothing after what was given. What is read from then on means nothing.
  virtual void end_sending() = 0;
  // Pauses and goes on with reading; while it pauses, the end of the peer is not seen.
  virtual void read(bool wanted) = 0;
  // When on_deadline() is to come, in monotonic_seconds(); kNever: not at all.
  virtual void set_deadline(double monotonic) = 0;
  virtual void close() = 0;
  // The same, so that the peer sees an error: what it got is incomplete.
  virtual void abort() = 0;

  // For the loop.
  virtual void flush() = 0;
};

// Certificates and rules of TLS, 1.2 and above.
struct TlsFiles {
  std::string certificate, key;  // PEM
};
// Error(kConfig) naming --tls-cert or --tls-key, and the file.
std::shared_ptr<const IoTls> server_tls(const TlsFiles& files);
std::shared_ptr<const IoTls> client_tls(bool verify);

struct IoAddress {
  std::string host;  // a number, but in address_text()
  int port = 0;
};
std::string address_text(const IoAddress& address);  // "127.0.0.1:8000", "[::1]:8000"
// Error(kIo) if the name is not known.
std::vector<IoAddress> resolve_host(const std::string& host, int port);

struct IoPeer {
  std::vector<IoAddress> addresses;  // tried in order
  std::string host;                  // that the certificate must name
  std::shared_ptr<const IoTls> tls;  // null: plain text
};
std::shared_ptr<IoStream> connecting_stream(IoLoop& loop, const IoPeer& peer);
// A socket that has been accepted; the stream owns it.
std::shared_ptr<IoStream> accepted_stream(IoLoop& loop, int socket,
                                          std::shared_ptr<const IoTls> tls);

}  // namespace bev
