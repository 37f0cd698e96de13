// cuDNN attention for 16-bit batches of sequences of equal length. The library is loaded at its
// first use, so that the program also starts without it; if it is built without the cuDNN frontend
// headers, all shapes use our kernels.
#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_plans.h"
#include "backend/cuda/attention/attention_statistics.h"
#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"
#include "base/error.h"

#if __has_include(<cudnn_frontend.h>) && __has_include(<cudnn.h>)

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

// The frontend looks up the library functions through this handle.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace bev {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// With fewer queries a plan is not worth building; our kernels need none.
constexpr std::int32_t kLeastQueries = 128;
// Building a plan takes about 0.1 s. Past this many shapes, new ones use our kernels.
constexpr std::size_t kMaxPlans = 64;
constexpr std::int64_t kMostHeadSize = 256;

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStatistics, kDout, kDq, kDk, kDv };

bool load_library() {
  static const bool loaded = [] {
    constexpr std::size_t kLeastVersion = 90600;
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    return fe::cudnn_dlhandle != nullptr && fe::detail::get_backend_version() >= kLeastVersion;
  }();
  return loaded;
}

// Key of a plan: `batch` runs at equal distances.
struct PlanKey {
  bool backward = false;
  Dtype dtype = Dtype::kBf16;
  std::int64_t batch = 0, q_count = 0, k_count = 0;
  std::int64_t q_step = 0, k_step = 0;  // rows from the start of one run to the next
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0, v_head_size = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  AttentionRule rule;
  bool at_end = false;  // the last query is aligned with the last key

  auto operator<=>(const PlanKey&) const = default;
  StatisticsLayout statistics() const { return {batch, q_heads, q_count, q_step}; }
};

struct Plan {
  fe::graph::Graph graph;
  std::size_t workspace_bytes = 0;
};

bool are_aligned(std::initializer_list<const void*> pointers) {
  return std::ranges::all_of(
      pointers, [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; });
}

bool same_kind(const AttentionRun& a, const AttentionRun& b) {
  return a.q_count == b.q_count && a.k_count == b.k_count && a.offset == b.offset;
}

// Nothing if cuDNN does not support the shape.
std::optional<PlanKey> key_of(const AttentionShape& shape, bool backward) {
  if (shape.runs.empty() || (shape.dtype != Dtype::kBf16 && shape.dtype != Dtype::kF16) ||
      shape.rule.softcap > 0 || shape.rule.dropout > 0 ||
      (shape.rule.window >= 0 && !shape.rule.causal) || shape.rule.chunked ||
      shape.head_size % 8 != 0 || shape.v_head_size % 8 != 0 ||
      std::max(shape.head_size, shape.v_head_size) > kMostHeadSize || shape.q_stride % 8 != 0 ||
      shape.k_stride % 8 != 0 || shape.v_stride % 8 != 0) {
    return std::nullopt;
  }
  const AttentionRun& first = shape.runs.front();
  const bool at_end = first.offset == first.k_count - first.q_count;
  if (first.q_count < kLeastQueries || first.k_count < first.q_count ||
      (shape.rule.causal && first.offset != 0 && !at_end)) {
    return std::nullopt;
  }
  std::int64_t q_step = first.q_count, k_step = first.k_count;
  for (std::size_t i = 1; i < shape.runs.size(); ++i) {
    const AttentionRun &last = shape.runs[i - 1], &run = shape.runs[i];
    if (i == 1) q_step = run.q_begin - last.q_begin, k_step = run.k_begin - last.k_begin;
    if (!same_kind(first, run) || run.q_begin - last.q_begin != q_step ||
        run.k_begin - last.k_begin != k_step) {
      return std::nullopt;
    }
  }
  if (q_step < first.q_count || k_step < first.k_count) return std::nullopt;
  PlanKey key;
  key.backward = backward;
  key.dtype = shape.dtype;
  key.batch = static_cast<std::int64_t>(shape.runs.size());
  key.q_count = first.q_count, key.k_count = first.k_count;
  key.q_step = q_step, key.k_step = k_step;
  key.q_heads = shape.q_heads, key.kv_heads = shape.kv_heads;
  key.head_size = shape.head_size, key.v_head_size = shape.v_head_size;
  key.q_stride = shape.q_stride, key.k_stride = shape.k_stride, key.v_stride = shape.v_stride;
  key.rule = shape.rule;
  if (key.rule.window >= first.k_count) key.rule.window = -1;
  key.rule.sink = SoftmaxSink::kNone;  // add_sinks joins it
  key.at_end = at_end;
  return key;
}

// Tensor descriptors of a graph.
class GraphTensors {
 public:
  GraphTensors(fe::graph::Graph& graph, const PlanKey& key) : graph_(graph), key_(key) {}

  Tensor input(const char* name, Uid uid) { return set(graph_.tensor(named(name)), uid); }
  void output(const Tensor& tensor, Uid uid) { set(tensor, uid)->set_output(true); }

 private:
  static fe::graph::Tensor_attributes named(const char* name) {
    return fe::graph::Tensor_attributes().set_name(name);
  }
  // Dims [batch, heads, rows, head size]; rows of a sequence are `stride` elements apart.
  Tensor set(const Tensor& tensor, Uid uid) const {
    const std::int64_t qk = key_.head_size, v = key_.v_head_size;
    const auto rows = [&](std::int64_t heads, std::int64_t count, std::int64_t step,
                          std::int64_t stride, std::int64_t size) {
      tensor->set_dim({key_.batch, heads, count, size})
          .set_stride({step * stride, size, stride, 1});
    };
    tensor->set_uid(uid);
    switch (uid) {
      case kQ:
      case kDq:
        rows(key_.q_heads, key_.q_count, key_.q_step, key_.q_stride, qk);
        break;
      case kK:
      case kDk:
        rows(key_.kv_heads, key_.k_count, key_.k_step, key_.k_stride, qk);
        break;
      case kV:
      case kDv:
        rows(key_.kv_heads, key_.k_count, key_.k_step, key_.v_stride, v);
        break;
      case kOut:
      case kDout:
        rows(key_.q_heads, key_.q_count, key_.q_step, key_.q_heads * v, v);
        break;
      case kStatistics:
        tensor->set_dim({key_.batch, key_.q_heads, key_.q_count, 1})
            .set_stride({key_.q_heads * key_.q_count, key_.q_count, 1, 1})
            .set_data_type(fe::DataType_t::FLOAT);
        break;
    }
    return tensor;
  }

  fe::graph::Graph& graph_;
  const PlanKey& key_;
};

template <class Attributes>
void set_mask(const PlanKey& key, Attributes& attributes) {
  attributes.set_attn_scale(static_cast<float>(key.rule.scale));
  if (!key.rule.causal) return;
  attributes.set_diagonal_alignment(key.at_end && key.q_count != key.k_count
                                        ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                        : fe::DiagonalAlignment_t::TOP_LEFT);
  attributes.set_diagonal_band_right_bound(0);
  // cuDNN includes the query's own position in the window.
  if (key.rule.window >= 0)
    attributes.set_diagonal_band_left_bound(static_cast<int>(key.rule.window) + 1);
}

void add_forward(const PlanKey& key, fe::graph::Graph& graph) {
  GraphTensors tensors(graph, key);
  auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  set_mask(key, attributes);
  auto [out, statistics] = graph.sdpa(tensors.input("q", kQ), tensors.input("k", kK),
                                      tensors.input("v", kV), std::move(attributes));
  tensors.output(out, kOut);
  tensors.output(statistics, kStatistics);
}

void add_backward(const PlanKey& key, fe::graph::Graph& graph) {
  GraphTensors tensors(graph, key);
  auto attributes = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
  set_mask(key, attributes);
  auto [dq, dk, dv] =
      graph.sdpa_backward(tensors.input("q", kQ), tensors.input("k", kK), tensors.input("v", kV),
                          tensors.input("out", kOut), tensors.input("dout", kDout),
                          tensors.input("statistics", kStatistics), std::move(attributes));
  tensors.output(dq, kDq);
  tensors.output(dk, kDk);
  tensors.output(dv, kDv);
}

// Null if cuDNN rejects the graph.
std::unique_ptr<Plan> make_plan(cudnnHandle_t handle, const PlanKey& key) {
  auto plan = std::make_unique<Plan>();
  plan->graph
      .set_io_data_type(key.dtype == Dtype::kBf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (key.backward) {
    add_backward(key, plan->graph);
  } else {
    add_forward(key, plan->graph);
  }
  // The frontend throws if a library is missing, and returns an error if a shape is not supported.
  try {
    std::int64_t bytes = 0;
    if (plan->graph.build(handle, {fe::HeurMode_t::A}).is_bad() ||
        plan->graph.get_workspace_size(bytes).is_bad()) {
      return nullptr;
    }
    plan->workspace_bytes = static_cast<std::size_t>(bytes);
  } catch (const std::exception&) {
    return nullptr;
  }
  return plan;
}

// Addresses of the first run's rows in q, k, v, out and their gradients.
struct FirstRows {
  const AttentionShape& shape;

  void* q(const void* data) const { return at(data, shape.runs.front().q_begin, shape.q_stride); }
  void* k(const void* data) const { return at(data, shape.runs.front().k_begin, shape.k_stride); }
  void* v(const void* data) const { return at(data, shape.runs.front().k_begin, shape.v_stride); }
  void* out(const View& view) const {
    return at(view.data, shape.runs.front().q_begin, shape.q_heads * shape.v_head_size);
  }
  float* lse(const View& view) const {
    return view.as<float>() + shape.runs.front().q_begin * shape.q_heads;
  }

 private:
  void* at(const void* data, std::int64_t row, std::int64_t stride) const {
    return View{const_cast<void*>(data), shape.dtype, {}}.address(row * stride);
  }
};

}  // namespace

struct CudaAttention::Plans {
  cudnnHandle_t handle = nullptr;
  std::map<PlanKey, std::unique_ptr<Plan>> plans;

  explicit Plans(CudaQueue& queue) {
    if (!load_library() || fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS) {
      handle = nullptr;
      return;
    }
    BEV_CHECK(fe::detail::set_stream(handle, queue.stream()) == CUDNN_STATUS_SUCCESS,
              ErrorKind::kDevice, "cuDNN: cannot use the stream");
  }
  ~Plans() {
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  Plan* find(const PlanKey& key) {
    auto at = plans.find(key);
    if (at == plans.end()) {
      if (plans.size() == kMaxPlans) return nullptr;
      at = plans.emplace(key, make_plan(handle, key)).first;
    }
    return at->second.get();
  }

  void run(Plan& plan, std::unordered_map<std::int64_t, void*> pointers, void* workspace) const {
    auto status = plan.graph.execute(handle, pointers, workspace);
    BEV_CHECK(status.is_good(), ErrorKind::kDevice, "cuDNN: attention: ", status.get_message());
  }
};

// A plan and its scratch memory.
struct CudaAttention::Call {
  Plan* plan = nullptr;
  StatisticsLayout layout;
  std::byte* workspace = nullptr;
  float* statistics = nullptr;
};

CudaAttention::CudaAttention() = default;
CudaAttention::~CudaAttention() = default;

bool CudaAttention::has_cudnn(CudaQueue& queue) {
  if (!plans_) plans_ = std::make_unique<Plans>(queue);
  return plans_->handle != nullptr;
}

CudaAttention::Call CudaAttention::prepare(CudaQueue& queue, const AttentionShape& shape,
                                           bool backward) {
  const std::optional<PlanKey> key = key_of(shape, backward);
  if (!key || !has_cudnn(queue)) return {};
  Plan* plan = plans_->find(*key);
  if (plan == nullptr) return {};
  const StatisticsLayout layout = key->statistics();
  const std::size_t workspace_bytes = round_up(plan->workspace_bytes, 256);
  auto* memory = static_cast<std::byte*>(
      queue.scratch(workspace_bytes + static_cast<std::size_t>(layout.numel()) * sizeof(float)));
  return {plan, layout, memory, reinterpret_cast<float*>(memory + workspace_bytes)};
}

bool CudaAttention::forward(CudaQueue& queue, const AttentionForwardArgs& args) {
  if (!are_aligned({args.q, args.k, args.v, args.out.data})) return false;
  const Call call = prepare(queue, args.shape, false);
  if (call.plan == nullptr) return false;
  const FirstRows rows{args.shape};
  plans_->run(*call.plan,
              {{kQ, rows.q(args.q)},
               {kK, rows.k(args.k)},
               {kV, rows.v(args.v)},
               {kOut, rows.out(args.out)},
               {kStatistics, call.statistics}},
              call.workspace);
  statistics_to_rows(queue, call.layout, call.statistics, rows.lse(args.lse));
  return true;
}

bool CudaAttention::backward(CudaQueue& queue, const AttentionBackwardArgs& args) {
  if (deterministic || !are_aligned({args.q, args.k, args.v, args.out.data, args.dout.data, args.dq,
                                     args.dk, args.dv})) {
    return false;
  }
  const Call call = prepare(queue, args.shape, true);
  if (call.plan == nullptr) return false;
  const FirstRows rows{args.shape};
  statistics_from_rows(queue, call.layout, rows.lse(args.lse), call.statistics);
  plans_->run(*call.plan,
              {{kQ, rows.q(args.q)},
               {kK, rows.k(args.k)},
               {kV, rows.v(args.v)},
               {kOut, rows.out(args.out)},
               {kDout, rows.out(args.dout)},
               {kStatistics, call.statistics},
               {kDq, rows.q(args.dq)},
               {kDk, rows.k(args.dk)},
               {kDv, rows.v(args.dv)}},
              call.workspace);
  return true;
}

#else

namespace bev {

struct CudaAttention::Plans {};
CudaAttention::CudaAttention() = default;
CudaAttention::~CudaAttention() = default;
bool CudaAttention::has_cudnn(CudaQueue&) { return false; }
bool CudaAttention::forward(CudaQueue&, const AttentionForwardArgs&) { return false; }
bool CudaAttention::backward(CudaQueue&, const AttentionBackwardArgs&) { return false; }

#endif

bool has_cudnn(const Stream& stream) {
  CudaQueue& queue = queue_of(stream);
  return queue.attention().has_cudnn(queue);
}
bool cudnn_attention_forward(const Stream& stream, const AttentionForwardArgs& args) {
  CudaQueue& queue = queue_of(stream);
  return queue.attention().forward(queue, args);
}
bool cudnn_attention_backward(const Stream& stream, const AttentionBackwardArgs& args) {
  CudaQueue& queue = queue_of(stream);
  return queue.attention().backward(queue, args);
}

}  // namespace bev
