#include "data/indexed/prefix_lock.h"

#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

namespace bev {

PrefixLock::PrefixLock(const std::string& prefix, LockWait wait) : lock_(prefix + ".lock") {
  LockResult result = lock_.try_lock();
  if (result == LockResult::kBusy) {
    std::string holder = lock_.text();
    BEV_CHECK(wait == LockWait::kForever, ErrorKind::kIo, prefix, ": another run writes it",
              holder.empty() ? "" : concat(" (process ", holder, ")"),
              "; wait for it, or write to another name");
    log_info(concat("waiting for ", holder.empty() ? "another process" : "process " + holder,
                    ", which writes ", prefix));
    result = lock_.lock();
  }
  BEV_CHECK(result == LockResult::kHeld, ErrorKind::kIo, "cannot lock ", lock_.path(),
            ": the file system has no locks; write to another one");
  lock_.write(concat(::getpid(), "\n"));
}

}  // namespace bev
