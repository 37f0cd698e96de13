#include "serve/http_connection.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/scoped_value.h"
#include "base/text.h"
#include "serve/http_answer.h"

namespace bev {

namespace {
// A request may take longer than read_timeout_s if its body comes at this rate.
constexpr double kLeastBytesPerSecond = 64 << 10;
// Requests that a client sends ahead are read up to this many bytes, and answered while fewer bytes
// of earlier answers are unsent.
constexpr std::size_t kMostAheadBytes = 64 << 10;
constexpr std::int64_t kMostUnsentAheadBytes = 64 << 10;
// After the last answer the client has this long to end: closing while its bytes arrive would reset
// the connection, and the answer would be lost.
constexpr double kLingerSeconds = 2;

HttpLimits limits_of(const HttpServerOptions& options) {
  return {.header_bytes = options.max_header_bytes, .body_bytes = options.max_body_bytes};
}
}  // namespace

// The handler's side of a request. It may outlive its connection, and the server.
class HttpConnection::Exchange final : public HttpExchange,
                                       public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(HttpConnection& connection, HttpRequest request)
      : loop_(connection.owner_.loop()),
        connection_(connection.weak_from_this()),
        serial_(connection.serial_),
        request_(std::move(request)) {}
  ~Exchange() override {
    if (state_.load() != State::kOpen) return;
    auto abandon = [](HttpConnection& connection) { connection.abandon(); };
    if (loop_->here()) {
      act(connection_, serial_, abandon);
    } else {
      loop_->post(
          std::make_unique<Task<decltype(abandon)>>(connection_, serial_, nullptr, abandon));
    }
  }

  const HttpRequest& request() const override { return request_; }
  bool closed() const override { return state_.load() == State::kClosed; }

  void respond(HttpResponse response) override {
    perform([response = std::move(response)](HttpConnection& connection) mutable {
      connection.respond(std::move(response));
    });
  }
  void begin_stream(HttpResponse head) override {
    perform([head = std::move(head)](HttpConnection& connection) mutable {
      connection.begin_stream(std::move(head));
    });
  }
  void write(std::string piece) override {
    perform([piece = std::move(piece)](HttpConnection& connection) { connection.write(piece); });
  }
  void end_stream() override {
    perform([](HttpConnection& connection) { connection.end_stream(); });
  }

  // On the I/O thread.
  void mark_answered() { state_.store(State::kAnswered); }
  void mark_closed() { state_.store(State::kClosed); }

 private:
  enum class State : std::uint8_t { kOpen, kAnswered, kClosed };

  template <class Action>
  static void act(const std::weak_ptr<HttpConnection>& weak, std::int64_t serial, Action& action) {
    std::shared_ptr<HttpConnection> connection = weak.lock();
    if (connection != nullptr && connection->answers(serial)) action(*connection);
  }

  template <class Action>
  struct Task final : IoTask {
    Task(std::weak_ptr<HttpConnection> own_connection, std::int64_t own_serial,
         std::shared_ptr<Exchange> own_exchange, Action own_action)
        : connection(std::move(own_connection)),
          serial(own_serial),
          exchange(std::move(own_exchange)),
          action(std::move(own_action)) {}
    void run() override { act(connection, serial, action); }

    std::weak_ptr<HttpConnection> connection;
    std::int64_t serial;
    std::shared_ptr<Exchange> exchange;  // not abandoned while this waits
    Action action;
  };

  template <class Action>
  void perform(Action action) {
    if (state_.load() != State::kOpen) return;
    if (loop_->here()) return act(connection_, serial_, action);
    loop_->post(std::make_unique<Task<Action>>(connection_, serial_, shared_from_this(),
                                               std::move(action)));
  }

  std::shared_ptr<IoLoop> loop_;
  std::weak_ptr<HttpConnection> connection_;  // locked on the I/O thread only
  std::int64_t serial_;
  HttpRequest request_;
  std::atomic<State> state_ = State::kOpen;
};

HttpConnection::HttpConnection(HttpConnectionOwner& owner, std::shared_ptr<IoStream> stream,
                               bool admitted)
    : owner_(owner),
      stream_(std::move(stream)),
      admitted_(admitted),
      since_(monotonic_seconds()),
      parser_(limits_of(owner.options())) {}

void HttpConnection::open() {
  stream_->open(*this);
  set_deadline();
}

void HttpConnection::on_open() {
  enter(Phase::kIdle);
  if (admitted_) return set_deadline();
  HttpResponse full = transport_error(503, "the server has too many connections; try again");
  full.headers.push_back({"Retry-After", "1"});
  refuse(std::move(full));
}

void HttpConnection::on_bytes(std::string_view bytes) {
  if (phase_ == Phase::kEnding) return;
  inbox_.append(bytes);
  advance();
}

void HttpConnection::on_progress() {
  progress_ = monotonic_seconds();
  if (phase_ == Phase::kEnding) {
    since_ = progress_;
    if (ended_by_client_ && stream_->unsent_bytes() == 0) return drop();
  }
  if (!inbox_.empty()) return advance();
  set_deadline();
}

void HttpConnection::on_deadline() {
  double now = monotonic_seconds();
  if (phase_ == Phase::kReading && now >= phase_deadline()) {
    refuse(transport_error(408, "the request did not arrive in time"));
  } else {
    drop();
  }
}

void HttpConnection::on_eof() {
  bool answered = !busy() && stream_->unsent_bytes() > 0;
  if (!answered) return drop();
  ended_by_client_ = true;
  end();
}

void HttpConnection::on_failed(const std::string&) { drop(); }

void HttpConnection::drop() {
  if (phase_ == Phase::kClosed) return;
  std::shared_ptr<HttpConnection> self = shared_from_this();
  bool unanswered = busy();
  phase_ = Phase::kClosed;
  if (unanswered || stream_->unsent_bytes() > 0) {
    stream_->abort();
  } else {
    stream_->close();
  }
  owner_.remove(*this);
  std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (!unanswered || exchange == nullptr) return;
  exchange->mark_closed();
  try {
    owner_.handler().on_closed(*exchange);
  } catch (const std::exception& error) {
    log_error(concat("serve: ", exchange->request().path, ": ", error.what()));
  }
}

void HttpConnection::close_if_idle() {
  if (phase_ != Phase::kOpening && (phase_ != Phase::kIdle || !inbox_.empty())) return;
  if (stream_->unsent_bytes() > 0) {
    end();
  } else {
    drop();
  }
}

void HttpConnection::enter(Phase phase) {
  phase_ = phase;
  since_ = monotonic_seconds();
}

// Reads requests and hands them over until one is being answered, or bytes are missing.
void HttpConnection::advance() {
  if (advancing_) return;  // an answer within on_request(): the loop below goes on
  std::shared_ptr<HttpConnection> self = shared_from_this();
  {
    ScopedValue guard(advancing_, true);
    while (phase_ == Phase::kIdle || phase_ == Phase::kReading) {
      if (stream_->unsent_bytes() >= kMostUnsentAheadBytes || !read_request()) break;
      hand_over();
    }
  }
  if (phase_ == Phase::kClosed) return;
  bool keeps_up = stream_->unsent_bytes() < kMostUnsentAheadBytes;
  stream_->read(inbox_.size() < kMostAheadBytes || (phase_ == Phase::kReading && keeps_up));
  set_deadline();
}

// Is a whole request here?
bool HttpConnection::read_request() {
  if (phase_ == Phase::kIdle) {
    // Empty lines may precede a request.
    inbox_.erase(0, std::min(inbox_.find_first_not_of("\r\n"), inbox_.size()));
    if (inbox_.empty()) return false;
    enter(Phase::kReading);
  }
  bool had_head = parser_.head_done();
  std::string_view rest = inbox_;
  while (std::size_t used = parser_.put(rest)) rest.remove_prefix(used);
  inbox_.erase(0, inbox_.size() - rest.size());
  if (parser_.fault().status != 0) {
    refuse(transport_error(parser_.fault().status, parser_.fault().text));
    return false;
  }
  if (!had_head && parser_.head_done() && !parser_.done() && parser_.expects_continue()) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return parser_.done();
}

void HttpConnection::hand_over() {
  http_1_1_ = parser_.http_1_1();
  keep_alive_ = parser_.keep_alive();
  HttpRequest request = parser_.take_request();
  parser_ = RequestParser(limits_of(owner_.options()));
  is_head_ = request.method == "HEAD";
  ++serial_;
  enter(Phase::kAnswering);
  auto exchange = std::make_shared<Exchange>(*this, std::move(request));
  exchange_ = exchange;
  try {
    owner_.handler().on_request(std::move(exchange));
  } catch (const std::exception& error) {
    log_error(concat("serve: the handler of a request failed: ", error.what()));
    abandon();
  }
}

bool HttpConnection::answers(std::int64_t serial) const { return busy() && serial == serial_; }

void HttpConnection::respond(HttpResponse response) {
  if (phase_ != Phase::kAnswering) return;
  send_answer(response, is_head_);
  finish_answer();
}

void HttpConnection::send(std::string bytes) {
  bool begins = stream_->unsent_bytes() == 0;
  stream_->send(std::move(bytes));
  if (!begins) return;
  progress_ = monotonic_seconds();
  set_deadline();
}

void HttpConnection::send_answer(HttpResponse& response, bool bodiless) {
  if (!is_sendable(response)) {
    log_error("serve: an answer has a status or header that cannot be sent");
    response = transport_error(500, "internal error");
  }
  keep_alive_ = keep_alive_ && owner_.accepting();
  std::string head =
      answer_head(response, {.http_1_1 = http_1_1_, .keep_alive = keep_alive_}, owner_.date());
  if (!bodiless && !is_bodiless(response.status)) head.append(response.body);
  send(std::move(head));
}

void HttpConnection::begin_stream(HttpResponse head) {
  if (phase_ != Phase::kAnswering) return;
  if (!is_sendable(head)) return respond(std::move(head));
  AnswerForm form = {.framing = http_1_1_ ? BodyFraming::kChunked : BodyFraming::kUntilClose,
                     .http_1_1 = http_1_1_};
  drops_body_ = is_head_ || is_bodiless(head.status);
  keep_alive_ = keep_alive_ && owner_.accepting() && http_1_1_;
  form.keep_alive = keep_alive_;
  phase_ = Phase::kStreaming;
  send(answer_head(head, form, owner_.date()));
  write(head.body);
}

void HttpConnection::write(std::string_view piece) {
  if (phase_ != Phase::kStreaming || drops_body_ || piece.empty()) return;
  std::string framed;
  if (http_1_1_) {
    append_chunk(framed, piece);
  } else {
    framed = piece;
  }
  send(std::move(framed));
  if (stream_->unsent_bytes() > owner_.options().max_unsent_bytes) drop();
}

void HttpConnection::end_stream() {
  if (phase_ != Phase::kStreaming) return;
  if (http_1_1_ && !drops_body_) send(std::string(kLastChunk));
  finish_answer();
}

void HttpConnection::finish_answer() {
  if (std::shared_ptr<Exchange> exchange = exchange_.lock()) exchange->mark_answered();
  enter(Phase::kIdle);
  if (!keep_alive_ || !owner_.accepting()) return end();
  advance();
}

void HttpConnection::abandon() {
  if (phase_ == Phase::kAnswering) {
    respond(transport_error(500, "the request was not answered"));
  } else if (phase_ == Phase::kStreaming) {
    log_error("serve: a stream was left without its end");
    drop();
  }
}

// Answers a request that cannot be read, or a connection that is not admitted.
void HttpConnection::refuse(HttpResponse response) {
  keep_alive_ = false;
  http_1_1_ = true;
  send_answer(response, false);
  end();
}

void HttpConnection::end() {
  enter(Phase::kEnding);
  inbox_ = std::string();
  stream_->end_sending();
  stream_->read(true);
  set_deadline();
}

double HttpConnection::phase_deadline() const {
  const HttpServerOptions& options = owner_.options();
  switch (phase_) {
    case Phase::kOpening:
      return since_ + options.read_timeout_s;
    case Phase::kIdle:
      return since_ + options.keep_alive_s;
    case Phase::kReading:
      return since_ + options.read_timeout_s +
             static_cast<double>(parser_.body_bytes()) / kLeastBytesPerSecond;
    case Phase::kEnding:
      return stream_->unsent_bytes() > 0 ? kNever : since_ + kLingerSeconds;
    default:
      return kNever;
  }
}

void HttpConnection::set_deadline() {
  if (phase_ == Phase::kClosed) return;
  double deadline = phase_deadline();
  if (stream_->unsent_bytes() > 0) {
    deadline = std::min(deadline, progress_ + owner_.options().write_timeout_s);
  }
  stream_->set_deadline(deadline);
}

}  // namespace bev
