// Mutation testing of communication: a world that records its operations and can corrupt one of
// them, to check that a test fails.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "verify/layout_check.h"

namespace bev::test {

struct Exchange {
  std::string group, collective, label;
  auto operator<=>(const Exchange&) const = default;
};

enum class Mutation : std::uint8_t {
  // Nothing arrives from the other members: a sum is the rank's own summand, and received data is
  // zero. (Unchanged memory might still hold correct values of an earlier operation.)
  kRemoved,
  kDoubled,  // reductions only: each rank's result is summed over the group again
};
struct Mutant {
  Exchange exchange;
  Mutation mutation = Mutation::kRemoved;
  auto operator<=>(const Mutant&) const = default;
};
std::string to_text(const Mutant& mutant);

// Corrupts the first operation of that name in each group, on all members alike; for messages, the
// first that each member receives.
class MutantFilter final : public WorldFilter {
 public:
  explicit MutantFilter(std::optional<Mutant> mutant = {});
  ~MutantFilter() override;
  std::unique_ptr<World> wrap(World& world) override;
  // Operations of all ranks in groups of more than one.
  std::set<Exchange> exchanges() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace bev::test
