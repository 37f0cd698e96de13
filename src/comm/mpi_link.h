// The link over MPI. MPI is in a library of its own beside the program and loaded when it is asked
// for, so that the program runs where no MPI is installed.
#pragma once

#include <memory>

#include "comm/link.h"

namespace bev {

// Initialises MPI, once in the life of a process. Error(kDevice) when the library cannot be loaded.
std::unique_ptr<Link> load_mpi_link();

}  // namespace bev
