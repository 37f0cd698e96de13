// Thread ranks that share the GPU, each with its own device, and data on both device and host: a
// collective runs on both sides and must give bitwise equal results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cuda/device.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "tensor/tensor.h"

namespace bev::cuda_test {

class PeerRank {
 public:
  explicit PeerRank(World& world)
      : world_(world), device_(cuda_kernels().device.open({})), arena_(device_->memory()) {}

  // A group of these ranks in this order, or of this rank alone if it is not among them.
  std::unique_ptr<Group> group(std::vector<int> members) {
    if (std::ranges::find(members, world_.rank()) == members.end()) members = {world_.rank()};
    return device_->make_group(world_.make_group("group", std::move(members)));
  }
  std::unique_ptr<Group> everyone() {
    std::vector<int> members(static_cast<std::size_t>(world_.size()));
    std::iota(members.begin(), members.end(), 0);
    return group(std::move(members));
  }
  Arena& arena() { return arena_; }
  Stream stream() { return device_->stream(); }
  int rank() const { return world_.rank(); }

 private:
  World& world_;
  std::unique_ptr<Device> device_;
  Arena arena_;
};

// Elements on both device and host.
class BothSides {
 public:
  BothSides(PeerRank& rank, Dtype dtype, std::int64_t count)
      : rank_(rank),
        host_(static_cast<std::size_t>(count) * size_of(dtype) + 1),
        device_(rank.arena(), dtype, {count}, "test") {}
  // Small values with a fraction, determined by the seed.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    auto draw = [&] { return static_cast<int>(random() % 2001) - 1000; };
    auto fill_with = [&](auto* values, double scale) {
      using T = std::remove_reference_t<decltype(*values)>;
      for (std::int64_t i = 0; i < device_.numel(); ++i) {
        values[i] = T(static_cast<float>(draw() * scale));
      }
    };
    Dtype dtype = device_.dtype();
    if (dtype == Dtype::kI64) fill_with(reinterpret_cast<std::int64_t*>(host_.data()), 1);
    if (dtype == Dtype::kI32) fill_with(reinterpret_cast<std::int32_t*>(host_.data()), 1);
    if (dtype == Dtype::kU8) {
      for (std::byte& byte : host_) byte = static_cast<std::byte>(random());
    }
    if (is_float(dtype)) {
      visit_float(dtype, [&](auto zero) {
        fill_with(reinterpret_cast<decltype(zero)*>(host_.data()), 0.00137);
      });
    }
    if (device_.numel() > 0) {
      cuda_kernels().device.upload(rank_.stream(), host_.data(), device_);
    }
  }
  View host() { return {host_.data(), device_.dtype(), device_.shape()}; }
  View device() const { return device_; }
  bool same() {
    std::vector<std::byte> got(device_.view().bytes());
    cuda_kernels().device.fetch(rank_.stream(), device_, got.data()).wait();
    return got.empty() || std::memcmp(got.data(), host_.data(), got.size()) == 0;
  }

 private:
  PeerRank& rank_;
  std::vector<std::byte> host_;
  Tensor device_;
};

class PeerRig : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

}  // namespace bev::cuda_test
