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

namespace bev {

namespace {
// Of a huge page: touching the memory for the first time would otherwise take longer than a copy.
constexpr std::align_val_t kAlignment{std::size_t{2} << 20};
}  // namespace

void FreeStaging::operator()(std::byte* data) const {
  if (unpin != nullptr) unpin(data);
  ::operator delete(data, kAlignment);
}

struct StagingPool::State {
  std::mutex mutex;
  std::condition_variable given;
  std::size_t made = 0, left = 0;  // blocks that there are, that may still be made
  std::vector<StagingBlock> free;
};

StagingPool::StagingPool(std::size_t most_bytes) : state_(std::make_unique<State>()) {
  state_->left = std::max<std::size_t>(most_bytes / kBlockBytes, 1);
}
StagingPool::~StagingPool() = default;

// Where the system has no memory left, blocks that there are serve for the rest.
StagingBlock StagingPool::take(SideCopier& copier) {
  std::unique_lock lock(state_->mutex);
  while (true) {
    state_->given.wait(lock, [&] { return !state_->free.empty() || state_->left > 0; });
    if (!state_->free.empty()) {
      StagingBlock block = std::move(state_->free.back());
      state_->free.pop_back();
      return block;
    }
    void* memory = ::operator new(kBlockBytes, kAlignment, std::nothrow);
    if (memory == nullptr) {
      BEV_CHECK(state_->made > 0, ErrorKind::kIo, "no memory for a checkpoint on its way to disk");
      state_->left = 0;
      continue;
    }
    ::madvise(memory, kBlockBytes, MADV_HUGEPAGE);
    --state_->left;
    ++state_->made;
    auto* data = static_cast<std::byte*>(memory);
    return {std::unique_ptr<std::byte, FreeStaging>(data, {copier.pin(data, kBlockBytes)})};
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
