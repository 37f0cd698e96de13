#include "serve/call_registry.h"

#include <mutex>
#include <unordered_map>

namespace bev {

struct CallRegistry::State {
  mutable std::mutex mutex;
  std::unordered_map<const HttpExchange*, std::weak_ptr<ApiCall>> calls;
};

CallRegistry::CallRegistry() : state_(std::make_unique<State>()) {}
CallRegistry::~CallRegistry() = default;

void CallRegistry::add(const HttpExchange& exchange, const std::shared_ptr<ApiCall>& call) {
  std::lock_guard lock(state_->mutex);
  state_->calls[&exchange] = call;
}

void CallRegistry::remove(const HttpExchange& exchange) {
  std::lock_guard lock(state_->mutex);
  state_->calls.erase(&exchange);
}

std::shared_ptr<ApiCall> CallRegistry::find(const HttpExchange& exchange) const {
  std::lock_guard lock(state_->mutex);
  auto found = state_->calls.find(&exchange);
  return found == state_->calls.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<ApiCall>> CallRegistry::all() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::shared_ptr<ApiCall>> out;
  for (const auto& [exchange, call] : state_->calls) {
    if (auto alive = call.lock()) out.push_back(std::move(alive));
  }
  return out;
}

std::int64_t CallRegistry::count() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->calls.size());
}

}  // namespace bev
