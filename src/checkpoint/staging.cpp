#include "checkpoint/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "kernels/device.h"

namespace bev {

namespace {
// Alignment of a huge page: otherwise the first touch takes longer than the copy.
constexpr std::align_val_t kAlignment{std::size_t{2} << 20};
}  // namespace

void FreeStaging::operator()(std::byte* data) const {
  if (unpin != nullptr) unpin(data);
  ::operator delete(data, kAlignment);
}

namespace {
// Without data if the system is out of memory.
StagingBlock make_block(SideCopier& copier) {
  void* memory = ::operator new(kBlockBytes, kAlignment, std::nothrow);
  if (memory == nullptr) return {};
  ::madvise(memory, kBlockBytes, MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(memory);
  return {std::unique_ptr<std::byte, FreeStaging>(data, {copier.pin(data, kBlockBytes)})};
}
}  // namespace

struct StagingPool::State {
  std::mutex mutex;
  std::condition_variable given;
  std::size_t made = 0, left = 0;  // blocks in existence, and blocks that may still be made
  std::vector<StagingBlock> free;

  // If the system is out of memory, the existing blocks have to suffice.
  StagingBlock make(SideCopier& copier) {
    if (left == 0) return {};
    StagingBlock block = make_block(copier);
    left = block.data == nullptr ? 0 : left - 1;
    made += block.data == nullptr ? 0 : 1;
    return block;
  }
  StagingBlock take(SideCopier& copier) {
    if (free.empty()) return make(copier);
    StagingBlock block = std::move(free.back());
    free.pop_back();
    return block;
  }
};

StagingPool::StagingPool(std::size_t most_bytes) : state_(std::make_unique<State>()) {
  state_->left = std::max<std::size_t>(most_bytes / kBlockBytes, 1);
}
StagingPool::~StagingPool() = default;

StagingBlock StagingPool::take(SideCopier& copier) {
  std::unique_lock lock(state_->mutex);
  while (true) {
    if (StagingBlock block = state_->take(copier); block.data != nullptr) return block;
    BEV_CHECK(state_->made > 0, ErrorKind::kIo, "no memory for a checkpoint on its way to disk");
    state_->given.wait(lock, [&] { return !state_->free.empty(); });
  }
}

StagingBlock StagingPool::take_at_once(SideCopier& copier) {
  std::lock_guard lock(state_->mutex);
  return state_->take(copier);
}

void StagingPool::make_ahead(SideCopier& copier, std::size_t bytes, const std::stop_token& stop) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t done = 0; done < bytes && !stop.stop_requested(); done += kBlockBytes) {
    std::unique_lock lock(state_->mutex);
    StagingBlock block = state_->make(copier);
    lock.unlock();
    if (block.data == nullptr) return;
    for (std::size_t at = 0; at < kBlockBytes; at += kPage) block.data.get()[at] = std::byte{0};
    give(std::move(block));
  }
}

void StagingPool::give(StagingBlock block) {
  block.used = 0;
  {
    std::lock_guard lock(state_->mutex);
    state_->free.push_back(std::move(block));
  }
  state_->given.notify_one();
}

struct StagingQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<StagingBlock> blocks;
  bool closed = false;
};

StagingQueue::StagingQueue() : state_(std::make_unique<State>()) {}
StagingQueue::~StagingQueue() = default;

void StagingQueue::push(StagingBlock block) {
  {
    std::lock_guard lock(state_->mutex);
    state_->blocks.push_back(std::move(block));
  }
  state_->changed.notify_one();
}

void StagingQueue::close() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->changed.notify_one();
}

std::optional<StagingBlock> StagingQueue::pop() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return !state_->blocks.empty() || state_->closed; });
  if (state_->blocks.empty()) return std::nullopt;
  StagingBlock block = std::move(state_->blocks.front());
  state_->blocks.pop_front();
  return block;
}

}  // namespace bev
