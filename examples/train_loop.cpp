// A small decoder built from the library's parts and trained, on one rank and then on two that
// share every layer: the losses are the same.
#include <cstdio>

#include "autograd/recompute.h"
#include "backend/cpu/cpu_kernels.h"
#include "data/mock_dataset.h"
#include "kernels/device.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "ops/collective.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "optim/optimizer.h"
#include "parallel/store/param_store.h"

using namespace bev;
constexpr std::int64_t kVocabulary = 96, kHidden = 64, kLength = 32, kTokens = 8 * kLength;
constexpr AttentionOptions kAttention{
    .hidden_size = kHidden, .heads = 4, .kv_heads = 4, .head_size = 16, .rule = {.scale = 0.25}};
constexpr MlpOptions kMlp{.hidden_size = kHidden, .ffn_size = 4 * kHidden};

struct Layer {
  void params(std::vector<Param*>& list) {
    before.params(list), attention.params(list), between.params(list), mlp.params(list);
  }
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const {
    Var sum = add(ctx, x, attention.forward(ctx, norm(ctx, x, before.spec(false)), input));
    return add(ctx, sum, mlp.forward(ctx, norm(ctx, sum, between.spec(false)), kTokens));
  }
  std::string name;
  Norm before = make_norm(name + ".before", kHidden, {});
  SelfAttention attention{name + ".attention", kAttention};
  Norm between = make_norm(name + ".between", kHidden, {});
  Mlp mlp{name + ".mlp", kMlp};
};

struct Model {
  std::vector<Param*> params() {
    std::vector<Param*> list = {&table, &positions};
    for (Layer& layer : layers) layer.params(list);
    last.params(list);
    return list;
  }
  LossResult loss(Context& ctx, const MicroBatch& batch) const {
    Var x = embedding(ctx, batch.tokens, table, {}, batch_placement());
    x = leave_tensor_parallel(ctx, x, false);
    x = add_positions(ctx, x, batch.layout, positions);
    for (const Layer& layer : layers) x = layer.forward(ctx, x, {.layout = &batch.layout});
    x = enter_tensor_parallel(ctx, norm(ctx, x, last.spec(false)), kTokens);
    return lm_head_loss(ctx, x, batch.targets, {.weight = &table});
  }
  // The table is used twice: it is the head as well.
  Param table{.name = "table",
              .shape = {kVocabulary, kHidden},
              .split = {Axis::kTp, 0, {}},
              .init = {InitKind::kNormal, 0.02},
              .uses = 2};
  Param positions{
      .name = "positions", .shape = {kLength, kHidden}, .init = {InitKind::kNormal, 0.02}};
  Layer layers[2] = {{"layer0"}, {"layer1"}};
  Norm last = make_norm("last", kHidden, {});
};

void train(World& world) {
  const Kernels& kernels = cpu_kernels();
  std::unique_ptr<Device> device = kernels.device.open({});
  Arena arena(device->memory()), inputs(device->memory());
  Mesh mesh(world, {.tp = world.size()}, device.get());
  Model model;
  ParamStore store(model.params(), mesh, arena, kernels, device->stream(), {});
  store.initialise(1234);
  StepState state;  // the CPU's memory is the device's
  Context ctx{kernels, device->stream(), arena, inputs, mesh, store, store, &state};
  Optimizer optimizer(ctx, store.optim_ranges(), {}, {});
  MockDataset data({.vocab_size = kVocabulary, .seq_length = kLength, .seed = 7});
  for (int step = 1; step <= 60; ++step) {
    std::vector<TokenSample> samples;
    for (int i = 0; i < 8; ++i) samples.push_back(data.sample(8 * step + i));
    MicroBatch batch = make_micro_batch(ctx, samples, 0);
    state.lr = 3e-3, state.update = step, state.loss_factor = 1 / batch.targets.weight_sum;
    Tape tape;
    TapeScope scope(ctx, &tape);
    store.begin_step(1);
    LossResult result = model.loss(ctx, batch);
    Tensor one = ctx.allocate(ctx.wide(), {1}, "gradients");
    kernels.fill(ctx.stream, one, 1);
    tape.add_gradient(ctx, GradSlot(result.loss), one, result.loss.placement.dual());
    tape.backward(ctx);
    store.finish_gradients();
    optimizer.step(ctx);
    double loss = 0;
    for (float value : ctx.download<float>(result.token_loss)) loss += value / kTokens;
    if (world.rank() == 0 && step % 10 == 0) std::printf("step %d loss %.4f\n", step, loss);
  }
}

int main() {
  for (int ranks : {1, 2}) run_thread_ranks(ranks, {}, [](World& world) { train(world); });
}
