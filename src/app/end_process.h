// Ends a process whose threads cannot be joined.
#pragma once

namespace bev {

// Exits immediately: nothing is unwound or flushed.
[[noreturn]] void end_process(int exit_code);

}  // namespace bev
