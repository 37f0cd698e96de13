// Numbers that one rank knows and others need: written and read by the same code, in one order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"

namespace bev {

class SharedNumbers {
 public:
  // writes: pass() appends the values; else it reads them.
  explicit SharedNumbers(bool writes) : writes_(writes) {}

  template <class T>
  void pass(T& value) {
    if (writes_) {
      values_.push_back(static_cast<double>(value));
    } else {
      value = static_cast<T>(values_.at(next_++));
    }
  }
  // each(element) passes one element.
  template <class List, class Each>
  void pass_list(List& list, const Each& each) {
    auto size = static_cast<std::int64_t>(list.size());
    pass(size);
    list.resize(static_cast<std::size_t>(size));
    for (auto& value : list) each(value);
  }
  template <class List>
  void pass_list(List& list) {
    pass_list(list, [this](auto& value) { pass(value); });
  }

  // All members get the numbers of the root.
  void broadcast(Group& group, int root);
  // From the rank that writes to the one that reads: one message, and another for what is more than
  // a few numbers.
  void send(Group& group, int to);
  void receive(Group& group, int from);

 private:
  // The values from one on.
  View view(std::size_t begin) {
    return {
        values_.data() + begin, Dtype::kF64, {static_cast<std::int64_t>(values_.size() - begin)}};
  }

  bool writes_;
  std::vector<double> values_;
  std::size_t next_ = 0;
};

}  // namespace bev
