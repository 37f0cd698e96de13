// Files that are mapped, and cut by someone else meanwhile or on a disk that fails: looking at a
// page that is gone is a signal of the system.
#pragma once

namespace bev {

// From here on that signal ends the process as other bad files do, with an error that names the
// file.
void report_lost_pages();

}  // namespace bev
