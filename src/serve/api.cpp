#include "serve/api.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/text.h"
#include "serve/api_error.h"
#include "serve/api_state.h"

namespace bev {

namespace {

using Call = std::shared_ptr<ApiCall>;

// 16 hexadecimal digits.
std::string hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[value >> shift & 15];
  return out;
}

// The client's name for a request, as far as it may stand in a header.
std::string request_id(const HttpRequest& request, std::uint64_t random) {
  constexpr std::size_t kMost = 128;
  std::string given(request.header("X-Request-Id"));
  bool fits = !given.empty() && given.size() <= kMost &&
              std::ranges::all_of(given, [](char c) { return c > ' ' && c < 0x7f; });
  return fits ? given : hex(random);
}

bool is_json(const HttpRequest& request) {
  std::string_view type = request.header("Content-Type");
  type = trim(type.substr(0, type.find(';')));
  return type.empty() || same_ignoring_case(type, "application/json");
}

// Whether a web page of another site sends the request.
bool is_foreign(const HttpRequest& request) {
  std::string_view origin = request.header("Origin");
  if (!origin.starts_with("http")) return false;
  std::size_t host = origin.find("://");
  return host == std::string_view::npos || origin.substr(host + 3) != request.header("Host");
}

}  // namespace

Api::State::State(const ServedModel& served, const ApiOptions& wanted)
    : model(served),
      options(wanted),
      metrics(served.name()),
      loop(*this),
      shared{registry, metrics, loop},
      answers{served, metrics,
              concat("bevatron-", BEV_VERSION, "-", hex(hash_name(served.name())))},
      random_key(mix_bits(std::random_device()(), std::random_device()())),
      workers(std::make_unique<WorkerThreads>(wanted.worker_threads)) {
  server = std::make_unique<HttpServer>(options.http, *this);
}

std::uint64_t Api::State::next_random() { return mix_bits(random_key, ++random_count); }

namespace {

HttpResponse error_response(const ApiError& error, const HttpRequest& request) {
  HttpResponse out = request.path == "/api" ? megatron_error(error) : error.response();
  if (error.status() == 429 || error.status() == 503) out.headers.push_back({"Retry-After", "1"});
  return out;
}

// Runs a handler; what it throws becomes the answer.
template <class Handler>
void guarded(ApiCall& call, const Handler& handler) {
  try {
    handler();
  } catch (const ApiError& error) {
    call.respond(error_response(error, call.request()));
  } catch (const Error& error) {
    bool theirs = error.kind() == ErrorKind::kInput || error.kind() == ErrorKind::kConfig;
    call.respond(error_response(ApiError(theirs ? 400 : 500, error.what()), call.request()));
  } catch (const std::exception& error) {
    log_error(concat("serve: request ", call.id(), ": ", error.what()));
    call.respond(error_response(ApiError(500, "internal error"), call.request()));
  }
}

}  // namespace

class Api::State::Work : public IoTask {
 public:
  Work(State& state, const Route& route, Call call)
      : state_(state), route_(route), call_(std::move(call)) {
    ++state_.preparing;
  }
  ~Work() override { --state_.preparing; }
  void run() override {
    auto handle = route_.handle;
    guarded(*call_, [handle, &state = state_, &call = call_] { (state.*handle)(call); });
  }

 private:
  State& state_;
  const Route& route_;
  Call call_;
};

std::span<const Api::State::Route> Api::State::routes() {
  using enum RouteAccess;
  using enum RouteThread;
  static const std::vector<Route> kRoutes = {
      {"GET", "/", kKey, kIo, &State::page},
      {"GET", "/page.css", kKey, kIo, &State::page},
      {"GET", "/page.js", kKey, kIo, &State::page},
      {"GET", "/health", kOpen, kIo, &State::health},
      {"GET", "/v1/health", kKey, kIo, &State::health},
      {"GET", "/ping", kKey, kIo, &State::health},
      {"GET", "/version", kKey, kIo, &State::version},
      {"GET", "/metrics", kKey, kIo, &State::metrics_text},
      {"GET", "/v1/models", kKey, kIo, &State::models},
      {"GET", "/v1/models/", kKey, kIo, &State::model_card},
      {"POST", "/v1/completions", kKey, kEngine, &State::completion},
      {"POST", "/completions", kKey, kEngine, &State::completion},
      {"POST", "/v1/chat/completions", kKey, kEngine, &State::chat},
      {"POST", "/chat/completions", kKey, kEngine, &State::chat},
      {"POST", "/v1/embeddings", kKey, kEngine, &State::embed},
      {"PUT", "/api", kKey, kEngine, &State::megatron},
      {"POST", "/tokenize", kKey, kWorker, &State::tokenize},
      {"POST", "/detokenize", kKey, kWorker, &State::detokenize},
      {"POST", "/pause", kControl, kIo, &State::pause},
      {"POST", "/resume", kControl, kIo, &State::resume},
      {"GET", "/is_paused", kControl, kIo, &State::is_paused},
      {"POST", "/reset_prefix_cache", kControl, kIo, &State::reset_cache},
      {"GET", "/weight_info", kControl, kIo, &State::weight_info},
      {"POST", "/abort_requests", kControl, kIo, &State::abort_requests},
  };
  return kRoutes;
}

namespace {

// A path that ends with a slash, but for the page, stands for all that begin with it.
bool serves(std::string_view path, std::string_view wanted) {
  bool prefix = path.size() > 1 && path.ends_with('/');
  return prefix ? wanted.size() > path.size() && wanted.starts_with(path) : wanted == path;
}

bool same_method(std::string_view of_route, std::string_view wanted) {
  return wanted == of_route || (wanted == "HEAD" && of_route == "GET");
}

}  // namespace

// The route of the request's path and method; of its path alone if no method fits.
const Api::State::Route* Api::State::find_route(const HttpRequest& request) {
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    if (!serves(route.path, request.path)) continue;
    found = &route;
    if (same_method(route.method, request.method)) break;
  }
  return found;
}

void Api::State::check_access(const Route& route, const HttpRequest& request) const {
  const AccessOptions& access = options.access;
  bool foreign = is_foreign(request) && allowed_origin(request, access.origins).empty();
  if (foreign && request.method != "GET" && request.method != "HEAD") {
    throw ApiError(403,
                   "web pages of other sites may not call this server; "
                   "--allowed-origins names those that may");
  }
  if (route.access == RouteAccess::kControl) {
    if (access.control_keys.empty()) {
      throw ApiError(403, "control routes are closed; start the server with --control-key");
    }
    if (!has_key(request, access.control_keys)) throw ApiError(401, "the control key is wrong");
  }
  if (route.access != RouteAccess::kKey || access.api_keys.empty()) return;
  if (has_key(request, access.api_keys)) return;
  bool none = request.header("Authorization").empty();
  throw ApiError(401,
                 none ? "an API key is missing: send the header 'Authorization: Bearer KEY'"
                      : "the API key is wrong",
                 {}, "invalid_api_key");
}

void Api::State::check_loaded() const {
  if (phase == ApiPhase::kLoading) throw ApiError(503, "the model is loading");
}

// Whether a call for the engine may come now.
void Api::State::check_serving() const {
  if (loop.failed()) throw ApiError(503, "the engine has failed");
  switch (phase.load()) {
    case ApiPhase::kLoading:
      return check_loaded();
    case ApiPhase::kPaused:
      throw ApiError(503, "the server is paused");
    case ApiPhase::kDraining:
      throw ApiError(503, "the server is shutting down");
    case ApiPhase::kReady:
      break;
  }
  std::int64_t free = std::max<std::int64_t>(options.max_sequences - metrics.running(), 0);
  std::int64_t waiting = metrics.waiting() + preparing;
  if (waiting < options.max_waiting + free) return;
  throw ApiError(429,
                 concat("the queue is full: ", waiting, " requests wait, at most ",
                        options.max_waiting, " may (--max-waiting)"),
                 {}, "queue_full");
}

bool Api::State::refused(const Route* route, ApiCall& call) const {
  const HttpRequest& request = call.request();
  bool refused = true;
  guarded(call, [&] {
    if (route == nullptr) throw ApiError(404, concat("there is no route ", request.path));
    check_access(*route, request);
    if (!same_method(route->method, request.method)) {
      HttpResponse response =
          ApiError(405, concat(request.path, " takes ", route->method)).response();
      response.headers.push_back({"Allow", std::string(route->method)});
      return call.respond(std::move(response));
    }
    if (request.method != "GET" && !request.body.empty() && !is_json(request)) {
      throw ApiError(415,
                     "the body must be JSON: send the header 'Content-Type: application/json'");
    }
    if (route->thread == RouteThread::kEngine) check_serving();
    refused = false;
  });
  return refused;
}

std::vector<HttpHeader> Api::State::common_headers(const HttpRequest& request) const {
  std::vector<HttpHeader> out;
  std::string origin = allowed_origin(request, options.access.origins);
  if (!origin.empty()) {
    out.push_back({"Access-Control-Allow-Origin", origin});
    out.push_back({"Access-Control-Expose-Headers", "X-Request-Id"});
    out.push_back({"Vary", "Origin"});
  }
  return out;
}

// What a browser asks before a page of another site may call; it sends no key.
void Api::State::preflight(ApiCall& call) const {
  HttpResponse response{.status = 204, .content_type = ""};
  if (!allowed_origin(call.request(), options.access.origins).empty()) {
    std::string wanted(call.request().header("Access-Control-Request-Headers"));
    response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, PUT, OPTIONS"});
    response.headers.push_back(
        {"Access-Control-Allow-Headers", wanted.empty() ? "Authorization, Content-Type" : wanted});
    response.headers.push_back({"Access-Control-Max-Age", "600"});
  }
  call.respond(std::move(response));
}

void Api::State::on_request(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Route* route = find_route(request);
  std::string handler = route != nullptr ? std::string(route->path) : "none";
  std::vector<HttpHeader> headers = common_headers(request);
  bool is_page = route != nullptr && route->handle == &State::page;
  if (is_page) headers.push_back({"WWW-Authenticate", "Basic realm=\"bevatron\""});
  auto call = std::make_shared<ApiCall>(shared, exchange, request_id(request, next_random()),
                                        std::move(handler), std::move(headers));
  registry.add(*exchange, call);
  if (request.method == "OPTIONS") return preflight(*call);
  if (refused(route, *call)) return;
  if (route->thread != RouteThread::kIo) {
    return workers->post(std::make_unique<Work>(*this, *route, std::move(call)));
  }
  guarded(*call, [&] { (this->*route->handle)(call); });
}

void Api::State::on_closed(HttpExchange& exchange) {
  metrics.dropped();
  if (Call call = registry.find(exchange)) call->closed();
}

Api::Api(const ServedModel& model, const ApiOptions& options)
    : state_(std::make_unique<State>(model, options)) {}

Api::~Api() {
  state_->workers.reset();
  state_->server.reset();
}

std::string Api::url() const { return state_->server->url(); }
EngineLoop& Api::loop() { return state_->loop; }
void Api::set_ready() {
  ApiPhase loading = ApiPhase::kLoading;
  state_->phase.compare_exchange_strong(loading, ApiPhase::kReady);
}

void Api::drain(double seconds) {
  state_->phase = ApiPhase::kDraining;
  auto wait_for_calls = [&](double most) {
    const double end = monotonic_seconds() + most;
    while (state_->registry.count() > 0 && monotonic_seconds() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return state_->registry.count() == 0;
  };
  // Cancelled requests answer with what they have; their last bytes need a moment.
  constexpr double kLastWords = 5;
  if (!wait_for_calls(seconds)) {
    log_warning(concat("serve: cutting ", state_->registry.count(), " requests after ", seconds,
                       " s (--drain-timeout)"));
    for (const Call& call : state_->registry.all()) call->cancel();
    wait_for_calls(kLastWords);
  }
  state_->server->stop_accepting();
  const double end = monotonic_seconds() + kLastWords;
  while (state_->server->connections() > 0 && monotonic_seconds() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  state_->loop.stop();
}

}  // namespace bev
