#include "serve/api_call.h"

#include <mutex>
#include <utility>

#include "base/clock.h"

namespace bev {

struct ApiCall::Tickets {
  std::mutex mutex;
  bool closed = false;
  std::vector<Ticket> list;
};

ApiCall::ApiCall(const Shared& shared, std::shared_ptr<HttpExchange> exchange, std::string id,
                 std::string handler, std::vector<HttpHeader> headers)
    : shared_(shared),
      exchange_(std::move(exchange)),
      id_(std::move(id)),
      handler_(std::move(handler)),
      headers_(std::move(headers)),
      arrival_(monotonic_seconds()),
      tickets_(std::make_unique<Tickets>()) {
  headers_.push_back({"X-Request-Id", id_});
}

ApiCall::~ApiCall() {
  shared_.registry.remove(*exchange_);
  // 499: the client closed the connection before the answer.
  constexpr int kGone = 499;
  shared_.metrics.http(request().method, handler_, status_ != 0 ? status_ : kGone,
                       monotonic_seconds() - arrival_);
}

void ApiCall::respond(HttpResponse response) {
  status_ = response.status;
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  exchange_->respond(std::move(response));
}

void ApiCall::begin_stream(HttpResponse head) {
  status_ = head.status;
  head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
  exchange_->begin_stream(std::move(head));
}

void ApiCall::submit(Request request, std::shared_ptr<EngineClient> client, std::int64_t part) {
  std::lock_guard lock(tickets_->mutex);
  if (tickets_->closed) return;
  shared_.metrics.accepted();
  tickets_->list.push_back(shared_.loop.submit(std::move(request), std::move(client), part));
}

void ApiCall::cancel() {
  std::lock_guard lock(tickets_->mutex);
  for (Ticket ticket : tickets_->list) shared_.loop.cancel(ticket);
}

void ApiCall::closed() {
  {
    std::lock_guard lock(tickets_->mutex);
    tickets_->closed = true;
  }
  cancel();
}

}  // namespace bev
