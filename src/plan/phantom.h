// Phantom device for memory planning: kernels that do nothing, ranks without peers, memory that is
// only reserved addresses. The real model, store and executor run on it, so a plan includes every
// allocation.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "kernels/kernels.h"
#include "tensor/arena.h"

namespace bev {

const Kernels& phantom_kernels();

// Reserves address space. Pages that are never written cost nothing, so it can exceed physical
// memory.
std::unique_ptr<MemorySource> make_phantom_memory();

// One rank of a world whose other ranks do not run: its collectives leave the data unchanged.
class PhantomWorld final : public World {
 public:
  PhantomWorld(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override;

 private:
  int rank_, size_;
};

}  // namespace bev
