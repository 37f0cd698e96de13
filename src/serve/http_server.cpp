#include "serve/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "serve/http_answer.h"
#include "serve/http_connection.h"
#include "serve/io_loop.h"
#include "serve/io_stream.h"

namespace bev {

namespace {
// Connections over the limit that may be open to be told so; further ones are closed at once.
constexpr std::int64_t kMostRefused = 64;

// Runs a member function of the server's state on the I/O thread.
template <class State>
class CallTask final : public IoTask {
 public:
  using Function = void (State::*)();
  CallTask(State& state, Function function) : state_(state), function_(function) {}
  void run() override { (state_.*function_)(); }

 private:
  State& state_;
  Function function_;
};

// Each connection is a file: the soft limit of a process is often 1,024.
void allow_open_files(std::int64_t connections) {
  constexpr rlim_t kOtherFiles = 256;
  rlim_t wanted = static_cast<rlim_t>(connections) + kOtherFiles;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::shared_ptr<const IoTls> tls_of(const HttpServerOptions& options) {
  const std::string &certificate = options.tls_certificate, &key = options.tls_key;
  BEV_CHECK(certificate.empty() == key.empty(), ErrorKind::kConfig,
            "serve: ", key.empty() ? "--tls-cert needs --tls-key" : "--tls-key needs --tls-cert",
            " too");
  return certificate.empty() ? nullptr : server_tls({.certificate = certificate, .key = key});
}
}  // namespace

struct HttpServer::State final : HttpConnectionOwner, IoListenerSink {
  State(const HttpServerOptions& own_options, HttpHandler& own_handler)
      : settings(own_options),
        request_handler(own_handler),
        tls(tls_of(own_options)),
        listener(*io, own_options.host, own_options.port, tls, *this),
        port(listener.port()),
        thread([this] { io->run(); }) {}
  ~State() override {
    io->post(std::make_unique<CallTask<State>>(*this, &State::close_all));
    thread.join();
  }

  const HttpServerOptions& options() const override { return settings; }
  HttpHandler& handler() override { return request_handler; }
  const std::shared_ptr<IoLoop>& loop() override { return io; }
  bool accepting() const override { return accepts; }

  std::string_view date() override {
    std::int64_t now = unix_microseconds() / 1'000'000;
    if (now != dated_at) date_text = http_date(now);
    dated_at = now;
    return date_text;
  }

  void on_accept(std::shared_ptr<IoStream> stream) override {
    std::int64_t open = open_connections.load();
    if (open >= settings.max_connections + kMostRefused) return stream->close();
    bool admitted = open < settings.max_connections;
    auto connection = std::make_shared<HttpConnection>(*this, std::move(stream), admitted);
    connections.emplace(connection.get(), connection);
    ++open_connections;
    connection->open();
  }
  void remove(HttpConnection& connection) override {
    open_connections -= static_cast<std::int64_t>(connections.erase(&connection));
  }

  std::vector<std::shared_ptr<HttpConnection>> present() const {
    std::vector<std::shared_ptr<HttpConnection>> list;
    for (const auto& [key, connection] : connections) list.push_back(connection);
    return list;
  }
  void stop_accepting() {
    accepts = false;
    listener.close();
    for (const auto& connection : present()) connection->close_if_idle();
  }
  void close_all() {
    accepts = false;
    listener.close();
    for (const auto& connection : present()) connection->drop();
    io->close();
  }

  HttpServerOptions settings;
  HttpHandler& request_handler;
  std::shared_ptr<IoLoop> io = std::make_shared<IoLoop>();
  std::shared_ptr<const IoTls> tls;
  IoListener listener;
  int port;
  std::atomic<std::int64_t> open_connections = 0;

  // The I/O thread's.
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;
  bool accepts = true;
  std::string date_text;
  std::int64_t dated_at = -1;

  std::thread thread;
};

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler) {
  allow_open_files(options.max_connections);
  state_ = std::make_unique<State>(options, handler);
}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return state_->port; }

std::string HttpServer::url() const {
  std::string address = address_text({state_->settings.host, state_->port});
  return concat(state_->tls == nullptr ? "http://" : "https://", address);
}

void HttpServer::post(std::unique_ptr<IoTask> task) { state_->io->post(std::move(task)); }

void HttpServer::stop_accepting() {
  state_->io->post(std::make_unique<CallTask<State>>(*state_, &State::stop_accepting));
}

std::int64_t HttpServer::connections() const { return state_->open_connections.load(); }

}  // namespace bev
