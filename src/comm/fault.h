// Fault injection: a world that fails at a chosen call, to test how the other ranks react.
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
    kThrow,  // throws Error(kInternal)
    kStall,  // blocks until the run is aborted
    kKill,   // sends SIGKILL to the process
  };
  int rank = 0;
  std::int64_t call = 1;  // index, from 1, among the rank's collectives, messages and barriers
  Kind kind = Kind::kThrow;
};

// Parses "rank=1,call=20,kind=stall", in any order; throws Error(kConfig) if a part is missing or
// invalid.
Fault parse_fault(std::string_view text);

// Wraps a world and injects the fault. Calls on groups of one rank count too, so that the count
// depends on the layout as little as possible. It must outlive its groups.
class FaultWorld final : public World {
 public:
  FaultWorld(World& world, const Fault& fault) : world_(world), fault_(fault) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool aborted() const override { return world_.aborted(); }
  Activity& activity() override { return world_.activity(); }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override;

  std::int64_t calls() const { return calls_; }  // number of calls so far
  // Called before each group operation: counts it and triggers the fault at the chosen one.
  void count_call(const char* collective, std::string_view label);

 private:
  World& world_;
  Fault fault_;
  std::int64_t calls_ = 0;
};

}  // namespace bev
