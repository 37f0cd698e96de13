#include "comm/process/mpi_link.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace bev {

std::unique_ptr<Link> load_mpi_link() {
  // Next to the program in the build tree, in the library folder if installed.
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string path = folder / "libbev_mpi.so";
  if (!std::filesystem::exists(path)) path = folder.parent_path() / "lib/bevatron/libbev_mpi.so";
  // RTLD_GLOBAL: MPI loads its plugins later, and they resolve its symbols globally.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  BEV_CHECK(library != nullptr, ErrorKind::kDevice, "this process was started through MPI, but ",
            ::dlerror(), "; build with MPI (libopenmpi-dev), or start the processes by RANK, ",
            "WORLD_SIZE and MASTER_ADDR");
  auto make = reinterpret_cast<Link* (*)()>(::dlsym(library, "bev_make_mpi_link"));
  BEV_CHECK(make != nullptr, ErrorKind::kDevice, path, ": is not of this version");
  return std::unique_ptr<Link>(make());
}

}  // namespace bev
