#include "train/weight_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/philox.h"
#include "base/text.h"
#include "parallel/rank_model.h"

namespace bev {

namespace {

std::int64_t hash_bytes(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = mix_bits(hash ^ word);
  }
  return static_cast<std::int64_t>(hash);
}

// The parameters of one kind, dense or of experts, and the ranks that hold copies of them.
struct Copies {
  Group& group;
  std::vector<const Param*> params = {};
  std::vector<std::int64_t> hashes = {};
};

// The first weight in which ranks differ, and the ranks in the minority: of two, the second.
std::string first_difference(const Copies& copies) {
  const auto count = static_cast<std::int64_t>(copies.hashes.size());
  std::vector<std::int64_t> mine = copies.hashes;
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(copies.group.size()));
  copies.group.host()
      .all_gather({mine.data(), Dtype::kI64, {count}},
                  {all.data(), Dtype::kI64, {static_cast<std::int64_t>(all.size())}},
                  "hashes of weights")
      .wait();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::map<std::int64_t, std::vector<int>> holders;
    for (int rank = 0; rank < copies.group.size(); ++rank) {
      const std::int64_t hash = all[static_cast<std::size_t>(rank) * mine.size() + i];
      holders[hash].push_back(copies.group.members()[static_cast<std::size_t>(rank)]);
    }
    if (holders.size() == 1) continue;
    const auto common = std::ranges::max_element(holders, [](const auto& a, const auto& b) {
      return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                                : a.second.front() > b.second.front();
    });
    std::vector<std::string> culprits, others;
    for (const auto& [hash, ranks] : holders) {
      for (int rank : ranks) {
        (hash == common->first ? others : culprits).push_back(std::to_string(rank));
      }
    }
    return concat("weight ", copies.params[i]->name, " of rank ", join(culprits, ", "),
                  " differs from that of rank ", join(others, ", "));
  }
  return "";
}

// The finding of the lowest rank that has one, on every rank.
std::string agree(Group& world, const std::string& found) {
  constexpr std::size_t kText = 512;
  std::vector<std::uint8_t> mine(kText), all(kText * static_cast<std::size_t>(world.size()));
  std::memcpy(mine.data(), found.data(), std::min(found.size(), kText - 1));
  world.host()
      .all_gather({mine.data(), Dtype::kU8, {static_cast<std::int64_t>(kText)}},
                  {all.data(), Dtype::kU8, {static_cast<std::int64_t>(all.size())}},
                  "differing weights")
      .wait();
  for (std::size_t at = 0; at < all.size(); at += kText) {
    if (all[at] != 0) return reinterpret_cast<const char*>(all.data() + at);
  }
  return "";
}

}  // namespace

std::string find_differing_weights(RankModel& model) {
  ParamStore& store = model.store();
  const Mesh& mesh = model.mesh();
  const ShardPlan& plan = store.plan();
  const bool sharded = plan.splits(ShardingStrategy::kOptimGradsParams);
  const auto group_of = [&](bool experts) -> Group& {
    if (!sharded) return mesh.group(experts ? MeshGroup::kEdp : MeshGroup::kGrads);
    return mesh.group(experts ? MeshGroup::kExpertReplicas : MeshGroup::kReplicas);
  };
  Copies dense{group_of(false)}, experts{group_of(true)};
  for (const Param* param : store.params()) {
    View value;
    WeightLease lease;
    if (sharded) {
      value = store.owned_value(*param).value;
    } else {
      lease = store.local_value(*param);
      value = lease.view;
    }
    std::vector<std::byte> bytes(value.bytes());
    if (!bytes.empty()) model.ctx().download(value, bytes.data());
    Copies& copies = param->split.of_experts() ? experts : dense;
    copies.params.push_back(param);
    copies.hashes.push_back(hash_bytes(bytes));
  }
  std::string found = first_difference(dense);
  const std::string more = first_difference(experts);
  return agree(mesh.world(), found.empty() ? more : found);
}

}  // namespace bev
