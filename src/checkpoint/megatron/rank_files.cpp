#include "checkpoint/megatron/rank_files.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {

constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr const char* kModelFile = "model_optim_rng.pt";
constexpr const char* kOptimizerFile = "distrib_optim.pt";

// Ranks whose files there are: those of a world where the expert grid lies over the dense one.
std::vector<MegatronRank> ranks_of(const MegatronLayout& layout) {
  std::vector<MegatronRank> out;
  std::set<std::vector<std::int64_t>> seen;
  std::int64_t world = std::lcm(layout.tp, layout.etp * layout.ep);
  for (std::int64_t pp = 0; pp < layout.pp; ++pp) {
    for (std::int64_t i = 0; i < world; ++i) {
      MegatronRank rank{i % layout.tp, pp, 0, i / layout.etp % layout.ep, i % layout.etp};
      if (seen.insert({rank.tp, rank.pp, rank.ep}).second) out.push_back(rank);
    }
  }
  return out;
}

std::string folder_of(const MegatronRank& rank, const MegatronLayout& layout) {
  std::string name = fmt::format("{}{:02}", kRankPrefix, rank.tp);
  if (layout.pp > 1) name += fmt::format("_{:03}", rank.pp);
  if (layout.ep > 1) name += fmt::format("_{:03}", rank.ep);
  return name;
}

}  // namespace

RankFiles::RankFiles(const std::string& folder) : folder_(folder) { open_ranks(folder); }

std::size_t RankFiles::open_file(const std::string& folder, const std::string& name) {
  std::string path = join_path(folder, name);
  BEV_CHECK(path_exists(path), ErrorKind::kInput, path,
            ": is missing: the checkpoint is not whole, or not all of its folders were copied");
  mapped_.push_back(std::make_unique<MappedFile>(path));
  files_.push_back({name, mapped_.back()->bytes().size()});
  archives_.push_back(std::make_unique<TorchArchive>(mapped_.back()->bytes(), path));
  return archives_.size() - 1;
}

void RankFiles::open_ranks(const std::string& folder) {
  std::set<std::string> there;
  for (const std::string& name : list_directory(folder)) {
    if (name.starts_with(kRankPrefix)) there.insert(name);
  }
  std::string any = join_path(*there.begin(), kModelFile);
  {
    MappedFile file(join_path(folder, any));
    TorchArchive first(file.bytes(), join_path(folder, any));
    const PickleValue* args = first.root().find("args");
    BEV_CHECK(args != nullptr, ErrorKind::kInput, join_path(folder, any),
              ": has no arguments (args), which say how it is divided over ranks");
    layout_ = MegatronLayout::of_arguments(*args);
  }
  constexpr std::int64_t kMostRanks = 1 << 16;
  bool possible = layout_.tp <= kMostRanks && layout_.pp <= kMostRanks &&
                  layout_.ep <= kMostRanks && layout_.etp <= kMostRanks && !layout_.listed &&
                  layout_.tp * layout_.pp <= kMostRanks && layout_.etp * layout_.ep <= kMostRanks;
  BEV_CHECK(possible, ErrorKind::kInput, join_path(folder, any), ": its layout is not read",
            layout_.listed ? " (--pipeline-model-parallel-layout); save as torch_dist" : "");
  for (const MegatronRank& rank : ranks_of(layout_)) {
    std::string name = folder_of(rank, layout_);
    RankFile file{rank, open_file(folder, join_path(name, kModelFile)), {}};
    std::string optimizer = join_path(name, kOptimizerFile);
    if (path_exists(join_path(folder, optimizer))) file.optimizer = open_file(folder, optimizer);
    ranks_.push_back(file);
    there.erase(name);
  }
  BEV_CHECK(there.empty(), ErrorKind::kInput, folder, ": ", *there.begin(),
            " does not belong to a save of ", ranks_.size(),
            " ranks: the folder mixes two saves; remove those of the other");
}

RankFiles::Added RankFiles::add(std::size_t file, const PickleValue& value,
                                const std::string& name) {
  TorchTensor tensor = archives_[file]->tensor(value, name);
  tensors_.push_back(tensor);
  return {std::move(tensor.shape), tensor.dtype, concat(tensors_.size() - 1)};
}

std::span<const std::byte> RankFiles::open(const Piece& piece, const std::string& tensor,
                                           Dtype dtype, std::int64_t elements) {
  std::size_t index = 0;
  std::from_chars(piece.key.data(), piece.key.data() + piece.key.size(), index);
  const TorchTensor& stored = tensors_[index];
  bool fits = stored.dtype == dtype &&
              stored.bytes.size() >= static_cast<std::size_t>(elements) * size_of(dtype);
  BEV_CHECK(fits, ErrorKind::kInput, join_path(folder_, files_[piece.file].name), ": ",
            quote(tensor), " is of another type or size than on other ranks");
  return stored.bytes;
}

std::vector<std::string> RankFiles::verify() {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < archives_.size(); ++i) {
    for (const auto& [name, entry] : archives_[i]->zip().entries()) {
      if (intact(entry)) continue;
      problems.push_back(concat(join_path(folder_, files_[i].name), ": corrupt: ", name,
                                " does not have its checksum"));
    }
  }
  return problems;
}

}  // namespace bev
