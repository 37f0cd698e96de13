#include "checkpoint/agreement.h"

#include <cstdint>
#include <utility>

namespace bev {

namespace {
View bytes_of(std::string& text) {
  return {text.data(), Dtype::kU8, {static_cast<std::int64_t>(text.size())}};
}
}  // namespace

bool any_rank(Group& world, bool mine, const char* what) {
  std::int32_t word = mine ? 1 : 0;
  world.all_reduce({&word, Dtype::kI32, {1}}, Reduction::kMax, what).wait();
  return word != 0;
}

std::vector<std::string> gather_texts(Group& world, std::string mine) {
  auto size = static_cast<std::int64_t>(mine.size());
  if (world.rank() != 0) {
    world.send({&size, Dtype::kI64, {1}}, 0, 0, "size of a report").wait();
    if (size > 0) world.send(bytes_of(mine), 0, 0, "report").wait();
    return {};
  }
  std::vector<std::string> texts{std::move(mine)};
  for (int rank = 1; rank < world.size(); ++rank) {
    world.receive({&size, Dtype::kI64, {1}}, rank, 0, "size of a report").wait();
    std::string& text = texts.emplace_back(static_cast<std::size_t>(size), ' ');
    if (size > 0) world.receive(bytes_of(text), rank, 0, "report").wait();
  }
  return texts;
}

std::string broadcast_text(Group& world, std::string text, int root) {
  auto size = static_cast<std::int64_t>(text.size());
  world.broadcast({&size, Dtype::kI64, {1}}, root, "size of a text").wait();
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(bytes_of(text), root, "text").wait();
  return text;
}

}  // namespace bev
