// A library of NVIDIA's that is loaded when it is first wanted: the program starts without it.
#pragma once

#include <string>

namespace bev {

class SharedLibrary {
 public:
  // Looks where the system looks for libraries, then where CUDA puts its own.
  explicit SharedLibrary(const std::string& name);

  bool loaded() const { return handle_ != nullptr; }
  // What was tried and how to cure it, where it is not loaded.
  std::string problem() const;
  // False where the library has no such function.
  template <class Function>
  bool find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
    return function != nullptr;
  }

 private:
  void* address(const char* symbol) const;

  std::string name_, reason_;
  void* handle_ = nullptr;  // never closed: its functions stay in use until the process ends
};

}  // namespace bev
