// Group of one rank: the result of every collective is its input.
#pragma once

#include <cstddef>

#include "comm/group.h"

namespace bev {

class SingleGroup : public Group {
 public:
  SingleGroup(std::string name, int world_rank) : Group(std::move(name), 0, {world_rank}) {}

  Work all_reduce(const View&, Reduction, std::string_view) override { return {}; }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    return copy(in, out, label);
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    return copy(in, out, label);
  }
  Work broadcast(const View&, int, std::string_view) override { return {}; }
  Work all_to_all(const View& in, std::span<const std::int64_t>, const View& out,
                  std::span<const std::int64_t>, std::string_view label) override {
    return copy(in, out, label);
  }
  Work send(const View&, int, int, std::string_view label) override { no_peer(label); }
  Work receive(const View&, int, int, std::string_view label) override { no_peer(label); }
  void barrier(std::string_view) override {}
  bool capturable() const override { return true; }

 protected:
  // Copies within the memory that the rank computes in.
  virtual void copy_bytes(void* to, const void* from, std::size_t bytes);

 private:
  Work copy(const View& in, const View& out, std::string_view label);
  [[noreturn]] static void no_peer(std::string_view label);
};

}  // namespace bev
