#include "checkpoint/shard_save.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>

#include "base/error.h"
#include "bridge/safetensors.h"
#include "checkpoint/checksum.h"
#include "kernels/device.h"

namespace bev {

std::vector<SourcePiece> pieces_to_write(Engine& engine, bool with_optimizer,
                                         std::int64_t least_elements) {
  std::vector<SourcePiece> pieces;
  for (const StatePart& part : owned_state(engine, with_optimizer)) {
    Range mine = written_range(engine, part, least_elements);
    const Param& param = *part.param;
    ParamPart cut = part_of(param.split, engine.model().mesh());
    for (const HeldBox& box : held_boxes(param.shape, param.split, cut, mine)) {
      pieces.push_back({piece_name(part.name, box.global), part.saved_dtype(), box, part});
    }
  }
  std::ranges::stable_sort(pieces, std::greater{},
                           [](const SourcePiece& piece) { return size_of(piece.dtype); });
  return pieces;
}

namespace {

// Packs a byte stream into staging blocks. A new block is started while the last copies into the
// previous one are still in flight, so that the device never waits for the host.
class BlockFiller {
 public:
  BlockFiller(StagingPool& pool, StagingQueue& queue, SideCopier& copier)
      : pool_(pool), queue_(queue), copier_(copier) {}

  // Space for the next bytes: at least one, at most `wanted`. The caller must fill it next.
  std::span<std::byte> next(std::size_t wanted) {
    if (block_.data == nullptr) block_ = pool_.take_at_once(copier_);
    if (block_.data == nullptr) {
      push_earlier();  // never wait for a block while holding one
      block_ = pool_.take(copier_);
    }
    std::size_t count = std::min(wanted, kBlockBytes - block_.used);
    std::byte* begin = block_.data.get() + block_.used;
    block_.used += count;
    return {begin, count};
  }
  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      std::span<std::byte> room = next(bytes.size());
      std::memcpy(room.data(), bytes.data(), room.size());
      bytes = bytes.subspan(room.size());
      filled();
    }
  }
  // Called after every fill, which may still be in flight; fills complete in order.
  void filled(Work fill = {}) {
    fill_ = std::move(fill);
    if (block_.used == kBlockBytes) hand_on();
  }
  void finish() {
    hand_on();
    hand_on();
  }

 private:
  void push_earlier() {
    if (earlier_.data == nullptr) return;
    earlier_fill_.wait();
    queue_.push(std::move(earlier_));
  }
  void hand_on() {
    push_earlier();
    earlier_ = std::exchange(block_, {});
    earlier_fill_ = std::exchange(fill_, {});
  }

  StagingPool& pool_;
  StagingQueue& queue_;
  SideCopier& copier_;
  StagingBlock block_, earlier_;
  Work fill_, earlier_fill_;
};

}  // namespace

struct ShardSave::Job {
  std::vector<SourcePiece> pieces;
  std::unique_ptr<SideCopier> copier;
  Storage& storage;
  StagingPool& pool;
  std::string path;
  StagingQueue queue = {};
  std::future<void> copying = {};
  std::future<ShardEntry> writing = {};

  void copy() {
    try {
      BlockFiller filler(pool, queue, *copier);
      std::vector<TensorSpec> specs;
      for (const SourcePiece& piece : pieces) {
        specs.push_back({piece.name, piece.dtype, piece.box.global.shape()});
      }
      std::string header = safetensors_header(specs);
      filler.write(std::as_bytes(std::span(header)));
      for (const SourcePiece& piece : pieces) copy_piece(piece, filler);
      filler.finish();
    } catch (...) {
      queue.close();
      throw;
    }
    queue.close();
  }

  void copy_piece(const SourcePiece& piece, BlockFiller& filler) {
    const StatePart& part = piece.part;
    Box whole = whole_box(part.param->local);
    View bytes{part.memory.data, Dtype::kU8, {static_cast<std::int64_t>(part.memory.bytes())}};
    auto item = static_cast<std::int64_t>(size_of(piece.dtype));
    for (const BoxRun& run : common_runs(whole, piece.box.local, piece.box.local)) {
      if (part.packed()) {
        copy_packed(part, {run.a - part.range.begin, run.a - part.range.begin + run.count}, filler);
        continue;
      }
      std::int64_t at = (run.a - part.range.begin) * item, end = at + run.count * item;
      while (at < end) {
        std::span<std::byte> room = filler.next(static_cast<std::size_t>(end - at));
        auto count = static_cast<std::int64_t>(room.size());
        filler.filled(copier->fetch(bytes.rows(at, at + count), room.data()));
        at += count;
      }
    }
  }

  // Writes 8-bit moments dequantised to bf16. Scales are read for whole blocks.
  void copy_packed(const StatePart& part, Range elements, BlockFiller& filler) {
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    std::vector<std::uint8_t> codes, scales;
    std::vector<float> numbers;
    std::vector<Bf16> rounded;
    while (elements.size() > 0) {
      std::int64_t block = elements.begin / kMomentBlock, first = block * kMomentBlock;
      std::int64_t end = std::min(first + kMost, elements.end);
      codes.resize(static_cast<std::size_t>(end - first));
      scales.resize(static_cast<std::size_t>(moment_blocks(end - first)));
      numbers.resize(codes.size());
      Work arrival = copier->fetch(part.memory.rows(first, end), codes.data());
      copier->fetch(part.scales.rows(block, block + moment_blocks(end - first)), scales.data())
          .wait();
      arrival.wait();
      unpack_moments(part.format, codes.data(), scales.data(), end - first, numbers.data());
      rounded.clear();
      for (std::int64_t i = elements.begin - first; i < end - first; ++i) {
        rounded.emplace_back(numbers[static_cast<std::size_t>(i)]);
      }
      filler.write(std::as_bytes(std::span(rounded)));
      elements.begin = end;
    }
  }

  // A failing disk must not stop the copy: blocks are still returned to the pool.
  ShardEntry write() {
    ShardEntry entry;
    std::unique_ptr<OutputFile> file;
    std::exception_ptr failure;
    auto attempt = [&](auto&& action) {
      try {
        if (!failure) action();
      } catch (...) {
        failure = std::current_exception();
      }
    };
    attempt([&] {
      storage.make_folder(parent_path(path));
      file = storage.create(path);
    });
    while (std::optional<StagingBlock> block = queue.pop()) {
      attempt([&] {
        entry.checksums.push_back(checksum(block->bytes()));
        file->write(block->bytes());
        entry.bytes += block->used;
      });
      pool.give(std::move(*block));
    }
    attempt([&] { file->sync(); });
    if (failure) std::rethrow_exception(failure);
    entry.file = path.substr(path.rfind('/') + 1);
    for (const SourcePiece& piece : pieces) entry.pieces.push_back(piece.name);
    return entry;
  }
};

ShardSave::ShardSave(Engine& engine, std::vector<SourcePiece> pieces, Storage& storage,
                     StagingPool& pool, const std::string& path)
    : job_(new Job{std::move(pieces),
                   engine.model().ctx().kernels.device.open_copier(engine.model().ctx().stream),
                   storage, pool, path}) {
  job_->copier->follow();
  job_->writing = std::async(std::launch::async, [job = job_.get()] { return job->write(); });
  job_->copying = std::async(std::launch::async, [job = job_.get()] { job->copy(); });
}

ShardSave::~ShardSave() {
  if (job_->copying.valid()) job_->copying.wait();
  if (job_->writing.valid()) job_->writing.wait();
}

void ShardSave::wait_copied() {
  if (job_->copying.valid()) job_->copying.wait();
}

bool ShardSave::written(double seconds) const {
  return job_->writing.wait_for(std::chrono::duration<double>(seconds)) ==
         std::future_status::ready;
}

ShardEntry ShardSave::result() {
  ShardEntry entry = job_->writing.get();
  job_->copying.get();
  return entry;
}

}  // namespace bev
