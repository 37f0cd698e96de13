#include "serve/http_client.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "serve/http_parser.h"
#include "serve/io_loop.h"
#include "serve/io_stream.h"

namespace bev {

namespace {
struct Url {
  bool tls = false;
  std::string host;
  int port = 0;
  std::string host_header;  // with the port, where it is not the usual one
  std::string path;         // "" or "/v1"
};

int read_port(std::string_view digits) {
  int port = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && port > 0 && port <= 65535 ? port : -1;
}

Url read_url(const std::string& text) {
  Url url;
  std::string_view rest = text;
  auto take = [&](std::string_view scheme) {
    bool is_it = same_ignoring_case(rest.substr(0, scheme.size()), scheme);
    if (is_it) rest.remove_prefix(scheme.size());
    return is_it;
  };
  url.tls = take("https://");
  BEV_CHECK(url.tls || take("http://"), ErrorKind::kConfig, "url ", text,
            " begins with neither http:// nor https://");

  std::string_view authority = rest.substr(0, rest.find('/'));
  url.path = rest.substr(authority.size());
  while (url.path.ends_with('/')) url.path.pop_back();

  std::size_t colon = authority.rfind(':');
  if (colon < authority.rfind(']') && authority.ends_with(']')) colon = std::string_view::npos;
  url.port = url.tls ? 443 : 80;
  url.host_header = authority;
  if (colon != std::string_view::npos) url.port = read_port(authority.substr(colon + 1));
  std::string_view host = authority.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  url.host = host;
  BEV_CHECK(!host.empty() && url.port > 0 && host.find_first_of("[]@?# ") == host.npos,
            ErrorKind::kConfig, "url ", text, " has no host, or no port from 1 to 65535");
  return url;
}

// The bytes of a request.
std::string request_text(const HttpRequest& request, const Url& url) {
  auto is_valid = [](const HttpHeader& header) {
    return is_token(header.name) && is_header_value(header.value);
  };
  BEV_CHECK(is_token(request.method) && is_header_value(request.query) &&
                std::ranges::all_of(request.headers, is_valid),
            ErrorKind::kConfig,
            "http: the method, the query or a header of a request has characters ",
            "that cannot be sent");
  std::string out = concat(request.method, " ", url.path, percent_encoded_path(request.path));
  if (!request.query.empty()) out.append("?").append(request.query);
  out.append(" HTTP/1.1\r\nHost: ").append(url.host_header).append("\r\n");
  for (const HttpHeader& header : request.headers) {
    out.append(header.name).append(": ").append(header.value).append("\r\n");
  }
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    out.append(concat("Content-Length: ", request.body.size(), "\r\n"));
  }
  return out.append("\r\n").append(request.body);
}
}  // namespace

struct HttpClient::State {
  class Connection;
  class LateError;

  State(const HttpClientOptions& own_options, HttpClientSink& own_sink)
      : options(own_options), sink(own_sink), url(read_url(own_options.url)) {
    peer.host = url.host;
    if (url.tls) peer.tls = client_tls(options.verify_tls);
  }
  ~State();

  struct Wanted {
    ExchangeId id = 0;
    std::string text;
    bool answers_head = false;  // the request is HEAD
  };
  void begin(Wanted wanted, bool may_reuse);
  void fail_late(ExchangeId id, std::string error);
  void finish(ExchangeId id, const std::string& error);
  void remove(Connection& connection);

  HttpClientOptions options;
  HttpClientSink& sink;
  Url url;
  IoPeer peer;
  IoLoop loop;
  ExchangeId last_id = 0;
  // The connection of each request; null: it has failed, which run_until() is to say.
  std::unordered_map<ExchangeId, Connection*> requests;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::vector<Connection*> idle;
};

// Delivers the error of a request from within run_until().
class HttpClient::State::LateError final : public IoTask {
 public:
  LateError(State& state, ExchangeId id, std::string error)
      : state_(state), id_(id), error_(std::move(error)) {}
  void run() override { state_.finish(id_, error_); }

 private:
  State& state_;
  ExchangeId id_;
  std::string error_;
};

// A connection, and the request that is under way on it.
class HttpClient::State::Connection final : public IoStreamSink,
                                            public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(State& state)
      : state_(state), stream_(connecting_stream(state.loop, state.peer)) {}

  void open() {
    stream_->set_deadline(monotonic_seconds() + state_.options.connect_timeout_s);
    stream_->open(*this);
  }
  void take(Wanted wanted) {
    wanted_ = std::move(wanted);
    parser_ = ResponseParser(wanted_.answers_head);
    state_.requests[wanted_.id] = this;
    if (open_) send();
  }
  void abort() { stream_->abort(); }

 private:
  void send() {
    stream_->send(wanted_.text);
    await_bytes();
  }
  void await_bytes() { stream_->set_deadline(monotonic_seconds() + state_.options.timeout_s); }

  void on_open() override {
    open_ = true;
    send();
  }
  void on_bytes(std::string_view bytes) override {
    std::shared_ptr<Connection> self = shared_from_this();
    if (wanted_.id == 0) return give_up("");  // nobody asked
    wanted_.text.clear();
    answered_ = true;
    await_bytes();
    inbox_.append(bytes);
    bytes = inbox_;
    while (std::size_t used = read_answer(bytes)) bytes.remove_prefix(used);
    if (!is_mine()) return;
    inbox_.erase(0, inbox_.size() - bytes.size());
    if (!parser_.fault().text.empty()) {
      give_up(concat("the answer cannot be read: ", parser_.fault().text));
    } else if (parser_.done()) {
      finish(parser_.keep_alive() && inbox_.empty() && stream_->unsent_bytes() == 0);
    }
  }
  // Returns how many bytes are used.
  std::size_t read_answer(std::string_view bytes) {
    if (!is_mine() || parser_.done()) return 0;
    ExchangeId id = wanted_.id;
    bool had_head = parser_.head_done();
    std::size_t used = parser_.put(bytes, [&](std::string_view piece) {
      if (is_mine()) state_.sink.on_data(id, piece);
    });
    if (had_head || !parser_.head_done()) return used;
    if (parser_.head().status / 100 == 1) {
      parser_ = ResponseParser(wanted_.answers_head);  // the answer itself follows
    } else if (is_mine()) {
      state_.sink.on_head(id, parser_.head());
    }
    return used;
  }

  void on_progress() override {}
  void on_deadline() override {
    const std::string where = address_text({state_.url.host, state_.url.port});
    if (!open_) {
      return give_up(
          concat("no connection to ", where, " within ", state_.options.connect_timeout_s, " s"));
    }
    give_up(concat("no answer from ", where, " for ", state_.options.timeout_s, " s"));
  }
  void on_eof() override {
    if (retried()) return;
    if (wanted_.id != 0 && parser_.head_done()) {
      parser_.put_end();
      if (parser_.done()) return finish(false);
    }
    give_up("the server closed the connection before the answer was complete");
  }
  void on_failed(const std::string& reason) override {
    if (!retried()) give_up(reason);
  }

  // A kept connection that the server has closed meanwhile says nothing about the request.
  bool retried() {
    if (!reused_ || answered_ || wanted_.id == 0) return false;
    std::shared_ptr<Connection> self = shared_from_this();
    stream_->close();
    state_.remove(*this);
    state_.begin(std::move(wanted_), false);
    return true;
  }
  // Is a request under way, and not cancelled by what its sink did?
  bool is_mine() const {
    auto found = state_.requests.find(wanted_.id);
    return found != state_.requests.end() && found->second == this;
  }
  void finish(bool keep) {
    std::shared_ptr<Connection> self = shared_from_this();
    ExchangeId id = std::exchange(wanted_.id, 0);
    if (keep) {
      answered_ = false;
      reused_ = true;
      stream_->set_deadline(kNever);
      state_.idle.push_back(this);
    } else {
      stream_->close();
      state_.remove(*this);
    }
    state_.finish(id, "");
  }
  void give_up(const std::string& error) {
    std::shared_ptr<Connection> self = shared_from_this();
    ExchangeId id = std::exchange(wanted_.id, 0);
    stream_->close();
    state_.remove(*this);
    if (id != 0) state_.finish(id, error);
  }

  State& state_;
  std::shared_ptr<IoStream> stream_;
  Wanted wanted_;  // id 0: none
  ResponseParser parser_{false};
  std::string inbox_;  // what is not read yet
  bool open_ = false, reused_ = false, answered_ = false;
};

HttpClient::State::~State() {
  for (auto& [key, connection] : connections) connection->abort();
}

void HttpClient::State::begin(Wanted wanted, bool may_reuse) {
  if (may_reuse && !idle.empty()) {
    Connection* connection = idle.back();
    idle.pop_back();
    return connection->take(std::move(wanted));
  }
  ExchangeId id = wanted.id;
  try {
    if (peer.addresses.empty()) peer.addresses = resolve_host(url.host, url.port);
  } catch (const Error& error) {
    return fail_late(id, error.what());
  }
  auto connection = std::make_shared<Connection>(*this);
  connections.emplace(connection.get(), connection);
  connection->take(std::move(wanted));
  connection->open();
}

void HttpClient::State::fail_late(ExchangeId id, std::string error) {
  requests[id] = nullptr;
  loop.post(std::make_unique<LateError>(*this, id, std::move(error)));
}

void HttpClient::State::finish(ExchangeId id, const std::string& error) {
  if (requests.erase(id) != 0) sink.on_done(id, error);
}

void HttpClient::State::remove(Connection& connection) {
  std::erase(idle, &connection);
  connections.erase(&connection);
}

HttpClient::HttpClient(const HttpClientOptions& options, HttpClientSink& sink)
    : state_(std::make_unique<State>(options, sink)) {}
HttpClient::~HttpClient() = default;

ExchangeId HttpClient::start(HttpRequest request) {
  std::string text = request_text(request, state_->url);
  ExchangeId id = ++state_->last_id;
  state_->begin({.id = id, .text = std::move(text), .answers_head = request.method == "HEAD"},
                true);
  return id;
}

void HttpClient::cancel(ExchangeId id) {
  auto found = state_->requests.find(id);
  if (found == state_->requests.end() || found->second == nullptr) return;
  State::Connection& connection = *found->second;
  state_->fail_late(id, "cancelled");
  connection.abort();
  state_->remove(connection);
}

std::int64_t HttpClient::in_flight() const {
  return static_cast<std::int64_t>(state_->requests.size());
}

void HttpClient::run_until(double monotonic) {
  state_->loop.run_until(monotonic, [this] { return state_->requests.empty(); });
}

namespace {
class WholeAnswer final : public HttpClientSink {
 public:
  void on_head(ExchangeId, const HttpResponse& head) override { answer = head; }
  void on_data(ExchangeId, std::string_view bytes) override { answer.body.append(bytes); }
  void on_done(ExchangeId, const std::string& reason) override { error = reason; }

  HttpResponse answer;
  std::string error;
};
}  // namespace

HttpResponse fetch(const HttpClientOptions& options, HttpRequest request) {
  WholeAnswer sink;
  std::string what = concat(request.method, " ", options.url, request.path);
  HttpClient client(options, sink);
  client.start(std::move(request));
  while (client.in_flight() > 0) client.run_until(kNever);
  BEV_CHECK(sink.error.empty(), ErrorKind::kIo, what, ": ", sink.error);
  return std::move(sink.answer);
}

}  // namespace bev
