#include "backend/cpu/top_logits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"

namespace bev {

namespace {

struct Ranked {
  double logit;
  std::int32_t id;
};

// Heap order with the first to go on top: the smallest logit, the highest id among equals. NaN
// counts as -infinity.
bool ranks_before(const Ranked& a, const Ranked& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// A later equal logit has a higher id and does not enter the heap.
template <class T>
std::size_t largest_of(std::span<const T> logits, std::size_t k, Ranked* heap) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (count == k && !(static_cast<double>(logits[i]) > heap[0].logit)) continue;
    if (count == k) std::pop_heap(heap, heap + count--, ranks_before);
    const double logit =
        std::isnan(logits[i]) ? -std::numeric_limits<double>::infinity() : double{logits[i]};
    heap[count++] = {logit, static_cast<std::int32_t>(i)};
    std::push_heap(heap, heap + count, ranks_before);
  }
  std::sort_heap(heap, heap + count, ranks_before);
  return count;
}

template <class T>
void top_row(const TopLogitsArgs& args, std::int64_t row, Ranked* heap) {
  const std::int64_t columns = args.logits.shape[1], k = args.values.shape[1];
  const T* logits = args.logits.as<T>() + row * columns;
  T* values = args.values.as<T>() + row * k;
  auto* ids = args.ids.as<std::int32_t>() + row * k;
  const std::size_t count =
      largest_of<T>({logits, static_cast<std::size_t>(columns)}, static_cast<std::size_t>(k), heap);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i] = heap[i].id;
    values[i] = logits[heap[i].id];
  }
  std::fill(ids + count, ids + k, -1);
  std::fill(values + count, values + k, -std::numeric_limits<T>::infinity());
}

}  // namespace

void check_logits(const char* op, const View& logits) {
  BEV_CHECK(
      logits.shape.ndim() == 2 && (logits.dtype == Dtype::kF32 || logits.dtype == Dtype::kF64),
      ErrorKind::kInternal, op, ": logits ", logits.shape, " ", name_of(logits.dtype));
}

// Lanes of 64 bytes, which the compiler splits into the registers of the baseline.
template <class T>
RowMaximum<T> row_maximum(std::span<const T> logits) {
  typedef T Lanes __attribute__((vector_size(64)));
  constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(T);
  constexpr T kMost = std::numeric_limits<T>::max();
  RowMaximum<T> row;
  Lanes most = {};
  most += row.largest;
  auto regular = most <= kMost;
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    Lanes next;
    std::memcpy(&next, logits.data() + i, sizeof next);
    most = next > most ? next : most;
    regular &= next <= kMost;
  }
  row.finite = true;
  for (std::size_t l = 0; l < kLanes; ++l) {
    row.largest = std::max(row.largest, most[l]);
    row.finite &= regular[l] != 0;
  }
  for (; i < logits.size(); ++i) {
    row.largest = logits[i] > row.largest ? logits[i] : row.largest;
    row.finite &= logits[i] <= kMost;
  }
  row.finite &= row.largest >= -kMost;
  return row;
}

template RowMaximum<float> row_maximum(std::span<const float>);
template RowMaximum<double> row_maximum(std::span<const double>);

void top_logits(const Stream& stream, const TopLogitsArgs& args) {
  check_logits("top logits", args.logits);
  const std::int64_t rows = args.logits.shape[0], k = args.values.shape[1];
  BEV_CHECK(k <= 1024 && args.values.shape == Shape({rows, k}) &&
                args.ids.shape == Shape({rows, k}) && args.values.dtype == args.logits.dtype &&
                args.ids.dtype == Dtype::kI32,
            ErrorKind::kInternal, "top logits: ", args.logits.shape, " to values ",
            args.values.shape, ", ids ", args.ids.shape);
  if (k == 0) return;
  auto* heaps = reinterpret_cast<Ranked*>(
      stream.pool->scratch(static_cast<std::size_t>(stream.pool->threads() * k) * sizeof(Ranked)));
  std::atomic<std::int64_t> next = 0;
  stream.pool->run(stream.pool->threads(), [&](std::int64_t lane) {
    for (std::int64_t row = next.fetch_add(1); row < rows; row = next.fetch_add(1)) {
      if (args.logits.dtype == Dtype::kF64) {
        top_row<double>(args, row, heaps + lane * k);
      } else {
        top_row<float>(args, row, heaps + lane * k);
      }
    }
  });
}

}  // namespace bev
