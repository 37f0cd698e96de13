// Activation offload to pinned host memory between forward and backward. The saved tensors of a
// layer form a group: device-to-host copies start when the layer ends, the device memory is freed
// when the next layer has ended, and the copies back run during the backward of the following
// layer. Blocks move and tensors find them (tensor.h), so ops are not aware of it and results are
// bit-equal.
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

// Parts of a layer, by the tensors they save: their input and intermediate results.
enum class OffloadPart : std::uint8_t {
  kAttnNorm,  // the layer's input
  kQkvLinear,
  kCoreAttn,  // with its result
  kAttnProj,
  kMlpNorm,  // the residual sum that it normalises
  kMlpFc1,
  kMlpAct,
  kMlpFc2,
  kExpertFc1,
  kMoeAct,
  kExpertFc2
};
inline constexpr int kOffloadParts = 11;
// Flag value, such as "attn_norm".
std::string_view name_of(OffloadPart part);
std::vector<std::string> offload_part_names();

struct OffloadPolicy {
  std::int64_t layers = 0;  // first layers of a stage, of which everything saved is offloaded
  std::vector<OffloadPart> parts;  // parts of layers to offload
  double fraction = 1;  // of a stage's layers, from the first on, whose parts are offloaded
  std::int64_t min_elements = 1;  // smaller tensors are not offloaded

  bool any() const { return layers > 0 || !parts.empty(); }
};

class OffloadGroup;

// Host memory and copy lanes for all passes of a rank.
class Offloader {
 public:
  Offloader(const Kernels& kernels, const Stream& stream, Arena& device, OffloadPolicy policy);
  ~Offloader();

  const OffloadPolicy& policy() const { return policy_; }
  const Arena& host() const { return host_; }

 private:
  friend class OffloadGroup;
  friend class OffloadPass;
  // Frees the device memory of the group whose copies started last.
  void vacate_last();

  OffloadPolicy policy_;
  Arena& device_;
  Arena host_;
  std::unique_ptr<CopyLane> out_, in_;
  OffloadGroup* leaving_ = nullptr;
};

// Position of a layer in its stage.
struct LayerPlace {
  std::int64_t index = 0, count = 0;
  bool before_loss = false;  // its backward comes next, so nothing is offloaded
};

// Groups of one micro-batch on one stage. It must outlive the tensors saved on its tape.
class OffloadPass {
 public:
  explicit OffloadPass(Offloader* to);
  ~OffloadPass();

  // Call around a layer, or around several that are recomputed together, on the recording tape.
  void begin_layer(Context& ctx, const LayerPlace& place, const Tensor& input);
  void end_layer(Context& ctx, const Tensor& result);
  // Starts copying back the last offloaded layer of the stage.
  void prefetch();
  // Resets for a new pass.
  void clear();

  bool wants(OffloadPart part) const;
  // Marks a tensor: it is offloaded if it is still referenced when the layer ends.
  void mark(const Tensor& tensor);
  // Marks all tensors allocated since `number`, except one.
  void mark_since(std::int64_t number, const Tensor& except);

 private:
  struct Marked {
    Block* block;
    std::int64_t number;  // of the block when marked; it differs if the block was reused
  };
  void mark(Block& block);

  Offloader* to_;
  std::vector<std::unique_ptr<OffloadGroup>> groups_;
  std::size_t used_ = 0;
  OffloadGroup* last_ = nullptr;  // group of the layer that ended last; null: none
  std::vector<Marked> marked_;
  bool whole_ = false, parts_ = false;  // what is offloaded of the current layer
  std::int64_t layer_begin_ = 0;
};

// Marks a tensor saved by a part, if that part is offloaded. Before the part has run: its input.
void mark_kept(Context& ctx, OffloadPart part, const Var& kept);

// Scope of a part; one of the two calls ends it.
class OffloadScope {
 public:
  OffloadScope(Context& ctx, OffloadPart part, const Var& input);
  // Marks the part's tensors except its result, which belongs to its consumers.
  Var without(Var result);
  // Marks the part's tensors including its result.
  void with_result();

 private:
  OffloadPass* pass_;
  std::int64_t begin_;
};

}  // namespace bev
