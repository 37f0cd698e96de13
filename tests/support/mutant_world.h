// A world that writes down which exchanges take place and can spoil one of them, to see whether
// anybody notices.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "train/layout_check.h"

namespace bev::test {

struct Exchange {
  std::string group, collective, label;
  auto operator<=>(const Exchange&) const = default;
};

enum class Mutation : std::uint8_t {
  // Nothing comes from the other members: a sum is the own part of it, and what would be received
  // is zero. (Memory left as it is may still hold the right values of an earlier exchange.)
  kRemoved,
  kDoubled,  // of sums: each rank's sum is summed once more over the group
};
struct Mutant {
  Exchange exchange;
  Mutation mutation = Mutation::kRemoved;
  auto operator<=>(const Mutant&) const = default;
};
std::string to_text(const Mutant& mutant);

// Spoils the first exchange of that name in each group, on all members alike; of messages the first
// that each member receives.
class MutantFilter final : public WorldFilter {
 public:
  explicit MutantFilter(std::optional<Mutant> mutant = {});
  ~MutantFilter() override;
  std::unique_ptr<World> wrap(World& world) override;
  // What all ranks together exchanged in groups of more than one.
  std::set<Exchange> exchanges() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace bev::test
