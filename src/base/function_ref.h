// Non-owning reference to a callable, for functions that call their argument before they return. It
// does not allocate.
#pragma once

#include <type_traits>

namespace bev {

template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  // The callable must outlive the reference; a lambda passed as an argument does.
  template <class Callable>
  requires(!std::is_same_v<Callable, FunctionRef> &&
           std::is_invocable_r_v<Result, const Callable&, Args...>)
      FunctionRef(const Callable& callable)
      : callable_(&callable), call_([](const void* erased, Args... args) -> Result {
          return (*static_cast<const Callable*>(erased))(static_cast<Args&&>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(callable_, static_cast<Args&&>(args)...); }

 private:
  const void* callable_;
  Result (*call_)(const void*, Args...);
};

}  // namespace bev
