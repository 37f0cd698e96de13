// Link over MPI. The MPI code is a separate shared library loaded on demand, so that the program
// runs where MPI is not installed.
#pragma once

#include <memory>

#include "comm/process/link.h"

namespace bev {

// Initialises MPI, once per process. Throws Error(kDevice) if the library cannot be loaded.
std::unique_ptr<Link> load_mpi_link();

}  // namespace bev
