// Activations in host memory while they wait for their backward. A layer's kept tensors form a
// group: copies out begin when the layer ends, the memory goes when the next layer has ended, and
// comes back while the layer after it runs its backward. Blocks move, tensors find them (see
// tensor.h), so ops know nothing of it and every bit stays as it is.
//
//   compute  | layer 0 | layer 1 | layer 2 |   ...   | back 2 | back 1 | back 0 |
//   lane out           | 0 ------| 1 ------|
//   memory of 0 gone             ^
//   lane in                                          | 1 -----| 0 -----|
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape.h"

namespace bev {

class CopyLane;

// Parts of a layer, by what they keep: their input and what they make on the way.
enum class OffloadPart : std::uint8_t {
  kAttnNorm,  // the layer's input
  kQkvLinear,
  kCoreAttn,  // with its result
  kAttnProj,
  kMlpNorm,  // the sum that it normalises
  kMlpFc1,
  kMlpAct,
  kMlpFc2,
  kExpertFc1,
  kMoeAct,
  kExpertFc2
};
inline constexpr int kOffloadParts = 11;
// As flags have it: "attn_norm".
std::string_view name_of(OffloadPart part);
std::vector<std::string> offload_part_names();

struct OffloadPolicy {
  std::int64_t layers = 0;         // the first of a stage, with all that they keep
  std::vector<OffloadPart> parts;  // of layers
  double fraction = 1;             // of the layers of a stage, from the first on, whose parts go
  std::int64_t min_elements = 1;   // smaller tensors stay

  bool any() const { return layers > 0 || !parts.empty(); }
};

class OffloadGroup;

// Host memory and the ways to it, for all passes of a rank.
class Offloader {
 public:
  Offloader(const Kernels& kernels, const Stream& stream, Arena& device, OffloadPolicy policy);
  ~Offloader();

  const OffloadPolicy& policy() const { return policy_; }
  const Arena& host() const { return host_; }

 private:
  friend class OffloadGroup;
  friend class OffloadPass;
  // The group whose copies began last gives its memory away.
  void vacate_last();

  OffloadPolicy policy_;
  Arena& device_;
  Arena host_;
  std::unique_ptr<CopyLane> out_, in_;
  OffloadGroup* leaving_ = nullptr;
};

// A layer of a stage.
struct LayerPlace {
  std::int64_t index = 0, count = 0;
  bool before_loss = false;  // its backward comes next, so nothing of it goes
};

// The groups of one micro-batch on one stage. It must outlive what its tape keeps.
class OffloadPass {
 public:
  explicit OffloadPass(Offloader* to);
  ~OffloadPass();

  // Around a layer, or several that are recomputed together, on the tape that records.
  void begin_layer(Context& ctx, const LayerPlace& place, const Tensor& input);
  void end_layer(Context& ctx, const Tensor& result);
  // What the last layer of the stage keeps is on its way back, where it had gone.
  void prefetch();
  // Of a new pass.
  void clear();

  bool wants(OffloadPart part) const;
  // If somebody keeps it when the layer ends, it goes.
  void mark(const Tensor& tensor);
  // The same of all that was made since, except for one.
  void mark_since(std::int64_t number, const Tensor& except);

 private:
  struct Marked {
    Block* block;
    std::int64_t number;  // the block's, or it is another by now
  };
  void mark(Block& block);

  Offloader* to_;
  std::vector<std::unique_ptr<OffloadGroup>> groups_;
  std::size_t used_ = 0;
  OffloadGroup* last_ = nullptr;  // of the layer that ended last; null: it has none
  std::vector<Marked> marked_;
  bool whole_ = false, parts_ = false;  // what goes of the layer that runs
  std::int64_t layer_begin_ = 0;
};

// Marks what a part keeps, where that is to go. Before the part has run: its input.
void mark_kept(Context& ctx, OffloadPart part, const Var& kept);

// A part runs between this and one of the two calls.
class OffloadScope {
 public:
  OffloadScope(Context& ctx, OffloadPart part, const Var& input);
  // Marks what was made for the part, without its result: that is for those who read it.
  Var without(Var result);
  // The same with the result.
  void with_result();

 private:
  OffloadPass* pass_;
  std::int64_t begin_;
};

}  // namespace bev
