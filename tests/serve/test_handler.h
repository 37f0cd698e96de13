// A handler for tests of the server. What it does follows from the path:
//
//   /echo    the body comes back               /describe  what was read of the request, as lines
//   /throw   an exception                      /forget    no answer
//   others   the exchange is kept, for the test to answer
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "serve/http_server.h"

namespace bev::test {

class TestHandler final : public HttpHandler {
 public:
  // The next kept exchange; the wait is bounded.
  std::shared_ptr<HttpExchange> take();
  // How many requests wait to be taken.
  std::size_t kept();
  // Waits until this many requests were reported as closed; the paths of all.
  std::vector<std::string> await_closed(std::size_t count);

  void on_request(std::shared_ptr<HttpExchange> exchange) override;
  void on_closed(HttpExchange& exchange) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<HttpExchange>> kept_;
  std::vector<std::string> closed_;
};

// Runs the function on the I/O thread.
template <class Function>
void post_to(HttpServer& server, Function function) {
  struct Task final : IoTask {
    explicit Task(Function own) : function(std::move(own)) {}
    void run() override { function(); }
    Function function;
  };
  server.post(std::make_unique<Task>(std::move(function)));
}
// The same, and waits for its end.
template <class Function>
void run_on(HttpServer& server, Function function) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  post_to(server, [&] {
    function();
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

// Waits until holds() is true, looking every millisecond; false after some seconds.
bool eventually(FunctionRef<bool()> holds);

// Threads and resident memory of this process, from /proc.
int process_threads();
std::int64_t resident_bytes();

}  // namespace bev::test
