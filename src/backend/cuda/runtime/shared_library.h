// A shared library (of NVIDIA) loaded at run time, so that the program also starts without it.
#pragma once

#include <string>

namespace bev {

class SharedLibrary {
 public:
  // Searches the system paths, then the CUDA folders.
  explicit SharedLibrary(const std::string& name);

  bool loaded() const { return handle_ != nullptr; }
  // If not loaded: what was tried, and advice.
  std::string problem() const;
  // Returns false if the library has no such function.
  template <class Function>
  bool find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(address(symbol));
    return function != nullptr;
  }

 private:
  void* address(const char* symbol) const;

  std::string name_, reason_;
  void* handle_ = nullptr;  // never closed: its functions are used until the process ends
};

}  // namespace bev
