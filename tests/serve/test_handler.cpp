#include "tests/serve/test_handler.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "tests/serve/raw_socket.h"

namespace bev::test {

namespace {
constexpr auto kPatience = std::chrono::seconds(kPatienceSeconds);
}

std::shared_ptr<HttpExchange> TestHandler::take() {
  std::unique_lock lock(mutex_);
  bool came = changed_.wait_for(lock, kPatience, [&] { return !kept_.empty(); });
  BEV_CHECK(came, ErrorKind::kIo, "test: no request");
  std::shared_ptr<HttpExchange> exchange = std::move(kept_.front());
  kept_.pop_front();
  return exchange;
}

std::size_t TestHandler::kept() {
  std::lock_guard lock(mutex_);
  return kept_.size();
}

std::vector<std::string> TestHandler::await_closed(std::size_t count) {
  std::unique_lock lock(mutex_);
  bool came = changed_.wait_for(lock, kPatience, [&] { return closed_.size() >= count; });
  BEV_CHECK(came, ErrorKind::kIo, "test: ", closed_.size(), " requests closed, not ", count);
  return closed_;
}

void TestHandler::on_request(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  if (request.path == "/echo") {
    exchange->respond({.content_type = "text/plain", .body = request.body});
  } else if (request.path == "/describe") {
    std::string text = concat(request.method, "\n", request.query, "\n", request.header("x-first"),
                              "\n", request.header("HOST"), "\n", request.body);
    exchange->respond({.content_type = "text/plain", .body = text});
  } else if (request.path == "/throw") {
    throw std::runtime_error("wanted by the test");
  } else if (request.path != "/forget") {
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(exchange));
    changed_.notify_all();
  }
}

void TestHandler::on_closed(HttpExchange& exchange) {
  std::lock_guard lock(mutex_);
  closed_.push_back(exchange.request().path);
  changed_.notify_all();
}

bool eventually(FunctionRef<bool()> holds) {
  double end = monotonic_seconds() + kPatienceSeconds;
  while (!holds()) {
    if (monotonic_seconds() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int process_threads() {
  using Folder = std::filesystem::directory_iterator;
  return static_cast<int>(std::distance(Folder("/proc/self/task"), Folder()));
}

std::int64_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  status >> all >> resident;
  return resident * 4096;
}

}  // namespace bev::test
