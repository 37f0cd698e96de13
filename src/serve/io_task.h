// What another thread asks an I/O thread to do.
#pragma once

namespace bev {

class IoTask {
 public:
  virtual ~IoTask() = default;
  virtual void run() = 0;
};

}  // namespace bev
