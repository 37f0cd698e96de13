// Shards of our own checkpoints (docs/checkpoint-format.md): safetensors files whose blocks are
// verified against the checksums of the manifest when they are first read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/piece.h"

namespace bev {

class OwnShards final : public PieceFiles {
 public:
  // The manifest must outlive it.
  OwnShards(std::string folder, const Manifest& manifest);
  ~OwnShards() override;

  std::span<const std::byte> open(const Piece& piece, const std::string& tensor, Dtype dtype,
                                  std::int64_t elements) override;
  void check(const Piece& piece, std::span<const std::byte> bytes) override;
  std::vector<std::string> verify() override;

 private:
  struct Shard;
  struct Opening;
  Shard& shard(std::size_t index, const std::string& tensor);

  std::string folder_;
  const Manifest& manifest_;
  std::unique_ptr<Opening> opening_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace bev
