#include "app/ranks.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>

#include "app/end_process.h"
#include "app/failure.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/environment.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif
#include "base/error.h"
#include "base/file.h"
#include "base/gpu_archs.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "comm/fault.h"
#include "comm/process/mpi_link.h"
#include "comm/process/process_world.h"
#include "comm/process/tcp_link.h"
#include "kernels/device.h"

namespace bev {

const Kernels& device_kernels(const RuntimeConfig& runtime) {
#ifdef BEV_HAS_CUDA
  if (runtime.device != DeviceKind::kCpu && cuda_device_count() > 0) {
    check_cuda_devices();
    return runtime.exact ? cuda_exact_kernels() : cuda_kernels();
  }
  const char* lacks = "no GPU, or no driver for it";
#else
  const char* lacks = "no CUDA in this build (it needs nvcc)";
#endif
  BEV_CHECK(runtime.device != DeviceKind::kCuda, ErrorKind::kConfig, "--device cuda: there is ",
            lacks, "; --device cpu runs everywhere");
  return runtime.exact ? cpu_exact_kernels() : cpu_kernels();
}

#ifdef BEV_HAS_CUDA
namespace {
// FP8 GEMMs need Ada's tensor cores or newer ones; those with a scale per block are Hopper's.
void check_fp8_device(const Fp8Config& fp8, int limit) {
  constexpr int kAda = 89, kHopper = 90;
  if (!fp8.used() || fp8.emulates_fp4()) return;
  bool blockwise = fp8.scaling() == Fp8Scaling::kBlockwise;
  for (int device = 0; device < cuda_device_count(); ++device) {
    int arch = cuda_arch(device, limit);
    BEV_CHECK(arch >= kAda, ErrorKind::kConfig, "--fp8-format: ", cuda_device_name(device),
              limit > 0 ? concat(" under --limit-arch ", limit) : "",
              " has no tensor cores for FP8, which begin with 8.9; train in --bf16");
    BEV_CHECK(!blockwise || arch == kHopper, ErrorKind::kConfig, "--fp8-recipe: blockwise is for ",
              "architecture 90, not ", arch, " (", cuda_device_name(device), "); use tensorwise");
  }
}
}  // namespace
#endif

void check_optimizer_device(OptimizerKind optimizer, const Kernels& kernels) {
  const bool host = optimizer == OptimizerKind::kAdafactor || optimizer == OptimizerKind::kSoap;
  BEV_CHECK(!host || kernels.device.capture == nullptr, ErrorKind::kConfig,
            "--optimizer: ", optimizer == OptimizerKind::kSoap ? "soap" : "adafactor",
            " computes on the CPU alone; give --device cpu, or --optimizer muon or adam");
}

void check_device(const RunConfig& run) {
  std::int64_t limit = run.runtime.limit_arch;
  BEV_CHECK(limit == 0 || limit >= kLeastArch, ErrorKind::kConfig, "--limit-arch: ", limit,
            " is below ", kLeastArch, ", which the kernels begin with");
  [[maybe_unused]] const Kernels& kernels = device_kernels(run.runtime);
#ifdef BEV_HAS_CUDA
  if (&kernels == &cuda_kernels() || &kernels == &cuda_exact_kernels())
    check_fp8_device(run.fp8, static_cast<int>(limit));
#endif
  check_optimizer_device(run.optim.optimizer, kernels);
}

void on_process_0(const Launch& launch, FunctionRef<void()> body) {
  if (launch.process != 0) return;
  try {
    body();
  } catch (const Error& error) {
    // Without mpirun nobody ends the others. They may still prepare their data.
    constexpr double kPatienceSeconds = 30;
    if (launch.kind == LaunchKind::kTcp) refuse_tcp_link(launch, error.what(), kPatienceSeconds);
    throw;
  }
}

const Kernels* planned_kernels(const RuntimeConfig& runtime) {
  if (runtime.device != DeviceKind::kCuda) return &device_kernels(runtime);
#ifdef BEV_HAS_CUDA
  return runtime.exact ? &cuda_exact_kernels() : &cuda_kernels();
#else
  return nullptr;
#endif
}

GpuInfo gpu_info(const RuntimeConfig& runtime) {
  GpuInfo info;
  info.used = runtime.device == DeviceKind::kCuda;
#ifdef BEV_HAS_CUDA
  info.count = cuda_device_count();
  if (info.count == 0) return info;
  info.used = runtime.device != DeviceKind::kCpu;
  info.name = cuda_device_name(0);
  info.memory_bytes = cuda_device_memory(0);
#endif
  return info;
}

RuntimeConfig paying_threads(const RunConfig& run, const Launch& launch, double flops) {
  RuntimeConfig runtime = run.runtime;
  if (runtime.num_threads > 0 || gpu_info(runtime).used) return runtime;
  // Kernels of a layer in forward and backward, and the work that outweighs waking a thread.
  constexpr std::int64_t kLayerKernels = 40;
  constexpr double kThreadFlops = 3e6;
  MeshShape mesh = mesh_shape(run.parallel);
  flops /= static_cast<double>(mesh.tp * mesh.cp * mesh.pp);
  auto kernels = static_cast<double>(kLayerKernels * (run.model.num_layers / mesh.pp + 1));
  std::int64_t ranks = mesh.size() / launch.processes;
  double paying = std::clamp(flops / kernels / kThreadFlops, 1.0, 1e6);
  std::int64_t most = threads_per_rank(runtime, ranks, launch);
  if (static_cast<std::int64_t>(paying) < most) {
    runtime.num_threads = static_cast<std::int64_t>(paying) * ranks;
  }
  return runtime;
}

int threads_per_rank(const RuntimeConfig& runtime, std::int64_t ranks, const Launch& launch) {
  // More threads than this per core only wait for each other.
  constexpr std::int64_t kThreadsPerCore = 16;
  const std::int64_t cores = machine_threads();
  BEV_CHECK(runtime.num_threads <= kThreadsPerCore * cores, ErrorKind::kConfig,
            "--num-threads: ", runtime.num_threads, " threads for ", cores, " cores; use at most ",
            kThreadsPerCore * cores);
  std::int64_t sharers = launch.bound ? 1 : launch.local_processes;
  std::int64_t threads = runtime.num_threads > 0 ? runtime.num_threads : cores / sharers;
  return static_cast<int>(std::max<std::int64_t>(threads / ranks, 1));
}

namespace {
// Returns "" if the cache is disabled, or if there is no folder for it.
std::string kernel_cache_folder(const RuntimeConfig& runtime) {
  if (runtime.kernel_cache_path == "none") return "";
  if (!runtime.kernel_cache_path.empty()) return runtime.kernel_cache_path;
  std::map<std::string, std::string> environment = environment_variables();
  std::string cache = environment["XDG_CACHE_HOME"], home = environment["HOME"];
  if (cache.starts_with('/')) return join_path(cache, "bevatron");
  return home.starts_with('/') ? join_path(home, ".cache/bevatron") : "";
}
}  // namespace

EngineOptions engine_options(const RunConfig& run, int threads, int local_rank) {
  EngineOptions options;
  options.model = run.model;
  options.parallel = run.parallel;
  options.optim = run.optim;
  options.dtype = run.precision.model_dtype();
  options.fp8 = run.fp8;
  options.base = run.base;
  options.seed = static_cast<std::uint64_t>(run.runtime.seed);
  options.threads = threads;
  options.local_rank = local_rank;
  options.deterministic = run.runtime.deterministic_mode;
  options.capture_steps = run.runtime.cuda_graph_impl == CudaGraphs::kLocal;
  options.cache_folder = kernel_cache_folder(run.runtime);
  options.limit_arch = static_cast<int>(run.runtime.limit_arch);
  return options;
}

namespace {

std::unique_ptr<Link> make_link(const Launch& launch, double timeout_seconds) {
  if (launch.kind == LaunchKind::kTcp) return connect_tcp_link(launch, timeout_seconds);
  std::unique_ptr<Link> link = load_mpi_link();
  BEV_CHECK(link->processes() == launch.processes && link->process() == launch.process,
            ErrorKind::kComm, "MPI says process ", link->process(), " of ", link->processes(),
            ", the environment ", launch.process, " of ", launch.processes,
            "; start it by the mpirun of its own MPI, or by srun with --mpi=pmix");
  return link;
}

// From here on SIGTERM ends the process without a message: launchers send it to clean up.
void heed_terminate() {
  std::signal(SIGTERM, SIG_DFL);
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr);
}

// Ranks of this process may still be computing, and one may never stop: nothing is unwound.
void end_run(const RankFailure& failure, Link& link) {
  int code = exit_code(failure.kind);
  if (failure.announced_here) {
    log_error(failure_text(failure.kind, failure.message, failure.where));
  } else if (link.ends_others()) {
    heed_terminate();
  } else {
    log_info(concat("ended: ", split(failure.message, '\n').front()));
  }
  link.abandon(code, failure.announced_here);
  end_process(code);
}

}  // namespace

void run_ranks(const Launch& launch, const ParallelConfig& parallel, const RuntimeConfig& runtime,
               FunctionRef<void(const RankStart&)> body) {
  const Kernels& kernels = device_kernels(runtime);
  std::int64_t world_size = mesh_shape(parallel).size(), ranks = world_size / launch.processes;
  int threads = threads_per_rank(runtime, ranks, launch);
  double timeout_seconds = parallel.distributed_timeout_minutes * 60;
  std::optional<Fault> fault;
  if (!parallel.inject_fault.empty()) {
    fault = parse_fault(parallel.inject_fault);
    BEV_CHECK(fault->rank < world_size, ErrorKind::kConfig, "--inject-fault: rank ", fault->rank,
              " of ", world_size, " ranks, which count from 0");
  }
  auto start = [&](World& world) {
    std::int64_t thread = world.rank() - launch.process * ranks;
    bool first = thread == 0;
    auto local_rank = static_cast<int>(launch.local_process * ranks + thread);
    if (!fault) return body({world, kernels, threads, first, local_rank});
    FaultWorld faulty(world, *fault);
    body({faulty, kernels, threads, first, local_rank});
  };
  if (launch.kind == LaunchKind::kAlone) {
    run_thread_ranks(static_cast<int>(ranks), {timeout_seconds}, start);
    return;
  }
  std::unique_ptr<Link> link = make_link(launch, timeout_seconds);
  ProcessWorldOptions options{launch.settings, static_cast<int>(ranks), timeout_seconds, end_run};
  run_process_ranks(*link, options, start);
}

}  // namespace bev
