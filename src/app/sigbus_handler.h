// SIGBUS handler: reading a memory-mapped file that was truncated, or whose disk failed, becomes an
// error naming the file.
#pragma once

namespace bev {

// Installs the handler. It ends the process with the exit code of a bad input file.
void install_sigbus_handler();

}  // namespace bev
