#include "infer/shared_numbers.h"

#include <algorithm>
#include <array>

namespace bev {

void SharedNumbers::broadcast(Group& group, int root) {
  auto size = static_cast<std::int64_t>(values_.size());
  group.broadcast({&size, Dtype::kI64, {1}}, root, "number of values").wait();
  values_.resize(static_cast<std::size_t>(size));
  if (size > 0) group.broadcast(view(0), root, "values").wait();
}

namespace {

// The first message: how many values there are, and as many of them as it holds.
constexpr std::size_t kFirst = 256;
using FirstMessage = std::array<double, kFirst>;

View view_of(FirstMessage& message) { return {message.data(), Dtype::kF64, {kFirst}}; }

}  // namespace

void SharedNumbers::send(Group& group, int to) {
  FirstMessage message = {};
  message[0] = static_cast<double>(values_.size());
  const std::size_t count = std::min(values_.size(), kFirst - 1);
  std::copy_n(values_.begin(), count, message.begin() + 1);
  group.send(view_of(message), to, 0, "values").wait();
  if (count < values_.size()) group.send(view(count), to, 0, "more values").wait();
}

void SharedNumbers::receive(Group& group, int from) {
  FirstMessage message = {};
  group.receive(view_of(message), from, 0, "values").wait();
  values_.resize(static_cast<std::size_t>(message[0]));
  const std::size_t count = std::min(values_.size(), kFirst - 1);
  std::copy_n(message.begin() + 1, count, values_.begin());
  if (count < values_.size()) group.receive(view(count), from, 0, "more values").wait();
}

}  // namespace bev
