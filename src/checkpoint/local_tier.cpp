#include "checkpoint/local_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "base/divide.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "checkpoint/step_folders.h"

namespace bev {

namespace {

constexpr char kOtherRank[] = "another rank could not";

View bytes_of(std::span<std::byte> bytes) {
  return {bytes.data(), Dtype::kU8, {static_cast<std::int64_t>(bytes.size())}};
}

std::string exchange_text(Group& world, std::string mine, int to, int from) {
  auto size = static_cast<std::int64_t>(mine.size());
  world.send({&size, Dtype::kI64, {1}}, to, 0, "size of a record").wait();
  world.send(bytes_of(std::as_writable_bytes(std::span(mine))), to, 0, "record").wait();
  world.receive({&size, Dtype::kI64, {1}}, from, 0, "size of a record").wait();
  std::string other(static_cast<std::size_t>(size), ' ');
  world.receive(bytes_of(std::as_writable_bytes(std::span(other))), from, 0, "record").wait();
  return other;
}

// Sends a file block by block, so that neither side buffers more.
void send_block(Group& world, const MappedFile& file, std::size_t block, int to) {
  std::span<const std::byte> bytes = file.bytes().subspan(block * kBlockBytes);
  bytes = bytes.first(std::min(kBlockBytes, bytes.size()));
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  world.send(bytes_of(copy), to, 0, "shard").wait();
}

std::vector<std::byte> receive_block(Group& world, std::uint64_t bytes, std::size_t block,
                                     int from) {
  std::vector<std::byte> received(std::min<std::size_t>(kBlockBytes, bytes - block * kBlockBytes));
  world.receive(bytes_of(received), from, 0, "shard").wait();
  return received;
}

std::size_t blocks_of(std::uint64_t bytes) { return ceil_div(bytes, kBlockBytes); }

}  // namespace

LocalSaver::LocalSaver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options,
                       std::int64_t jump)
    : StepSaver(engine, storage, pool, std::move(options)),
      jump_(jump % engine.model().mesh().world().size()),
      run_(name_run(world())) {}

std::string LocalSaver::record_name(int rank) const {
  return fmt::format("rank_{:05}_of_{:05}_{}.json", rank, world().size(), run_);
}

std::string LocalSaver::shard_path(std::int64_t iteration) const {
  return join_path(step_folder(options_.folder, iteration),
                   fmt::format("shard_{:05}_{}.safetensors", world().rank(), run_));
}

bool LocalSaver::all_written(const TrainingState& state, Written mine) {
  problem_ = mine.problem;
  if (any_rank(world(), !problem_.empty(), "local save")) {
    if (problem_.empty()) problem_ = kOtherRank;
    return false;
  }
  record_ = manifest_json(record_of(state, mine.shard));
  partner_record_.clear();
  if (jump_ != 0) exchange_copies(step_folder(options_.folder, state.iteration), mine.shard);
  return true;
}

// Manifest of this rank's shard only.
Manifest LocalSaver::record_of(const TrainingState& state, const ShardEntry& shard) const {
  Manifest record = manifest(state);
  std::map<std::string, GlobalTensor> all = std::exchange(record.tensors, {});
  for (const std::string& piece : shard.pieces) {
    std::string name = parse_piece_name(piece)->first;
    record.tensors[name] = all.at(name);
  }
  if (!shard.file.empty()) record.shards.push_back(shard);
  return record;
}

// A partner on the same machine already has access to the file and gets no copy.
void LocalSaver::exchange_copies(const std::string& folder, const ShardEntry& shard) {
  int ranks = world().size(), jump = static_cast<int>(jump_);
  int to = (world().rank() + jump) % ranks, from = (world().rank() - jump + ranks) % ranks;
  partner_record_ = exchange_text(world(), record_, to, from);
  Manifest partner = parse_manifest_part(partner_record_, record_name(from));
  const ShardEntry entry = partner.shards.empty() ? ShardEntry() : partner.shards.front();
  std::string path = join_path(folder, entry.file);
  std::int32_t wanted = !entry.file.empty() && !path_exists(path) ? 1 : 0, sends = 0;
  world().send({&wanted, Dtype::kI32, {1}}, from, 0, "wish for a copy").wait();
  world().receive({&sends, Dtype::kI32, {1}}, to, 0, "wish for a copy").wait();
  std::size_t out = sends != 0 ? blocks_of(shard.bytes) : 0;
  std::size_t in = wanted != 0 ? blocks_of(entry.bytes) : 0;
  std::optional<MappedFile> file;
  if (out > 0) file.emplace(join_path(folder, shard.file));
  // A failing disk must not stop the exchange, because the partner waits for it.
  auto attempt = [&](auto&& action) {
    try {
      if (problem_.empty()) action();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kIo) throw;
      problem_ = error.what();
    }
  };
  attempt([&] {
    storage_.make_folder(folder);
    if (in > 0) copy_ = storage_.create(path);
  });
  for (std::size_t i = 0; i < std::max(in, out); ++i) {
    if (i < out) send_block(world(), *file, i, to);
    if (i >= in) continue;
    std::vector<std::byte> received = receive_block(world(), entry.bytes, i, from);
    attempt([&] { copy_->write(received); });
  }
}

std::string LocalSaver::settle(const TrainingState& state) {
  BEV_CHECK(problem_.empty(), ErrorKind::kIo, problem_);
  std::string folder = step_folder(options_.folder, state.iteration);
  std::unique_ptr<OutputFile> copy = std::move(copy_);
  if (copy) copy->sync();
  storage_.make_folder(folder);
  replace_file(storage_, join_path(folder, record_name(world().rank())), record_);
  if (!partner_record_.empty()) {
    int from = (world().rank() - static_cast<int>(jump_) + world().size()) % world().size();
    std::string path = join_path(folder, record_name(from));
    if (!path_exists(path)) replace_file(storage_, path, partner_record_);
  }
  remove_other_steps(state.iteration);
  return "";
}

// Keeps this step and the last one that all ranks are known to have; removes all others, also later
// steps of another run. Ranks of a machine do it concurrently; a leftover is removed after the next
// save.
void LocalSaver::remove_other_steps(std::int64_t iteration) {
  if (last_good_ < 0) return;
  for (const std::string& name : list_directory(options_.folder)) {
    std::optional<std::int64_t> step = parse_step(name);
    if (!step || *step == iteration || *step == last_good_) continue;
    try {
      storage_.remove_tree(join_path(options_.folder, name));
    } catch (const Error&) {
    }
  }
}

std::string LocalSaver::conclude(const TrainingState& state, std::string mine) {
  if (mine.empty()) mine = problem_;
  copy_.reset();
  int rank = world().rank();
  if (!mine.empty() && rank != 0) log_warning(concat("rank ", rank, ": ", mine));
  bool failed = any_rank(world(), !mine.empty(), "local save");
  if (!failed) last_good_ = state.iteration;
  if (failed && mine.empty()) mine = kOtherRank;
  return mine;
}

namespace {

// One line per record in the folder: "iter_0000100 rank_00003_of_00008_5f3c21ab.json".
std::string list_records(const std::string& folder) {
  std::string lines;
  if (!is_directory(folder)) return lines;
  for (const std::string& step : list_directory(folder)) {
    std::string path = join_path(folder, step);
    if (!step.starts_with(kStepPrefix) || !is_directory(path)) continue;
    for (const std::string& file : list_directory(path)) {
      bool record = file.starts_with("rank_") && file.ends_with(".json");
      if (record) lines += concat(step, " ", file, "\n");
    }
  }
  return lines;
}

// Records of all ranks, each line prefixed with the rank, on every rank.
std::string list_all_records(Group& world, const std::string& folder) {
  std::string all;
  std::vector<std::string> texts = gather_texts(world, list_records(folder));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const std::string& line : split(texts[rank], '\n')) {
      if (!line.empty()) all += concat(rank, " ", line, "\n");
    }
  }
  return broadcast_text(world, all, 0);
}

}  // namespace

std::unique_ptr<LocalStep> LocalStep::find(Group& world, const std::string& folder) {
  // Records of each save, keyed by iteration, number of ranks and run, with a holder of each.
  std::map<std::tuple<std::int64_t, int, std::string>, std::map<std::string, int>> saves;
  for (const std::string& line : split(list_all_records(world, folder), '\n')) {
    int holder = 0, rank = 0, ranks = 0;
    long long iteration = 0;
    char run[64] = "", record[128] = "";
    if (std::sscanf(line.c_str(), "%d iter_%lld %127s", &holder, &iteration, record) != 3) continue;
    if (std::sscanf(record, "rank_%d_of_%d_%63[^.]", &rank, &ranks, run) != 3) continue;
    saves[{iteration, ranks, run}].emplace(record, holder);
  }
  std::unique_ptr<LocalStep> found;
  for (const auto& [save, records] : saves) {
    if (static_cast<int>(records.size()) != std::get<1>(save)) continue;
    found.reset(new LocalStep(world, step_folder(folder, std::get<0>(save))));
    found->iteration_ = std::get<0>(save);
    for (const auto& [record, holder] : records) {
      found->records_.push_back(record);
      found->holders_.push_back(holder);
    }
  }
  return found;
}

Manifest LocalStep::gather_manifest() {
  Manifest whole;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    std::string path = join_path(folder_, records_[i]), text;
    if (world_.rank() == holders_[i]) text = read_file(path);
    Manifest part = parse_manifest_part(broadcast_text(world_, std::move(text), holders_[i]), path);
    part.shards.insert(part.shards.begin(), whole.shards.begin(), whole.shards.end());
    part.tensors.insert(whole.tensors.begin(), whole.tensors.end());
    whole = std::move(part);
  }
  check_manifest(whole, folder_);
  return whole;
}

void LocalStep::fetch_shards(const Manifest& manifest, const std::vector<bool>& needed) {
  std::size_t shards = manifest.shards.size();
  auto ranks = static_cast<std::size_t>(world_.size());
  enum : std::int32_t { kHas = 1, kWants = 2 };
  std::vector<std::int32_t> mine(shards), all(shards * ranks);
  for (std::size_t i = 0; i < shards; ++i) {
    bool here = path_exists(join_path(folder_, manifest.shards[i].file));
    mine[i] = here ? kHas : needed[i] ? kWants : 0;
  }
  auto view = [](std::vector<std::int32_t>& words) {
    return View{words.data(), Dtype::kI32, {static_cast<std::int64_t>(words.size())}};
  };
  world_.all_gather(view(mine), view(all), "shards of ranks").wait();
  for (std::size_t i = 0; i < shards; ++i) {
    auto state = [&](std::size_t rank) { return all[rank * shards + i]; };
    std::size_t source = 0;
    while (source < ranks && state(source) != kHas) ++source;
    BEV_CHECK(source < ranks, ErrorKind::kInput, manifest.shards[i].file,
              ": no rank has it any more");
    for (std::size_t to = 0; to < ranks; ++to) {
      if (state(to) == kWants) {
        pass_shard(manifest.shards[i], static_cast<int>(source), static_cast<int>(to));
      }
    }
  }
}

void LocalStep::pass_shard(const ShardEntry& shard, int source, int to) {
  std::string path = join_path(folder_, shard.file);
  if (world_.rank() == source) {
    MappedFile file(path);
    BEV_CHECK(file.bytes().size() == shard.bytes, ErrorKind::kInput, path, ": truncated");
    for (std::size_t i = 0; i < blocks_of(shard.bytes); ++i) send_block(world_, file, i, to);
  } else if (world_.rank() == to) {
    std::unique_ptr<Storage> disk = make_disk_storage();
    disk->make_folder(folder_);
    std::string temporary = concat(path, ".tmp-", to);
    {
      std::unique_ptr<OutputFile> file = disk->create(temporary);
      for (std::size_t i = 0; i < blocks_of(shard.bytes); ++i) {
        file->write(receive_block(world_, shard.bytes, i, source));
      }
    }
    disk->rename(temporary, path);
  }
}

}  // namespace bev
