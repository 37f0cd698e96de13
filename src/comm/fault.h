// Faults on purpose: a world that fails at a chosen call, to test what a failure does to the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace bev {

struct Fault {
  enum class Kind : std::uint8_t {
    kThrow,  // Error(kInternal)
    kStall,  // does nothing until the run is aborted
    kKill,   // SIGKILL to the process
  };
  int rank = 0;
  std::int64_t call = 1;  // the how manyth collective, send, receive or barrier of the rank
  Kind kind = Kind::kThrow;
};

// "rank=1,call=20,kind=stall", in any order; throws Error(kConfig) when a part is missing or wrong.
Fault parse_fault(std::string_view text);

// The given world, with the fault. Calls of groups of one count as well, so that the count does not
// depend on the layout more than the calls do. It must outlive its groups.
class FaultWorld final : public World {
 public:
  FaultWorld(World& world, const Fault& fault) : world_(world), fault_(fault) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool aborted() const override { return world_.aborted(); }
  Activity& activity() override { return world_.activity(); }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override;

  std::int64_t calls() const { return calls_; }  // so far
  // Before each call of a group: counts it, and strikes when it is the one.
  void count_call(const char* collective, std::string_view label);

 private:
  World& world_;
  Fault fault_;
  std::int64_t calls_ = 0;
};

}  // namespace bev
