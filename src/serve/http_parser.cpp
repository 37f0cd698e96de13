#include "serve/http_parser.h"

#define BOOST_ERROR_CODE_HEADER_ONLY
#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

#include "base/scoped_value.h"
#include "base/text.h"

namespace bev {

namespace {
namespace http = boost::beast::http;
using boost::beast::error_code;
using BoostText = boost::beast::string_view;

std::string_view plain(BoostText text) { return {text.data(), text.size()}; }

// Looks for the end of a message's head, which Beast then gets in one piece: so its size is bounded
// exactly, and folded lines can be told.
class HeadScanner {
 public:
  explicit HeadScanner(std::int64_t most_bytes) : most_bytes_(most_bytes) {}

  // The size of the head with its empty line; 0 while that has not come, or if there is a fault.
  std::size_t find_end(std::string_view bytes, HttpFault& fault) {
    if (!is_token(bytes.substr(0, 1))) {
      fault = {400, "this is not HTTP"};
      return 0;
    }
    while (true) {
      std::size_t feed = bytes.find('\n', scanned_);
      if (feed == std::string_view::npos || feed >= static_cast<std::size_t>(most_bytes_)) break;
      scanned_ = feed + 1;
      if (feed == 0 || bytes[feed - 1] != '\r') {
        fault = {400, "a line of the header does not end with CR LF"};
        return 0;
      }
      if (feed - line_ == 1) return feed + 1;
      if (line_ > 0 && (bytes[line_] == ' ' || bytes[line_] == '\t')) {
        fault = {400, "a line of the header is folded"};
        return 0;
      }
      line_ = feed + 1;
    }
    if (bytes.size() >= static_cast<std::size_t>(most_bytes_)) {
      fault = {431, concat("the header has more than ", most_bytes_, " bytes")};
    } else {
      scanned_ = bytes.size();
    }
    return 0;
  }

 private:
  std::int64_t most_bytes_;
  std::size_t scanned_ = 0, line_ = 0;  // the next byte to look at, and where its line begins
};

// What is common to both kinds of messages.
template <bool kIsRequest>
class Message : public http::basic_parser<kIsRequest> {
 public:
  explicit Message(const HttpLimits& limits) : scanner_(limits.header_bytes), limits_(limits) {
    this->header_limit(std::numeric_limits<std::uint32_t>::max());
    this->body_limit(static_cast<std::uint64_t>(limits.body_bytes));
  }

  std::size_t put_bytes(std::string_view bytes) {
    if (bytes.empty() || this->is_done() || fault.status != 0) return 0;
    if (!this->is_header_done()) {
      std::size_t size = scanner_.find_end(bytes, fault);
      if (size == 0) return 0;
      bytes = bytes.substr(0, size);
    }
    error_code error;
    std::size_t used = this->put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error == http::error::need_more && this->is_header_done()) {
      bound_framing(bytes.size() - used);
    } else if (error && fault.status == 0) {
      fault = fault_of(error);
    }
    return used;
  }
  void put_eof_byte() {
    error_code error = http::error::partial_message;
    if (this->is_header_done()) this->put_eof(error);
    if (error && fault.status == 0) fault = {400, "the connection ended within the message"};
  }

  HttpFault fault;
  std::vector<HttpHeader> headers;
  int version = 11;
  std::int64_t body_bytes = 0;

 protected:
  virtual void on_body(std::string_view piece) = 0;
  // Ends the parsing; the first fault is kept.
  void refuse(error_code& error, int status, std::string text) {
    fault = {status, std::move(text)};
    error = http::error::bad_value;
  }

  void on_field_impl(http::field, BoostText name, BoostText value, error_code&) override {
    if (this->is_header_done()) return;  // trailers say nothing to us
    headers.push_back({std::string(plain(name)), std::string(plain(value))});
  }
  // Boost 1.87 and later.
  virtual void on_trailer_field_impl(http::field, BoostText, BoostText, error_code&) {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(std::uint64_t, BoostText, error_code&) override {}
  std::size_t on_body_impl(BoostText piece, error_code&) override {
    body_bytes += static_cast<std::int64_t>(piece.size());
    on_body(plain(piece));
    return piece.size();
  }
  std::size_t on_chunk_body_impl(std::uint64_t, BoostText piece, error_code& error) override {
    return on_body_impl(piece, error);
  }
  void on_finish_impl(error_code&) override {}
  void on_request_impl(http::verb, BoostText, BoostText, int, error_code&) override {}
  void on_response_impl(int, BoostText, int, error_code&) override {}

 private:
  // The size line of a chunk, and trailers, are short.
  void bound_framing(std::size_t bytes) {
    if (bytes >= static_cast<std::size_t>(limits_.header_bytes)) {
      fault = {400, "the framing of the body has no end"};
    }
  }
  HttpFault fault_of(const error_code& error) const {
    if (error == http::error::body_limit) {
      return {413, concat("the body has more than ", limits_.body_bytes, " bytes")};
    }
    if (error == http::error::bad_version) return {505, "this is not HTTP/1.0 or HTTP/1.1"};
    return {400, concat("malformed HTTP: ", error.message())};
  }

  HeadScanner scanner_;
  HttpLimits limits_;
};

// The parts of a request's target: "/path?query", "http://host/path?query" or "*".
bool read_target(std::string_view target, HttpRequest& request) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!same_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    break;
  }
  std::size_t mark = target.find('?');
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
  std::optional<std::string> path = percent_decoded(target.substr(0, mark));
  if (!path) return false;
  request.path = path->empty() ? "/" : std::move(*path);
  return request.path.front() == '/' || request.path == "*";
}
}  // namespace

struct RequestParser::State final : Message<true> {
  using Message::Message;

  void on_request_impl(http::verb, BoostText method, BoostText target, int digits,
                       error_code& error) override {
    request.method = plain(method);
    version = digits;
    if (!read_target(plain(target), request)) refuse(error, 400, "malformed target of the request");
  }
  void on_header_impl(error_code& error) override {
    auto count = std::ranges::count_if(
        headers, [](const HttpHeader& header) { return same_ignoring_case(header.name, "Host"); });
    std::string_view encoding = find_header(headers, "Transfer-Encoding");
    std::string_view expected = find_header(headers, "Expect");
    if (count > 1 || (count == 0 && version >= 11)) {
      refuse(error, 400, "the request needs one Host header");
    } else if (!encoding.empty() && (version < 11 || !this->chunked())) {
      refuse(error, version < 11 ? 400 : 501, concat("no transfer encoding but chunked is known"));
    } else if (!encoding.empty() && !same_ignoring_case(encoding, "chunked")) {
      refuse(error, 501, "no transfer encoding but chunked is known");
    } else if (!expected.empty() && !same_ignoring_case(expected, "100-continue")) {
      refuse(error, 417, "no expectation but 100-continue is known");
    }
  }
  void on_body(std::string_view piece) override { request.body.append(piece); }

  HttpRequest request;
};

RequestParser::RequestParser(const HttpLimits& limits) : state_(std::make_unique<State>(limits)) {}
RequestParser::RequestParser(RequestParser&&) = default;
RequestParser& RequestParser::operator=(RequestParser&&) = default;
RequestParser::~RequestParser() = default;

std::size_t RequestParser::put(std::string_view bytes) { return state_->put_bytes(bytes); }
bool RequestParser::head_done() const { return state_->is_header_done(); }
bool RequestParser::done() const { return state_->is_done() && state_->fault.status == 0; }
const HttpFault& RequestParser::fault() const { return state_->fault; }
bool RequestParser::http_1_1() const { return state_->version >= 11; }
bool RequestParser::keep_alive() const { return state_->keep_alive(); }
bool RequestParser::expects_continue() const {
  return http_1_1() && !find_header(state_->headers, "Expect").empty();
}
std::int64_t RequestParser::body_bytes() const { return state_->body_bytes; }

HttpRequest RequestParser::take_request() {
  state_->request.headers = std::move(state_->headers);
  return std::move(state_->request);
}

struct ResponseParser::State final : Message<false> {
  using EachPiece = FunctionRef<void(std::string_view)>;

  explicit State(bool answers_head)
      : Message({.header_bytes = 1 << 20, .body_bytes = std::numeric_limits<std::int64_t>::max()}) {
    this->skip(answers_head);
  }

  void on_response_impl(int code, BoostText, int digits, error_code&) override {
    head.status = code;
    version = digits;
  }
  void on_header_impl(error_code&) override {
    head.content_type = find_header(headers, "Content-Type");
    head.headers = std::move(headers);
  }
  void on_body(std::string_view piece) override { (*each)(piece); }

  HttpResponse head;
  const EachPiece* each = nullptr;  // during put()
};

ResponseParser::ResponseParser(bool answers_head) : state_(std::make_unique<State>(answers_head)) {}
ResponseParser::ResponseParser(ResponseParser&&) = default;
ResponseParser& ResponseParser::operator=(ResponseParser&&) = default;
ResponseParser::~ResponseParser() = default;

std::size_t ResponseParser::put(std::string_view bytes,
                                FunctionRef<void(std::string_view piece)> each) {
  ScopedValue scope(state_->each, static_cast<const State::EachPiece*>(&each));
  return state_->put_bytes(bytes);
}
void ResponseParser::put_end() { state_->put_eof_byte(); }
bool ResponseParser::head_done() const { return state_->is_header_done(); }
bool ResponseParser::done() const { return state_->is_done() && state_->fault.status == 0; }
const HttpFault& ResponseParser::fault() const { return state_->fault; }
const HttpResponse& ResponseParser::head() const { return state_->head; }
bool ResponseParser::keep_alive() const { return state_->keep_alive(); }

}  // namespace bev
