#include "serve/io_stream.h"

#define BOOST_ERROR_CODE_HEADER_ONLY
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "serve/io_loop.h"

namespace bev {

namespace {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
}  // namespace

class IoTls {
 public:
  explicit IoTls(asio::ssl::context::method method) : context(method) {
    context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                        asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                        asio::ssl::context::no_tlsv1_1);
    // An idle connection holds no buffers of 16 KiB.
    SSL_CTX_set_mode(context.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  }

  mutable asio::ssl::context context;  // a stream takes it as changeable, and changes nothing
  bool verify = false;
};

namespace {
// What plain text and TLS have in common; the operations that differ are virtual.
class SocketStream : public IoStream, public std::enable_shared_from_this<SocketStream> {
 public:
  explicit SocketStream(IoLoop& loop) : loop_(loop), timer_(loop.context()) {}

  // To be called before open(); without it the socket is connected.
  void connect_to(std::vector<IoAddress> addresses) { addresses_ = std::move(addresses); }

  void open(IoStreamSink& sink) override {
    sink_ = &sink;
    if (addresses_.empty()) return connected();
    connect_next();
  }
  void send(std::string bytes) override {
    if (!open_) return;
    if (outbox_.empty()) {
      outbox_ = std::move(bytes);
    } else {
      outbox_.append(bytes);
    }
    flush_soon();
  }
  std::int64_t unsent_bytes() const override {
    return static_cast<std::int64_t>(outbox_.size() + sending_.size() - sent_);
  }
  void end_sending() override {
    ends_ = true;
    flush_soon();
  }
  void read(bool wanted) override {
    wants_read_ = wanted;
    read_next();
  }
  void set_deadline(double monotonic) override {
    deadline_ = monotonic;
    if (deadline_ < armed_) arm();
  }
  void close() override {
    error_code ignored;
    open_ = false;
    sink_ = nullptr;
    deadline_ = kNever;
    timer_.cancel();
    socket().close(ignored);
  }
  void abort() override {
    error_code ignored;
    socket().set_option(asio::socket_base::linger(true, 0), ignored);
    close();
  }
  void flush() override {
    flushes_ = false;
    write_next();
  }

 protected:
  using Buffer = std::array<char, 8192>;

  virtual tcp::socket& socket() = 0;
  // Each begins an operation, and calls the function of the same name with its outcome.
  virtual void begin_handshake() = 0;
  virtual void begin_read(Buffer& buffer) = 0;
  virtual void begin_write(std::string_view bytes) = 0;
  virtual void begin_end() = 0;

  void handshake_done(const error_code& error, const std::string& detail) {
    if (sink_ == nullptr) return;
    if (error) {
      fail(concat("TLS with ", peer_text(), " failed: ", error.message(), detail));
    } else {
      open_ = true;
      sink_->on_open();
      read_next();
    }
    loop_.end_turn();
  }
  void read_done(const error_code& error, std::size_t bytes) {
    reading_ = false;
    if (sink_ == nullptr) return;
    if (!error) {
      sink_->on_bytes({buffer_.data(), bytes});
      read_next();
    } else if (error == asio::error::eof) {
      eof_ = true;
      sink_->on_eof();
    } else {
      fail(concat("connection lost to ", peer_text(), ": ", error.message()));
    }
    loop_.end_turn();
  }
  void write_done(const error_code& error, std::size_t bytes) {
    writing_ = false;
    if (sink_ == nullptr) return;
    if (error) {
      fail(concat("connection lost to ", peer_text(), ": ", error.message()));
    } else {
      sent_ += bytes;
      if (sent_ == sending_.size()) forget_sent();
      sink_->on_progress();
      write_next();
    }
    loop_.end_turn();
  }
  void end_done() {
    error_code ignored;
    if (sink_ != nullptr) socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

 private:
  void connect_next() {
    const IoAddress& address = addresses_[tried_];
    error_code ignored;
    socket().close(ignored);
    tcp::endpoint endpoint(asio::ip::make_address(address.host, ignored),
                           static_cast<std::uint16_t>(address.port));
    socket().async_connect(
        endpoint, [self = shared_from_this()](error_code error) { self->connect_done(error); });
  }
  void connect_done(const error_code& error) {
    if (sink_ == nullptr) return;
    if (!error) return connected();
    if (tried_ + 1 < addresses_.size()) {
      ++tried_;
      return connect_next();
    }
    fail(error == asio::error::connection_refused
             ? concat("connection refused by ", peer_text())
             : concat("cannot connect to ", peer_text(), ": ", error.message()));
    loop_.end_turn();
  }
  void connected() {
    error_code ignored;
    socket().set_option(tcp::no_delay(true), ignored);
    begin_handshake();
  }

  void read_next() {
    if (reading_ || !wants_read_ || eof_ || !open_) return;
    reading_ = true;
    begin_read(buffer_);
  }

  void flush_soon() {
    if (flushes_ || writing_ || !open_) return;
    flushes_ = true;
    loop_.flush_at_end_of_turn(shared_from_this());
  }
  void write_next() {
    if (writing_ || !open_) return;
    if (sending_.empty()) sending_.swap(outbox_);
    if (!sending_.empty()) {
      writing_ = true;
      begin_write(std::string_view(sending_).substr(sent_));
    } else if (ends_ && !ended_) {
      ended_ = true;
      begin_end();
    }
  }
  // Keeps the memory for the next bytes, if it is little.
  void forget_sent() {
    constexpr std::size_t kKept = 4096;
    if (sending_.capacity() > kKept) sending_ = std::string();
    sending_.clear();
    sent_ = 0;
  }

  void arm() {
    armed_ = deadline_;
    auto wait = std::chrono::duration<double>(std::max(0.0, deadline_ - monotonic_seconds()));
    timer_.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(wait));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->ring();
    });
  }
  // The deadline may have moved since the timer was set.
  void ring() {
    armed_ = kNever;
    if (sink_ == nullptr || deadline_ == kNever) return;
    if (monotonic_seconds() < deadline_) return arm();
    deadline_ = kNever;
    sink_->on_deadline();
    loop_.end_turn();
  }

  std::string peer_text() {
    if (!addresses_.empty()) return address_text(addresses_[tried_]);
    error_code error;
    tcp::endpoint peer = socket().remote_endpoint(error);
    return error ? "the client" : address_text({peer.address().to_string(), peer.port()});
  }
  void fail(const std::string& reason) {
    IoStreamSink* sink = sink_;
    close();
    sink->on_failed(reason);
  }

  IoLoop& loop_;
  IoStreamSink* sink_ = nullptr;
  std::vector<IoAddress> addresses_;
  std::size_t tried_ = 0;
  bool open_ = false, wants_read_ = true, reading_ = false, eof_ = false;
  Buffer buffer_;

  std::string outbox_, sending_;  // collected while `sending_` is on its way
  std::size_t sent_ = 0;          // bytes of `sending_`
  bool flushes_ = false, writing_ = false, ends_ = false, ended_ = false;

  asio::steady_timer timer_;
  double deadline_ = kNever, armed_ = kNever;  // wanted, and that of the timer
};

class PlainStream final : public SocketStream {
 public:
  PlainStream(IoLoop& loop, tcp::socket socket) : SocketStream(loop), socket_(std::move(socket)) {}

 private:
  std::shared_ptr<PlainStream> self() {
    return std::static_pointer_cast<PlainStream>(shared_from_this());
  }
  tcp::socket& socket() override { return socket_; }
  void begin_handshake() override { handshake_done({}, ""); }
  void begin_read(Buffer& buffer) override {
    socket_.async_read_some(
        asio::buffer(buffer),
        [self = self()](error_code error, std::size_t bytes) { self->read_done(error, bytes); });
  }
  void begin_write(std::string_view bytes) override {
    socket_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()),
        [self = self()](error_code error, std::size_t count) { self->write_done(error, count); });
  }
  void begin_end() override { end_done(); }

  tcp::socket socket_;
};

class TlsStream final : public SocketStream {
 public:
  TlsStream(IoLoop& loop, tcp::socket socket, std::shared_ptr<const IoTls> tls,
            const std::string& server_name)
      : SocketStream(loop),
        tls_(std::move(tls)),
        stream_(std::move(socket), tls_->context),
        side_(server_name.empty() ? asio::ssl::stream_base::server
                                  : asio::ssl::stream_base::client) {
    if (server_name.empty()) return;
    error_code no_number;
    asio::ip::make_address(server_name, no_number);
    if (no_number) SSL_set_tlsext_host_name(stream_.native_handle(), server_name.c_str());
    if (!tls_->verify) return;
    stream_.set_verify_mode(asio::ssl::verify_peer);
    stream_.set_verify_callback(asio::ssl::host_name_verification(server_name));
  }

 private:
  std::shared_ptr<TlsStream> self() {
    return std::static_pointer_cast<TlsStream>(shared_from_this());
  }
  tcp::socket& socket() override { return stream_.next_layer(); }
  void begin_handshake() override {
    stream_.async_handshake(side_, [self = self()](error_code error) {
      long verdict = SSL_get_verify_result(self->stream_.native_handle());
      self->handshake_done(error, verdict == X509_V_OK
                                      ? ""
                                      : concat(" (", X509_verify_cert_error_string(verdict), ")"));
    });
  }
  void begin_read(Buffer& buffer) override {
    stream_.async_read_some(
        asio::buffer(buffer), [self = self(), &buffer](error_code error, std::size_t bytes) {
          bool is_over = self->shutting_down_ && error && error != asio::error::eof;
          return is_over ? self->begin_raw_read(buffer) : self->read_done(error, bytes);
        });
  }
  // TLS is over, and refuses what the client was still sending; it must be read all the same.
  void begin_raw_read(Buffer& buffer) {
    socket().async_read_some(
        asio::buffer(buffer),
        [self = self()](error_code error, std::size_t bytes) { self->read_done(error, bytes); });
  }
  void begin_write(std::string_view bytes) override {
    stream_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()),
        [self = self()](error_code error, std::size_t count) { self->write_done(error, count); });
  }
  // It is done when the peer has agreed, or has sent what it may not.
  void begin_end() override {
    shutting_down_ = true;
    stream_.async_shutdown([self = self()](error_code) { self->end_done(); });
  }

  std::shared_ptr<const IoTls> tls_;
  asio::ssl::stream<tcp::socket> stream_;
  asio::ssl::stream_base::handshake_type side_;
  bool shutting_down_ = false;
};

std::shared_ptr<SocketStream> make_stream(IoLoop& loop, tcp::socket socket,
                                          std::shared_ptr<const IoTls> tls,
                                          const std::string& server_name) {
  if (tls == nullptr) return std::make_shared<PlainStream>(loop, std::move(socket));
  return std::make_shared<TlsStream>(loop, std::move(socket), std::move(tls), server_name);
}

// OpenSSL has no words for what the system refuses.
void check_readable(const char* flag, const std::string& file) {
  bool readable = ::access(file.c_str(), R_OK) == 0;
  BEV_CHECK(readable, ErrorKind::kConfig, "serve: ", flag, " ", file,
            " cannot be read: ", std::generic_category().message(errno));
}
}  // namespace

std::shared_ptr<const IoTls> server_tls(const TlsFiles& files) {
  auto tls = std::make_shared<IoTls>(asio::ssl::context::tls_server);
  check_readable("--tls-cert", files.certificate);
  check_readable("--tls-key", files.key);
  error_code error;
  tls->context.use_certificate_chain_file(files.certificate, error);
  BEV_CHECK(!error, ErrorKind::kConfig, "serve: --tls-cert ", files.certificate,
            " cannot be used: ", error.message(), "; give a certificate in PEM form");
  tls->context.use_private_key_file(files.key, asio::ssl::context::pem, error);
  BEV_CHECK(!error, ErrorKind::kConfig, "serve: --tls-key ", files.key,
            " cannot be used: ", error.message(),
            "; give the key of the certificate in PEM form, without a password");
  return tls;
}

std::shared_ptr<const IoTls> client_tls(bool verify) {
  auto tls = std::make_shared<IoTls>(asio::ssl::context::tls_client);
  error_code ignored;
  tls->context.set_default_verify_paths(ignored);
  tls->verify = verify;
  return tls;
}

std::string address_text(const IoAddress& address) {
  bool bracketed = address.host.find(':') != std::string::npos;
  return concat(bracketed ? "[" : "", address.host, bracketed ? "]:" : ":", address.port);
}

std::vector<IoAddress> resolve_host(const std::string& host, int port) {
  error_code error;
  asio::ip::address number = asio::ip::make_address(host, error);
  if (!error) return {{number.to_string(), port}};
  asio::io_context context;
  tcp::resolver resolver(context);
  std::vector<IoAddress> found;
  for (const auto& entry : resolver.resolve(host, "", error)) {
    found.push_back({entry.endpoint().address().to_string(), port});
  }
  BEV_CHECK(!error && !found.empty(), ErrorKind::kIo, "the host ", host,
            " is not known: ", error.message());
  return found;
}

std::shared_ptr<IoStream> connecting_stream(IoLoop& loop, const IoPeer& peer) {
  auto stream = make_stream(loop, tcp::socket(loop.context()), peer.tls, peer.host);
  stream->connect_to(peer.addresses);
  return stream;
}

std::shared_ptr<IoStream> accepted_stream(IoLoop& loop, int socket,
                                          std::shared_ptr<const IoTls> tls) {
  error_code error;
  tcp::socket accepted(loop.context());
  accepted.assign(tcp::v4(), socket, error);  // the family matters to sockets yet to be opened
  if (error) ::close(socket);
  return make_stream(loop, std::move(accepted), std::move(tls), "");
}

}  // namespace bev
