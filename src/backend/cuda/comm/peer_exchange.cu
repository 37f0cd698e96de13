// Collectives between ranks that share a GPU: reduction and copies in one kernel over the memory of
// all.
#include "backend/cuda/comm/peer_exchange.h"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"

namespace bev::cuda {

namespace {

// Together they fit the 4 KB of parameters that every kernel may have.
constexpr std::size_t kMostParts = 88, kMostAddresses = 320;

struct ExchangePart {
  std::int64_t count;
  std::uint16_t first;  // index of the first source address
  std::uint8_t sources, targets;
  bool aligned;  // all addresses are 16-byte aligned
};

struct ExchangeTable {
  ExchangePart parts[kMostParts];
  void* addresses[kMostAddresses];
  bool maximum;
};
static_assert(sizeof(ExchangeTable) <= 4096 - 64);

// Accumulate type of T, as on the host.
template <class T>
struct SumOf {
  using type = T;
};
template <>
struct SumOf<Bfloat> {
  using type = float;
};
template <>
struct SumOf<Half> {
  using type = float;
};

template <class T>
__device__ typename SumOf<T>::type to_sum(T x) {
  if constexpr (sizeof(T) == 2) {
    return widen(x);
  } else {
    return x;
  }
}
template <class T>
__device__ T from_sum(typename SumOf<T>::type x) {
  if constexpr (sizeof(T) == 2) {
    return narrow<T>(x);
  } else {
    return x;
  }
}

// Reduces N elements at `at` over all sources, in their order, and writes them to all targets.
template <class T, int N>
__device__ void exchange(const ExchangeTable& table, const ExchangePart& part, std::int64_t at) {
  using Sum = typename SumOf<T>::type;
  void* const* address = table.addresses + part.first;
  Pack<T, N> values;
  values.load(static_cast<const T*>(address[0]) + at);
  if (part.sources > 1) {
    Sum sums[N];
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = to_sum(values.items[i]);
#pragma unroll 4
    for (int s = 1; s < part.sources; ++s) {
      values.load(static_cast<const T*>(address[s]) + at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Sum value = to_sum(values.items[i]);
        // NaN propagates through the maximum.
        const bool larger = value > sums[i] || value != value;
        sums[i] = !table.maximum ? static_cast<Sum>(sums[i] + value) : larger ? value : sums[i];
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) values.items[i] = from_sum<T>(sums[i]);
  }
  address += part.sources;
  for (int t = 0; t < part.targets; ++t) values.store(static_cast<T*>(address[t]) + at);
}

// Grid: y over parts, x strides over the elements of a part.
template <class T>
__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ ExchangeTable table) {
  const ExchangePart& part = table.parts[blockIdx.y];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t packs = part.aligned ? part.count / kPack<T> : 0;
  for (std::int64_t i = first; i < packs; i += step)
    exchange<T, kPack<T>>(table, part, i * kPack<T>);
  for (std::int64_t i = packs * kPack<T> + first; i < part.count; i += step) {
    exchange<T, 1>(table, part, i);
  }
}

// Calls f(T{}) with the device type of any dtype.
template <class F>
void visit_element(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kF64:
      return f(double{});
    case Dtype::kI64:
      return f(std::int64_t{});
    case Dtype::kI32:
      return f(std::int32_t{});
    case Dtype::kU8:
      return f(std::uint8_t{});
    default:
      return visit_value(dtype, f);
  }
}

void launch(cudaStream_t stream, Dtype dtype, const ExchangeTable& table, std::size_t parts) {
  // Enough to fill the GPU twice; more blocks would only queue.
  constexpr std::int64_t kMostBlocks = 2048;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < parts; ++i) longest = std::max(longest, table.parts[i].count);
  visit_element(dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t blocks = std::min(ceil_div(longest, kThreads * kPack<T>), kMostBlocks);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
    exchange_kernel<T><<<grid, kThreads, 0, stream>>>(table);
  });
  check_launch("exchange between ranks");
}

}  // namespace

void run_exchange(cudaStream_t stream, const CollectivePlan& plan) {
  ExchangeTable table;
  table.maximum = plan.reduction == Reduction::kMax;
  std::size_t parts = 0, addresses = 0;
  for (const CollectivePart& part : plan.parts) {
    const std::size_t more = part.sources + part.targets;
    BEV_CHECK(std::max(part.sources, part.targets) <= kMostAddresses / 2, ErrorKind::kConfig,
              "CUDA: ", std::max(part.sources, part.targets),
              " ranks of a group share a GPU; at most ", kMostAddresses / 2, " can");
    if (parts == kMostParts || addresses + more > kMostAddresses) {
      launch(stream, plan.dtype, table, parts);
      parts = addresses = 0;
    }
    std::uintptr_t bits = 0;
    const std::size_t first = addresses;
    for (std::size_t i = 0; i < more; ++i) {
      table.addresses[addresses] = plan.addresses[part.first + i];
      bits |= reinterpret_cast<std::uintptr_t>(table.addresses[addresses++]);
    }
    table.parts[parts++] = {part.count, static_cast<std::uint16_t>(first),
                            static_cast<std::uint8_t>(part.sources),
                            static_cast<std::uint8_t>(part.targets), bits % 16 == 0};
  }
  if (parts > 0) launch(stream, plan.dtype, table, parts);
}

}  // namespace bev::cuda
