// Link over TCP. Rendezvous: process 0 listens at a known address; the others connect to it, learn
// each other's addresses, and connect pairwise (full mesh).
#pragma once

#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/process/link.h"

namespace bev {

// Returns when all processes are connected. Throws Error(kComm) naming the processes missing after
// the timeout, or the address that cannot be used.
std::unique_ptr<Link> connect_tcp_link(const Launch& launch, double timeout_seconds);

// For process 0 if it must end before the processes are connected: waits for the others and makes
// their connect_tcp_link() throw Error(kConfig) with the message. Gives up after the timeout.
void refuse_tcp_link(const Launch& launch, const std::string& message, double timeout_seconds);

}  // namespace bev
