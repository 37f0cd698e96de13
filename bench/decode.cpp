// Decoding benchmark with a KV cache: tokens/s as one JSON line, in the format of
// bench/peers/decode_transformers.py, and the fraction of memory bandwidth at which weights are
// read.
//
// usage: decode MODEL MODE BATCH [NEW_TOKENS [DEVICE]] [NAME=VALUE..]
//   MODEL: a preset; MODE: fp32 | bf16; DEVICE: cpu | cuda
//   layers=N: the first N layers only; prompt=N: tokens of each prompt (32); exact=1: exact
//   kernels; temperature, top_k, top_p: sampling; kernels=N: after the line, the N kernels that
//   take most of the time of a step
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif
#include "base/clock.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "comm/world.h"
#include "infer/generate.h"
#include "kernels/device.h"
#include "models/families/family.h"
#include "parallel/engine.h"

namespace bev {
namespace {

// Time between the first and the last new token, and the number of steps.
class StepTimes : public RequestSink {
 public:
  void on_token(const TokenEvent& event) override {
    if (event.request != 0) return;
    last_ = monotonic_seconds();
    if (steps_++ == 0) first_ = last_;
  }
  double seconds_per_step() const { return (last_ - first_) / static_cast<double>(steps_ - 1); }

 private:
  std::int64_t steps_ = 0;
  double first_ = 0, last_ = 0;
};

// Copy bandwidth: bytes read and written per second, the best of several runs.
double copy_speed(Context& ctx) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20, kPiece = std::int64_t{1} << 20;
  Tensor from = ctx.upload<std::uint8_t>(std::vector<std::uint8_t>(kBytes, 1), "bench");
  Tensor to = ctx.upload<std::uint8_t>(std::vector<std::uint8_t>(kBytes, 2), "bench");
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = monotonic_seconds();
    if (ctx.kernels.device.capture == nullptr) {  // CPU: use the threads of the host
      ctx.stream.pool->run(kBytes / kPiece, [&](std::int64_t piece) {
        std::memcpy(to.as<std::uint8_t>() + piece * kPiece,
                    from.as<std::uint8_t>() + piece * kPiece, kPiece);
      });
    } else {
      ctx.kernels.device.copy(ctx.stream, from, to);
      ctx.download<std::uint8_t>(to.rows(0, 1));
    }
    best = std::min(best, monotonic_seconds() - start);
  }
  return 2 * static_cast<double>(kBytes) / best;
}

struct Wanted {
  std::string model, mode, device = "cpu";
  std::int64_t batch = 1, new_tokens = 64;
  std::int64_t layers = 0;   // 0: all
  std::int64_t prompt = 32;  // tokens
  bool exact = false;
  std::int64_t kernels = 0;  // rows of the kernel table
  SamplingOptions sampling = {};

  void set(const std::string& name, const std::string& value) {
    if (name == "layers") {
      layers = std::stoll(value);
    } else if (name == "prompt") {
      prompt = std::stoll(value);
    } else if (name == "exact") {
      exact = value == "1";
    } else if (name == "kernels") {
      kernels = std::stoll(value);
    } else if (name == "temperature") {
      sampling.temperature = std::stod(value);
    } else if (name == "top_k") {
      sampling.top_k = std::stoll(value);
    } else if (name == "top_p") {
      sampling.top_p = std::stod(value);
    } else {
      BEV_FAIL(ErrorKind::kConfig, "decode: no option ", name);
    }
  }
};

const Kernels& kernels_of(const Wanted& wanted) {
#ifdef BEV_HAS_CUDA
  if (wanted.device == "cuda") return wanted.exact ? cuda_exact_kernels() : cuda_kernels();
#endif
  BEV_CHECK(wanted.device == "cpu", ErrorKind::kConfig, "decode: no device ", wanted.device);
  return wanted.exact ? cpu_exact_kernels() : cpu_kernels();
}

std::vector<Request> random_requests(const Wanted& wanted, std::int64_t vocabulary) {
  std::vector<Request> requests(static_cast<std::size_t>(wanted.batch));
  for (std::size_t row = 0; row < requests.size(); ++row) {
    requests[row].max_new_tokens = wanted.new_tokens;
    requests[row].sampling = wanted.sampling;
    requests[row].stream = static_cast<std::int64_t>(row);
    for (std::int64_t at = 0; at < wanted.prompt; ++at) {
      requests[row].prompt.push_back(static_cast<std::int32_t>(
          mix_bits(row, static_cast<std::uint64_t>(at)) % static_cast<std::uint64_t>(vocabulary)));
    }
  }
  return requests;
}

// Traces the device between two tokens: steps as they run, including CUDA graphs.
class StepTrace : public RequestSink {
 public:
  static constexpr std::int64_t kFirst = 8, kSteps = 8;

  explicit StepTrace(DeviceTrace& trace) : trace_(trace) {}
  void on_token(const TokenEvent& event) override {
    if (event.request != 0) return;
    ++tokens_;
    if (tokens_ == kFirst) trace_.started();
    if (tokens_ == kFirst + kSteps) trace_.stopped();
  }

 private:
  DeviceTrace& trace_;
  std::int64_t tokens_ = 0;
};

struct KernelTime {
  std::string name;
  double microseconds = 0;
  std::int64_t count = 0;
};

// Kernel name without arguments and namespaces.
std::string short_name(std::string name) {
  for (std::string_view space : {"(anonymous namespace)::", "void ", "bev::", "cuda::"}) {
    for (std::size_t at = 0; (at = name.find(space)) != name.npos;) name.erase(at, space.size());
  }
  constexpr std::size_t kMost = 90;
  return name.substr(0, std::min(name.find('('), kMost));
}

// Kernel times of one step, longest first; idle time between kernels comes last.
std::vector<KernelTime> kernel_times(const std::vector<DeviceSpan>& spans) {
  std::map<std::string, KernelTime> by_name;
  double idle = 0;
  std::int64_t end = spans.empty() ? 0 : spans.front().begin_ns;
  for (const DeviceSpan& span : spans) {
    KernelTime& row = by_name[short_name(span.name)];
    row.microseconds += static_cast<double>(span.end_ns - span.begin_ns) / 1e3;
    ++row.count;
    idle += static_cast<double>(std::max<std::int64_t>(span.begin_ns - end, 0)) / 1e3;
    end = std::max(end, span.end_ns);
  }
  std::vector<KernelTime> rows;
  for (auto& [name, row] : by_name) {
    rows.push_back({name, row.microseconds / StepTrace::kSteps, row.count / StepTrace::kSteps});
  }
  std::ranges::sort(rows, std::greater<>(), &KernelTime::microseconds);
  rows.push_back({"nothing runs", idle / StepTrace::kSteps, 0});
  return rows;
}

void print_kernels(const std::vector<KernelTime>& rows, std::int64_t most) {
  double sum = 0, rest = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sum += rows[i].microseconds;
    count += rows[i].count;
    bool shown = static_cast<std::int64_t>(i) < most || i + 1 == rows.size();
    if (!shown) rest += rows[i].microseconds;
    if (shown)
      fmt::print("{:9.1f} us {:5} x  {}\n", rows[i].microseconds, rows[i].count, rows[i].name);
  }
  fmt::print("{:9.1f} us          others\n{:9.1f} us {:5} x  a step\n", rest, sum, count);
}

// Every weight is read at each step, except an untied embedding, of which only a few rows are read,
// and experts that no token selects (their expected number under even, independent choices).
double weights_read(const Engine& engine, const ModelConfig& model, std::int64_t batch) {
  double chosen = 1;
  if (model.moe.num_experts > 0) {
    double each = static_cast<double>(model.moe.topk) / static_cast<double>(model.moe.num_experts);
    chosen = 1 - std::pow(1 - each, static_cast<double>(batch));
  }
  double weights = 0;
  for (const Param* param : engine.model().store().params()) {
    bool of_experts = param->name.find(".experts.") != std::string::npos;
    weights += static_cast<double>(param->shape.numel()) * (of_experts ? chosen : 1);
  }
  if (model.untie_embeddings_and_output_weights) {
    weights -= static_cast<double>(model.vocab_size * model.hidden_size);
  }
  return weights;
}

void run(World& world, const Wanted& wanted) {
  EngineOptions options;
  options.model = preset(wanted.model);
  if (wanted.layers > 0) options.model.num_layers = wanted.layers;
  options.dtype = wanted.mode == "bf16" ? Dtype::kBf16 : Dtype::kF32;
  options.threads = machine_threads();
  options.parallel.data_parallel_size = 1;
  options.gradients = options.optimizer = false;
  const Kernels& kernels = kernels_of(wanted);
  Engine engine(world, kernels, options);
  std::vector<Request> requests = random_requests(wanted, options.model.vocab_size);
  InferenceEngine inference(engine.model(), options_for(requests, {.prefix_cache = false}));
  generate(inference, requests);
  StepTimes times;
  generate(inference, requests, &times);
  const double bytes = weights_read(engine, options.model, wanted.batch) *
                       static_cast<double>(size_of(options.dtype));
  const double speed = copy_speed(engine.model().ctx());
  const double seconds = times.seconds_per_step();
  std::puts(fmt::format("{{\"model\": \"{}\", \"mode\": \"{}\", \"batch\": {}, \"ms\": {:.3f}, "
                        "\"tok_s\": {:.1f}, \"weights_gb_s\": {:.1f}, \"copy_gb_s\": {:.1f}, "
                        "\"share\": {:.2f}}}",
                        wanted.model, wanted.mode, wanted.batch, seconds * 1e3,
                        static_cast<double>(wanted.batch) / seconds, bytes / seconds / 1e9,
                        speed / 1e9, bytes / seconds / speed)
                .c_str());
  if (wanted.kernels == 0) return;
  std::unique_ptr<DeviceTrace> trace = kernels.device.trace();
  BEV_CHECK(trace != nullptr, ErrorKind::kConfig, "decode: no kernels to tell of");
  StepTrace traced(*trace);
  for (Request& request : requests) {
    request.max_new_tokens = StepTrace::kFirst + StepTrace::kSteps + 1;
  }
  generate(inference, requests, &traced);
  print_kernels(kernel_times(trace->take()), wanted.kernels);
}

Wanted parse(int argc, char** argv) {
  Wanted wanted;
  wanted.model = argv[1];
  wanted.mode = argv[2];
  wanted.batch = std::stoll(argv[3]);
  for (int i = 4; i < argc; ++i) {
    std::string text = argv[i];
    std::size_t equals = text.find('=');
    if (equals != text.npos) {
      wanted.set(text.substr(0, equals), text.substr(equals + 1));
    } else if (i == 4) {
      wanted.new_tokens = std::stoll(text);
    } else {
      wanted.device = text;
    }
  }
  return wanted;
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: decode MODEL fp32|bf16 BATCH [NEW_TOKENS [cpu|cuda]] [NAME=VALUE..]\n",
               stderr);
    return 2;
  }
  const bev::Wanted wanted = bev::parse(argc, argv);
  bev::run_thread_ranks(1, {}, [&](bev::World& world) { bev::run(world, wanted); });
  return 0;
}
