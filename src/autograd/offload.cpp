#include "autograd/offload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/device.h"

namespace bev {

namespace {

constexpr std::array<std::string_view, kOffloadParts> kNames = {
    "attn_norm", "qkv_linear", "core_attn",  "attn_proj", "mlp_norm",  "mlp_fc1",
    "mlp_act",   "mlp_fc2",    "expert_fc1", "moe_act",   "expert_fc2"};

// Arena tags of tensors made by ops. Weight stores have other tags; they keep addresses, so their
// blocks must not move.
constexpr std::array<std::string_view, 3> kTags = {"activations", "quantized", "dispatched tokens"};

}  // namespace

std::string_view name_of(OffloadPart part) { return kNames[static_cast<std::size_t>(part)]; }

std::vector<std::string> offload_part_names() { return {kNames.begin(), kNames.end()}; }

// Offloaded tensors of a layer. Stream order: copies out wait for the layer; the compute stream
// waits for them before the memory is reused. Copies in wait for the compute stream, so that the
// previous user of the memory and the copies out are done; the compute stream waits for them before
// the content is read. Host memory is freed after that, and later copies out wait for the compute
// stream, so it is not overwritten too early.
class OffloadGroup final : public BlockKeeper {
 public:
  explicit OffloadGroup(Offloader& to) : to_(to) {}
  ~OffloadGroup() { drop(); }
  OffloadGroup(const OffloadGroup&) = delete;
  OffloadGroup& operator=(const OffloadGroup&) = delete;

  void add(Block& block) {
    block.keeper = this;
    moved_.push_back({&block, Tensor()});
  }
  bool empty() const { return moved_.empty(); }

  void begin() {
    to_.out_->follow();
    for (Moved& moved : moved_) {
      auto bytes = static_cast<std::int64_t>(moved.block->bytes);
      moved.host = Tensor(to_.host_, Dtype::kU8, {bytes}, "offloaded activations");
      to_.out_->copy(moved.block->data, moved.host.view().data, moved.block->bytes);
    }
    copying_ = to_.out_->mark();
    state_ = State::kOffloading;
    to_.leaving_ = this;
  }
  void vacate() {
    copying_.wait();
    for (Moved& moved : moved_) {
      to_.device_.vacate(*moved.block);
      moved.block->away = true;
    }
    state_ = State::kOffloaded;
  }
  void fetch() {
    if (state_ != State::kOffloaded) return;
    for (Moved& moved : moved_) to_.device_.occupy(*moved.block);
    to_.in_->follow();
    for (Moved& moved : moved_) {
      to_.in_->copy(moved.host.view().data, moved.block->data, moved.block->bytes);
    }
    copying_ = to_.in_->mark();
    state_ = State::kFetching;
  }
  // Makes the blocks resident again, as if they had never been offloaded.
  void arrive() {
    fetch();
    copying_.wait();
    for (Moved& moved : moved_) moved.block->away = false;
    drop();
  }

  void bring_back(Block&) override { arrive(); }
  void forget(Block& block) noexcept override {
    // The stream must not reuse the memory while it is being copied to.
    if (state_ == State::kFetching) copying_ = Work();
    std::erase_if(moved_, [&](const Moved& moved) { return moved.block == &block; });
  }

  // Releases all blocks.
  void drop() {
    copying_ = Work();
    for (Moved& moved : moved_) moved.block->keeper = nullptr;
    moved_.clear();
    state_ = State::kOnDevice;
    if (to_.leaving_ == this) to_.leaving_ = nullptr;
  }

 private:
  enum class State : std::uint8_t { kOnDevice, kOffloading, kOffloaded, kFetching };
  struct Moved {
    Block* block;
    Tensor host;
  };

  Offloader& to_;
  State state_ = State::kOnDevice;
  std::vector<Moved> moved_;
  Work copying_;
};

Offloader::Offloader(const Kernels& kernels, const Stream& stream, Arena& device,
                     OffloadPolicy policy)
    : policy_(std::move(policy)),
      device_(device),
      host_(kernels.device.pinned_memory(), 0, 0),  // no spare: pinned memory is scarce
      out_(kernels.device.open_lane(stream)),
      in_(kernels.device.open_lane(stream)) {}

Offloader::~Offloader() = default;

void Offloader::vacate_last() {
  if (leaving_ != nullptr) std::exchange(leaving_, nullptr)->vacate();
}

OffloadPass::OffloadPass(Offloader* to) : to_(to) {}
OffloadPass::~OffloadPass() = default;

void OffloadPass::clear() {
  for (auto& group : groups_) group->drop();
  used_ = 0;
  last_ = nullptr;
  marked_.clear();
  whole_ = parts_ = false;
}

void OffloadPass::begin_layer(Context& ctx, const LayerPlace& place, const Tensor& input) {
  const OffloadPolicy& policy = to_->policy();
  // As in Megatron, the number of layers that stay is rounded down.
  auto staying =
      static_cast<std::int64_t>(static_cast<double>(place.count) * (1 - policy.fraction));
  whole_ = place.index < policy.layers && !place.before_loss;
  parts_ = place.index < place.count - staying && !place.before_loss;
  layer_begin_ = ctx.arena.next_number();
  if (whole_ || wants(OffloadPart::kAttnNorm)) mark(input);
}

void OffloadPass::end_layer(Context& ctx, const Tensor& result) {
  if (whole_) mark_since(layer_begin_, result);
  whole_ = parts_ = false;
  to_->vacate_last();
  if (used_ == groups_.size()) groups_.push_back(std::make_unique<OffloadGroup>(*to_));
  OffloadGroup* own = groups_[used_].get();
  for (const Marked& marked : marked_) {
    Block& block = *marked.block;
    bool kept = block.references > 0 && block.number == marked.number;
    if (kept && block.keeper == nullptr) own->add(block);
  }
  marked_.clear();
  OffloadGroup* before = std::exchange(last_, own->empty() ? nullptr : own);
  if (last_ != nullptr) {
    ++used_;
    own->begin();
  }
  if (last_ == nullptr && before == nullptr) return;
  ctx.tape->record("offload", ctx.layer, [here = last_, before](Backward&) {
    if (here != nullptr) here->arrive();
    if (before != nullptr) before->fetch();
  });
}

void OffloadPass::prefetch() {
  if (last_ != nullptr) last_->fetch();
}

bool OffloadPass::wants(OffloadPart part) const {
  return parts_ && std::ranges::find(to_->policy().parts, part) != to_->policy().parts.end();
}

void OffloadPass::mark(const Tensor& tensor) {
  if (tensor.block() != nullptr) mark(*tensor.block());
}

void OffloadPass::mark(Block& block) {
  bool moves = block.arena == &to_->device_ && block.elements >= to_->policy().min_elements &&
               std::ranges::find(kTags, block.tag) != kTags.end();
  if (moves) marked_.push_back({&block, block.number});
}

void OffloadPass::mark_since(std::int64_t number, const Tensor& except) {
  to_->device_.visit_since(number, [&](Block& block) {
    if (&block != except.block()) mark(block);
  });
}

namespace {
// Null if the part is not offloaded or nothing is recorded.
OffloadPass* pass_of(const Context& ctx, OffloadPart part) {
  bool goes = ctx.tape != nullptr && ctx.offload != nullptr && ctx.offload->wants(part);
  return goes ? ctx.offload : nullptr;
}
}  // namespace

void mark_kept(Context& ctx, OffloadPart part, const Var& kept) {
  if (OffloadPass* pass = pass_of(ctx, part)) pass->mark(kept.tensor);
}

OffloadScope::OffloadScope(Context& ctx, OffloadPart part, const Var& input)
    : pass_(pass_of(ctx, part)), begin_(ctx.arena.next_number()) {
  mark_kept(ctx, part, input);
}

Var OffloadScope::without(Var result) {
  if (pass_ != nullptr) pass_->mark_since(begin_, result.tensor);
  return result;
}

void OffloadScope::with_result() {
  if (pass_ != nullptr) pass_->mark_since(begin_, {});
}

}  // namespace bev
