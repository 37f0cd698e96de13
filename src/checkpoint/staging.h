// Blocks of host memory that a saved state passes through on its way to disk, shared by the ranks
// of a process: their sum is the bound on what saving may hold. Who finds none waits until one has
// been written, so a small bound costs time and never memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

namespace bev {

class SideCopier;

struct FreeStaging {
  void operator()(std::byte* data) const;
  void (*unpin)(void* host) = nullptr;
};

// kBlockBytes, aligned for the disk; `used` of them filled.
struct StagingBlock {
  std::unique_ptr<std::byte, FreeStaging> data;
  std::size_t used = 0;

  std::span<const std::byte> bytes() const { return {data.get(), used}; }
};

class StagingPool {
 public:
  // At least one block whatever the bound.
  explicit StagingPool(std::size_t most_bytes);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // The device of `copier` can write to the block without a detour.
  StagingBlock take(SideCopier& copier);
  // Without data where one would have to wait.
  StagingBlock take_at_once(SideCopier& copier);
  // Makes free blocks for so many bytes, as far as the bound allows, and touches their memory: the
  // system takes longer to give it than a device to fill it. Ends early when told to stop.
  void make_ahead(SideCopier& copier, std::size_t bytes, const std::stop_token& stop);
  void give(StagingBlock block);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Filled blocks on their way from the one who copies to the one who writes.
class StagingQueue {
 public:
  StagingQueue();
  ~StagingQueue();
  StagingQueue(const StagingQueue&) = delete;
  StagingQueue& operator=(const StagingQueue&) = delete;

  void push(StagingBlock block);
  // No more will come.
  void close();
  // The next one, waited for; absent after the last.
  std::optional<StagingBlock> pop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
