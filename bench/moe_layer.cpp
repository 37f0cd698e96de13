// MoE layer against a dense MLP with the same active FLOPs, forward and backward on the CPU: one
// JSON line per shape and dtype with the median ratio of alternating pairs and its quartiles, by
// wall time and by CPU time of all threads (which excludes other processes).
//
// usage: moe_layer [PAIRS] [THREADS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "comm/world.h"
#include "data/batch.h"
#include "kernels/optim.h"
#include "nn/moe.h"
#include "parallel/store/param_store.h"

namespace bev {
namespace {

struct LayerShape {
  std::int64_t hidden, ffn, experts, topk;  // ffn of one expert
};
constexpr LayerShape kShapes[] = {
    {512, 1024, 8, 2}, {1024, 2048, 8, 2}, {512, 256, 64, 8}, {1024, 512, 64, 8}};
constexpr std::int64_t kTokens = 2048;

// Environment that a layer runs in.
class Bench {
 public:
  Bench(World& world, ThreadPool& pool, Dtype dtype)
      : stream_{&pool, nullptr},
        arena_(make_host_memory()),
        mesh_(world, {}),
        step_(arena_, Dtype::kU8, {sizeof(StepState)}, "step"),
        dtype_(dtype) {
    step_state().loss_factor = 1;
  }

  // Parameters of a module and the context it runs with.
  struct Model {
    std::unique_ptr<ParamStore> store;
    std::unique_ptr<Context> ctx;
  };
  Model start(std::vector<Param*> params) {
    StoreOptions options;
    options.dtype = dtype_;
    Model model;
    model.store = std::make_unique<ParamStore>(std::move(params), mesh_, arena_, cpu_kernels(),
                                               stream_, options);
    model.store->initialise(7);
    model.ctx.reset(new Context{cpu_kernels(), stream_, arena_, arena_, mesh_, *model.store,
                                *model.store, &step_state(), dtype_});
    model.ctx->training = true;
    return model;
  }
  Tensor noise(std::int64_t rows, std::int64_t columns, std::uint64_t key) {
    Tensor out(arena_, dtype_, {rows, columns}, "input");
    cpu_kernels().optim.normal(stream_,
                               {.x = out.view().flat(), .key = key, .mean = 0.0, .std = 1.0});
    return out;
  }

 private:
  StepState& step_state() { return *reinterpret_cast<StepState*>(step_.view().data); }

  Stream stream_;
  Arena arena_;
  Mesh mesh_;
  Tensor step_;
  Dtype dtype_;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Time of forward and backward.
struct Seconds {
  double clock = 0, processor = 0;
};
template <class Forward>
Seconds time_layer(Bench::Model& model, const Tensor& x, const Tensor& dy, const Forward& forward) {
  Context& ctx = *model.ctx;
  model.store->begin_step(1);
  Tape tape;
  ctx.tape = &tape;
  const double clock = monotonic_seconds(), processor = processor_seconds();
  Var in = tape.track(x, batch_placement());
  Var y = forward(ctx, in);
  tape.add_gradient(ctx, GradSlot(y), dy, y.placement.dual());
  tape.backward(ctx);
  Seconds seconds{monotonic_seconds() - clock, processor_seconds() - processor};
  ctx.tape = nullptr;
  return seconds;
}

double quartile(std::vector<double> values, std::size_t number) {
  std::ranges::sort(values);
  return values[(values.size() - 1) * number / 4];
}
// Quartiles, with the median in the middle.
std::string spread(const std::vector<double>& values) {
  return fmt::format("[{:.2f}, {:.2f}, {:.2f}]", quartile(values, 1), quartile(values, 2),
                     quartile(values, 3));
}

void measure(World& world, ThreadPool& pool, const LayerShape& shape, Dtype dtype, int pairs) {
  Bench bench(world, pool, dtype);
  MoeOptions options;
  options.expert.hidden_size = shape.hidden;
  options.expert.ffn_size = shape.ffn;
  options.expert.activation = {Activation::kSilu, true, false};
  options.experts = shape.experts;
  options.routing.topk = shape.topk;
  Moe experts("experts", options);
  MlpOptions dense_options = options.expert;
  dense_options.ffn_size = shape.ffn * shape.topk;
  Mlp dense("dense", dense_options);
  std::vector<Param*> expert_params, dense_params;
  experts.params(expert_params);
  dense.params(dense_params);
  Bench::Model with_experts = bench.start(expert_params), plain = bench.start(dense_params);
  Tensor x = bench.noise(kTokens, shape.hidden, 1), dy = bench.noise(kTokens, shape.hidden, 2);
  const std::vector<std::int32_t> window(kTokens + 1);
  MicroBatch batch = make_micro_batch(*plain.ctx, std::vector{window_sample(window)}, 0);

  std::vector<double> clock, processor, dense_ms;
  for (int pair = -1; pair < pairs; ++pair) {
    Seconds one = time_layer(with_experts, x, dy, [&](Context& ctx, const Var& in) {
      return experts.forward(ctx, in, batch.layout);
    });
    Seconds other = time_layer(
        plain, x, dy, [&](Context& ctx, const Var& in) { return dense.forward(ctx, in, kTokens); });
    if (pair < 0) continue;  // warmup: memory is touched for the first time
    clock.push_back(one.clock / other.clock);
    processor.push_back(one.processor / other.processor);
    dense_ms.push_back(1e3 * other.clock);
  }
  std::puts(fmt::format("{{\"dtype\": \"{}\", \"hidden\": {}, \"experts\": {}, \"topk\": {}, "
                        "\"ffn\": {}, \"dense_ms\": {:.1f}, \"ratio\": {}, "
                        "\"processor_ratio\": {}}}",
                        name_of(dtype), shape.hidden, shape.experts, shape.topk, shape.ffn,
                        quartile(dense_ms, 2), spread(clock), spread(processor))
                .c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const int threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : bev::machine_threads();
  bev::run_thread_ranks(1, {}, [&](bev::World& world) {
    bev::ThreadPool pool(threads);
    for (const bev::LayerShape& shape : bev::kShapes) {
      for (bev::Dtype dtype : {bev::Dtype::kF32, bev::Dtype::kBf16}) {
        bev::measure(world, pool, shape, dtype, pairs);
      }
    }
  });
  return 0;
}
