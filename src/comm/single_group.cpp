#include "comm/single_group.h"

#include <cstring>

#include "base/error.h"

namespace bev {

void SingleGroup::copy_bytes(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

Work SingleGroup::copy(const View& in, const View& out, std::string_view label) {
  BEV_CHECK(in.bytes() == out.bytes(), ErrorKind::kInternal, label, ": a group of one copies ",
            in.shape, " to ", out.shape);
  if (in.data != out.data && in.bytes() > 0) copy_bytes(out.data, in.data, in.bytes());
  return {};
}

void SingleGroup::no_peer(std::string_view label) {
  BEV_FAIL(ErrorKind::kInternal, label, ": a group of one has nobody to talk to");
}

std::unique_ptr<Group> make_single_group(std::string name, int world_rank) {
  return std::make_unique<SingleGroup>(std::move(name), world_rank);
}

}  // namespace bev
