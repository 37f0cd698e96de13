#include "serve/io_loop.h"

#define BOOST_ERROR_CODE_HEADER_ONLY
#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/io_stream.h"

namespace bev {

namespace {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

using Tasks = std::vector<std::unique_ptr<IoTask>>;

void run_logged(IoTask& task) {
  try {
    task.run();
  } catch (const std::exception& error) {
    log_error(concat("serve: a task failed: ", error.what()));
  }
}
}  // namespace

struct IoLoop::State {
  void run_tasks() {
    Tasks batch;
    {
      std::lock_guard lock(mutex);
      batch.swap(tasks);
    }
    for (std::unique_ptr<IoTask>& task : batch) {
      if (!closed) run_logged(*task);
      task.reset();
    }
  }

  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      context.get_executor()};
  std::atomic<std::thread::id> thread;
  std::vector<std::shared_ptr<IoStream>> unflushed;

  std::mutex mutex;  // guards tasks; and closed, which only the loop's own thread sets
  Tasks tasks;
  bool closed = false;
};

IoLoop::IoLoop() : state_(std::make_unique<State>()) {}
IoLoop::~IoLoop() = default;

void IoLoop::post(std::unique_ptr<IoTask> task) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->closed) return;
    state_->tasks.push_back(std::move(task));
    if (state_->tasks.size() > 1) return;  // the one before has woken the loop
  }
  asio::post(state_->context, [this] {
    state_->run_tasks();
    end_turn();
  });
}

bool IoLoop::here() const { return state_->thread.load() == std::this_thread::get_id(); }

void IoLoop::run() {
  state_->thread.store(std::this_thread::get_id());
  while (!state_->context.stopped()) {
    try {
      state_->context.run();
    } catch (const std::exception& error) {  // no memory, say: the other connections go on
      log_error(concat("serve: ", error.what()));
    }
  }
  state_->thread.store({});
}

void IoLoop::run_until(double monotonic, FunctionRef<bool()> done) {
  constexpr double kLongest = 1e6;
  double wait_s = std::min(monotonic - monotonic_seconds(), kLongest);
  auto end =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(wait_s));
  state_->thread.store(std::this_thread::get_id());
  end_turn();
  if (wait_s <= 0 && !done()) state_->context.poll();
  while (!done() && state_->context.run_one_until(end) != 0) {
  }
  state_->thread.store({});
}

void IoLoop::close() {
  std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->work.reset();
}

asio::io_context& IoLoop::context() { return state_->context; }

void IoLoop::flush_at_end_of_turn(std::shared_ptr<IoStream> stream) {
  state_->unflushed.push_back(std::move(stream));
}

void IoLoop::end_turn() {
  // A stream that fails at once tells so later: nothing is added here.
  for (std::shared_ptr<IoStream>& stream : state_->unflushed) stream->flush();
  state_->unflushed.clear();
}

struct IoListener::State : std::enable_shared_from_this<IoListener::State> {
  State(IoLoop& own_loop, std::shared_ptr<const IoTls> own_tls, IoListenerSink& own_sink)
      : loop(own_loop),
        tls(std::move(own_tls)),
        sink(own_sink),
        acceptor(loop.context()),
        pause(loop.context()) {}

  // Listens on the first of the addresses that can be used.
  error_code listen(const std::vector<IoAddress>& addresses) {
    error_code error;
    for (const IoAddress& address : addresses) {
      error = listen(tcp::endpoint(asio::ip::make_address(address.host),
                                   static_cast<std::uint16_t>(address.port)));
      if (!error) break;
    }
    return error;
  }
  error_code listen(const tcp::endpoint& endpoint) {
    error_code error, ignored;
    acceptor.close(ignored);
    acceptor.open(endpoint.protocol(), error);
    if (error) return error;
    acceptor.set_option(asio::socket_base::reuse_address(true), ignored);
    acceptor.set_option(asio::ip::v6_only(false), ignored);
    acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    return error;
  }

  void accept() {
    acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
      if (self->closed) return;
      if (error) return self->accept_later(error);
      int descriptor = socket.release(error);
      if (!error) self->sink.on_accept(accepted_stream(self->loop, descriptor, self->tls));
      self->warned = false;
      self->loop.end_turn();
      if (!self->closed) self->accept();
    });
  }
  // Without a free descriptor the connection stays in the queue: trying at once would spin.
  void accept_later(const error_code& error) {
    constexpr auto kPause = std::chrono::milliseconds(50);
    if (!warned) log_warning(concat("serve: cannot accept connections: ", error.message()));
    warned = true;
    pause.expires_after(kPause);
    pause.async_wait([self = shared_from_this()](error_code) {
      if (!self->closed) self->accept();
    });
  }

  IoLoop& loop;
  std::shared_ptr<const IoTls> tls;
  IoListenerSink& sink;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  bool closed = false, warned = false;
};

namespace {
std::string advice(const error_code& error) {
  if (error == asio::error::address_in_use) return "; give another --port";
  if (error == asio::error::access_denied) return "; give a --port above 1023";
  return "; give another --host";
}
}  // namespace

IoListener::IoListener(IoLoop& loop, const std::string& host, int port,
                       std::shared_ptr<const IoTls> tls, IoListenerSink& sink)
    : state_(std::make_shared<State>(loop, std::move(tls), sink)) {
  BEV_CHECK(port >= 0 && port <= 65535, ErrorKind::kConfig, "serve: --port ", port,
            " is not within 0 to 65535");
  std::vector<IoAddress> addresses;
  try {
    addresses = resolve_host(host, port);
  } catch (const Error& error) {
    BEV_FAIL(ErrorKind::kConfig, "serve: --host ", host, ": ", error.what());
  }
  error_code error = state_->listen(addresses);
  BEV_CHECK(!error, ErrorKind::kConfig, "serve: cannot listen on ", address_text({host, port}),
            ": ", error.message(), advice(error));
  state_->accept();
}

IoListener::~IoListener() { close(); }

int IoListener::port() const { return state_->acceptor.local_endpoint().port(); }

void IoListener::close() {
  error_code ignored;
  state_->closed = true;
  state_->acceptor.close(ignored);
  state_->pause.cancel();
}

}  // namespace bev
