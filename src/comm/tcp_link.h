// A link over TCP sockets. Process 0 listens where all know it; the others report there, learn each
// other's addresses, and connect, so that every two processes share one connection.
#pragma once

#include <memory>

#include "comm/launch.h"
#include "comm/link.h"

namespace bev {

// Returns when all processes are connected. Error(kComm) that names those that did not come within
// the time, or the address that cannot be used.
std::unique_ptr<Link> connect_tcp_link(const Launch& launch, double timeout_seconds);

}  // namespace bev
