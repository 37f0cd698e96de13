#include "infer/shared_numbers.h"

namespace bev {

void SharedNumbers::broadcast(Group& group, int root) {
  auto size = static_cast<std::int64_t>(values_.size());
  group.broadcast({&size, Dtype::kI64, {1}}, root, "number of values").wait();
  values_.resize(static_cast<std::size_t>(size));
  if (size > 0) group.broadcast(view(), root, "values").wait();
}

void SharedNumbers::send(Group& group, int to) {
  auto size = static_cast<std::int64_t>(values_.size());
  group.send({&size, Dtype::kI64, {1}}, to, 0, "number of values").wait();
  if (size > 0) group.send(view(), to, 0, "values").wait();
}

void SharedNumbers::receive(Group& group, int from) {
  std::int64_t size = 0;
  group.receive({&size, Dtype::kI64, {1}}, from, 0, "number of values").wait();
  values_.resize(static_cast<std::size_t>(size));
  if (size > 0) group.receive(view(), from, 0, "values").wait();
}

}  // namespace bev
