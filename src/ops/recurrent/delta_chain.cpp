#include "ops/recurrent/delta_chain.h"

#include <algorithm>
#include <map>

namespace bev {

namespace {

bool goes_on(const DocumentPiece& piece) { return piece.begin + piece.count < piece.length; }
bool shared(const DocumentPiece& piece) { return piece.begin > 0 || goes_on(piece); }

// A shared piece of a document.
struct Member {
  std::int32_t begin = 0;
  std::int64_t item = 0;  // among all ranks
  std::int64_t own = -1;  // row of this rank's states; -1: another rank's
};
using Members = std::map<std::int32_t, std::vector<Member>>;  // by document

std::int64_t most_items(std::span<const TokenSet> sets) {
  std::int64_t most = 0;
  for (const TokenSet& set : sets) {
    most = std::max<std::int64_t>(most, std::ranges::count_if(set.pieces(), shared));
  }
  return most;
}

Members shared_pieces(std::span<const TokenSet> sets, std::size_t rank, std::int64_t items) {
  Members members;
  for (std::size_t r = 0; r < sets.size(); ++r) {
    std::int64_t row = 0;
    for (const DocumentPiece& piece : sets[r].pieces()) {
      if (!shared(piece)) continue;
      const std::int64_t item = static_cast<std::int64_t>(r) * items + row;
      members[piece.document].push_back({piece.begin, item, r == rank ? row : -1});
      ++row;
    }
  }
  for (auto& [document, list] : members) {
    std::ranges::sort(list, {}, [](const Member& member) { return member.begin; });
  }
  return members;
}

void add_links(const std::vector<Member>& members, DeltaChain& chain) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].own < 0) continue;
    for (std::size_t j = 0; j < i; ++j) {
      chain.entering.push_back({members[i].own, members[j].item});
    }
    for (std::size_t j = members.size() - 1; j > i; --j) {
      chain.leaving.push_back({members[i].own, members[j].item});
    }
  }
}

std::vector<RecurrentRun> runs_of(const TokenSet& own) {
  std::vector<RecurrentRun> runs;
  std::int64_t row = 0;
  for (const DocumentPiece& piece : own.pieces()) {
    runs.push_back({piece.row, piece.count, piece.begin > 0 ? row : -1, goes_on(piece) ? row : -1});
    row += shared(piece) ? 1 : 0;
  }
  return runs;
}

}  // namespace

DeltaChain DeltaChain::make(std::span<const TokenSet> sets, std::size_t rank) {
  DeltaChain chain;
  chain.runs = runs_of(sets[rank]);
  chain.items = most_items(sets);
  for (const auto& [document, members] : shared_pieces(sets, rank, chain.items)) {
    add_links(members, chain);
  }
  return chain;
}

DeltaChain DeltaChain::make(const TokenSet& own) {
  DeltaChain chain;
  for (const DocumentPiece& piece : own.pieces()) chain.runs.push_back({piece.row, piece.count});
  return chain;
}

}  // namespace bev
