// The calls that are under way. From any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bev {

class ApiCall;
class HttpExchange;

class CallRegistry {
 public:
  CallRegistry();
  ~CallRegistry();

  void add(const HttpExchange& exchange, const std::shared_ptr<ApiCall>& call);
  void remove(const HttpExchange& exchange);
  // nullptr if it is over.
  std::shared_ptr<ApiCall> find(const HttpExchange& exchange) const;
  std::vector<std::shared_ptr<ApiCall>> all() const;
  std::int64_t count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
