// Loading of shared libraries at run time.
#include "backend/cuda/runtime/shared_library.h"

#include <dlfcn.h>

#include "base/text.h"

namespace bev {

SharedLibrary::SharedLibrary(const std::string& name) : name_(name) {
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"}) {
    handle_ = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    const char* reason = ::dlerror();
    if (reason_.empty() && reason != nullptr) reason_ = reason;
  }
}

std::string SharedLibrary::problem() const {
  return concat("cannot load ", name_, " (", reason_,
                "); install it and put its folder into LD_LIBRARY_PATH");
}

void* SharedLibrary::address(const char* symbol) const {
  return handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
}

}  // namespace bev
