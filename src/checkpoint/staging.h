// Staging buffers between device and disk for asynchronous saves, shared by the ranks of a process:
// their total bounds the memory of saving. If none is free, the copy waits until one is written, so
// a small bound costs time, never memory.
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

// kBlockBytes, aligned for O_DIRECT; `used` bytes are filled.
struct StagingBlock {
  std::unique_ptr<std::byte, FreeStaging> data;
  std::size_t used = 0;

  std::span<const std::byte> bytes() const { return {data.get(), used}; }
};

class StagingPool {
 public:
  // Makes at least one block, whatever the bound.
  explicit StagingPool(std::size_t most_bytes);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Waits for a block; it is pinned for the device of `copier`.
  StagingBlock take(SideCopier& copier);
  // Without data if it would have to wait.
  StagingBlock take_at_once(SideCopier& copier);
  // Allocates free blocks for `bytes` bytes, up to the bound, and touches their memory, because
  // page faults take longer than the device's copies. Ends early on a stop request.
  void make_ahead(SideCopier& copier, std::size_t bytes, const std::stop_token& stop);
  void give(StagingBlock block);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Queue of filled blocks from the copying to the writing thread.
class StagingQueue {
 public:
  StagingQueue();
  ~StagingQueue();
  StagingQueue(const StagingQueue&) = delete;
  StagingQueue& operator=(const StagingQueue&) = delete;

  void push(StagingBlock block);
  // No more blocks will come.
  void close();
  // Waits for the next block; nullopt after the last one.
  std::optional<StagingBlock> pop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
