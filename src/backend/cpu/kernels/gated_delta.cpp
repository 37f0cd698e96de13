// Gated delta rule: the forward by chunks, token by token, and states carried between ranks.
#include "backend/cpu/kernels/delta_chunk.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Memory of a lane: one chunk, and the states of the value heads that share a key head.
template <class A>
struct ForwardLane {
  KeyChunk<A> keys;
  ValueChunk<A> chunk;
  Tile<A> out, moved;         // [C, V], [C, K]
  Tile<A> states, transfers;  // [heads, K, V], [heads, K, K]
  std::int64_t state_size, transfer_size;

  ForwardLane(const ChunkSizes& sizes, std::int64_t heads, bool transfer, ScratchBlock& block)
      : keys(sizes, block),
        chunk(sizes, block),
        out(block.tile<A>(sizes.row_stride, sizes.value_stride)),
        moved(block.tile<A>(transfer ? sizes.row_stride : 0, sizes.key_stride)),
        states(block.tile<A>(heads * sizes.key_stride, sizes.value_stride)),
        transfers(block.tile<A>(transfer ? heads * sizes.key_stride : 0, sizes.key_stride)),
        state_size(std::int64_t{sizes.key_stride} * sizes.value_stride),
        transfer_size(std::int64_t{sizes.key_stride} * sizes.key_stride) {}

  Tile<A> state(std::int64_t head) const {
    return {states.data + head * state_size, states.stride};
  }
  Tile<A> transfer(std::int64_t head) const {
    return {transfers.data + head * transfer_size, transfers.stride};
  }
};

// One run and key head of the arguments.
template <class T>
class ForwardTask {
 public:
  using A = accumulate_t<T>;

  ForwardTask(const DeltaForwardArgs& args, const RecurrentRun& run, std::int64_t key_head,
              std::byte* memory)
      : args_(args),
        shape_(args.shape),
        run_(run),
        key_head_(key_head),
        group_(shape_.value_heads / shape_.key_heads),
        sizes_(shape_),
        block_(memory),
        lane_(sizes_, group_, !args.transfer.empty(), block_) {}

  static std::size_t bytes(const DeltaForwardArgs& args) {
    ScratchBlock count;
    ForwardLane<A>(ChunkSizes(args.shape), args.shape.value_heads / args.shape.key_heads,
                   !args.transfer.empty(), count);
    return count.bytes();
  }

  void run() {
    for (std::int64_t h = 0; h < group_; ++h) begin(h);
    for (std::int64_t at = 0; at < run_.count; at += shape_.chunk) {
      sizes_.rows = static_cast<int>(std::min(shape_.chunk, run_.count - at));
      load_keys(run_.row + at);
      for (std::int64_t h = 0; h < group_; ++h) chunk(h, run_.row + at);
    }
    if (run_.leave < 0 || args_.leaving.rows.empty()) return;
    for (std::int64_t h = 0; h < group_; ++h) leave(h);
  }

 private:
  std::int64_t head(std::int64_t h) const { return key_head_ * group_ + h; }
  bool transfers() const { return !args_.transfer.empty() && run_.leave >= 0; }

  void begin(std::int64_t h) {
    load_state(args_.entering, shape_, run_.enter, head(h), lane_.state(h));
    if (!transfers()) return;
    clear(sizes_.key_stride, lane_.transfer(h));
    for (int i = 0; i < sizes_.keys; ++i) lane_.transfer(h).data[i * (sizes_.key_stride + 1)] = 1;
  }

  void load_keys(std::int64_t row) {
    const T* q = args_.qkv.as<T>() + row * shape_.columns() + key_head_ * shape_.key_size;
    const T* k = q + shape_.key_columns();
    load_matrix(q, shape_.columns(), sizes_.rows, sizes_.keys, lane_.keys.q);
    load_matrix(k, shape_.columns(), sizes_.rows, sizes_.keys, lane_.keys.k);
    finish_keys(sizes_, shape_, row, lane_.keys);
  }

  void chunk(std::int64_t h, std::int64_t row) {
    ValueChunk<A>& at = lane_.chunk;
    const std::int64_t gates = row * shape_.value_heads + head(h);
    set_decays(sizes_, lane_.keys, args_.g.as<A>() + gates, args_.beta.as<A>() + gates,
               shape_.value_heads, at);
    const T* v = args_.qkv.as<T>() + row * shape_.columns() + 2 * shape_.key_columns() +
                 head(h) * shape_.value_size;
    load_matrix(v, shape_.columns(), sizes_.rows, sizes_.values, at.v);
    solve_chunk(sizes_, lane_.keys, at);
    correct(sizes_, lane_.state(h), at);
    if (!args_.out.empty()) write(h, row);
    advance(sizes_, lane_.keys, at, sizes_.values, at.corrected, lane_.state(h));
    if (!transfers()) return;
    multiply(sizes_.rows, sizes_.keys, sizes_.keys, at.w, lane_.transfer(h), lane_.moved);
    advance(sizes_, lane_.keys, at, sizes_.keys, lane_.moved, lane_.transfer(h));
  }

  // O = diag(e) Q S + P V'
  void write(std::int64_t h, std::int64_t row) {
    multiply(sizes_.rows, sizes_.values, sizes_.keys, lane_.keys.q, lane_.state(h), lane_.out);
    scale_rows(sizes_.rows, lane_.chunk.enter, lane_.out);
    multiply_add(sizes_.rows, sizes_.values, sizes_.rows, lane_.chunk.scores, lane_.chunk.corrected,
                 lane_.out);
    const std::int64_t columns = shape_.value_heads * shape_.value_size;
    store_matrix(lane_.out, sizes_.rows, sizes_.values,
                 args_.out.as<T>() + row * columns + head(h) * shape_.value_size, columns);
  }

  void leave(std::int64_t h) {
    store_matrix(lane_.state(h), sizes_.keys, sizes_.values,
                 state_at<A>(args_.leaving, shape_, run_.leave, head(h)), shape_.value_size);
    if (!transfers()) return;
    A* to = args_.transfer.as<A>() +
            (run_.leave * shape_.value_heads + head(h)) * shape_.key_size * shape_.key_size;
    store_matrix(lane_.transfer(h), sizes_.keys, sizes_.keys, to, shape_.key_size);
  }

  const DeltaForwardArgs& args_;
  const DeltaShape& shape_;
  const RecurrentRun& run_;
  const std::int64_t key_head_, group_;
  ChunkSizes sizes_;
  ScratchBlock block_;
  ForwardLane<A> lane_;
};

}  // namespace

void delta_forward(const Stream& stream, const DeltaForwardArgs& args) {
  check_delta("delta rule", args.shape, args.qkv, args.g, args.beta);
  visit_float(args.qkv.dtype, [&](auto type) {
    using Task = ForwardTask<decltype(type)>;
    for_run_heads(stream, args.shape, args.shape.key_heads, Task::bytes(args),
                  [&](std::byte* memory, std::int64_t run, std::int64_t head) {
                    Task(args, args.shape.runs[static_cast<std::size_t>(run)], head, memory).run();
                  });
  });
}

namespace {

// One head of a chain of links.
template <class A>
void follow(const DeltaLinksArgs& args, std::int64_t head, std::int64_t heads, A* before) {
  const std::int64_t keys = args.add.shape[2], values = args.add.shape[3], size = keys * values;
  std::int64_t previous = -1;
  for (const DeltaLink& link : args.links) {
    A* state = args.states.as<A>() + (link.target * heads + head) * size;
    const bool starts = link.target != previous;
    previous = link.target;
    if (!starts) std::copy_n(state, size, before);
    std::copy_n(args.add.as<A>() + (link.item * heads + head) * size, size, state);
    if (starts) continue;
    const A* matrix = args.transfer.as<A>() + (link.item * heads + head) * keys * keys;
    for (std::int64_t i = 0; i < keys; ++i) {
      for (std::int64_t j = 0; j < keys; ++j) {
        const A factor = args.transpose ? matrix[j * keys + i] : matrix[i * keys + j];
        const A* __restrict from = before + j * values;
        A* __restrict to = state + i * values;
        for (std::int64_t v = 0; v < values; ++v) to[v] += factor * from[v];
      }
    }
  }
}

void link(const Stream& stream, const DeltaLinksArgs& args) {
  BEV_CHECK(args.add.shape.ndim() == 4 && args.transfer.shape.ndim() == 4 &&
                args.states.shape.ndim() == 4 && args.add.shape[1] == args.states.shape[1] &&
                args.add.shape.row_numel() == args.states.shape.row_numel(),
            "delta rule: states ", args.states.shape, " from ", args.add.shape, " and ",
            args.transfer.shape);
  const std::int64_t heads = args.add.shape[1], size = args.add.shape[2] * args.add.shape[3];
  visit_float(args.add.dtype, [&](auto type) {
    using A = decltype(type);
    if constexpr (sizeof(A) >= 4) {
      auto* before = reinterpret_cast<A*>(
          stream.pool->scratch(static_cast<std::size_t>(heads * size) * sizeof(A)));
      stream.pool->run(heads,
                       [&](std::int64_t head) { follow(args, head, heads, before + head * size); });
    }
  });
}

}  // namespace

DeltaRuleKernels kernel_table(Family<DeltaRuleKernels>) {
  return {.forward = delta_forward,
          .step = delta_step,
          .backward = delta_backward,
          .link = link,
          .gates = delta_gates,
          .gates_backward = delta_gates_backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
