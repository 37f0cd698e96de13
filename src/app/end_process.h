// The end of a process whose threads cannot be waited for.
#pragma once

namespace bev {

// Nothing is unwound or flushed.
[[noreturn]] void end_process(int exit_code);

}  // namespace bev
