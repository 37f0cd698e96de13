// The SSD recurrence of Mamba-2: chunks as matrix products, the pass from chunk to chunk, and
// single steps. Pieces are the groups of heads of a chunk, so no sum is shared between threads.
#include "kernels/ssd.h"

#include <cstring>

#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/small_products.h"
#include "backend/cpu/kernels/ssd_backward.h"
#include "backend/cpu/kernels/ssd_chunk.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Calls body(chunk index, group) for every group of every chunk.
template <class T, class Body>
void for_groups(const Stream& stream, const SsdShape& shape, const Body& body) {
  const std::vector<SsdChunk> chunks = ssd_chunks(shape);
  for_ranges(stream, std::ssize(chunks) * shape.groups, 1, [&](std::int64_t piece, std::int64_t) {
    const std::int64_t chunk = piece / shape.groups;
    body(chunk, SsdGroup<T>(shape, chunks[static_cast<std::size_t>(chunk)], piece % shape.groups));
  });
}

template <class T>
void run_chunk_states(const Stream& stream, const SsdChunkStatesArgs& args) {
  using A = accumulate_t<T>;
  const SsdShape& s = args.shape;
  const std::int64_t n = s.state_size, p = s.head_size, elements = n * p;
  for_groups<T>(stream, s, [&](std::int64_t chunk, const SsdGroup<T>& group) {
    const SsdChunk& at = group.chunk;
    SsdBuffer<A> b(at.count * n), x(at.count * p);
    SsdSteps<A> steps(at.count);
    read_columns<T>(args.in.xbc, at, group.b_column, n, b.get());
    for (std::int64_t h = group.first_head; h < group.end_head; ++h) {
      steps.read(SsdHead<T>(s, args.in, h), at);
      read_columns<T>(args.in.xbc, at, h * p, p, x.get());
      for (std::int64_t t = 0; t < at.count; ++t) {
        const A factor = steps.dt[static_cast<std::size_t>(t)] * steps.to_end(t, at);
        for (std::int64_t i = 0; i < p; ++i) x[t * p + i] *= factor;
      }
      const std::int64_t place = chunk * s.heads + h;
      A* state = args.states.as<A>() + place * elements;
      std::fill_n(state, elements, A(0));
      add_product<A>(n, p, at.count, {b, 1, n}, x, p, state, p);
      args.decays.as<A>()[place] = static_cast<A>(steps.total(at));
    }
  });
}

template <class T>
void run_chunk_gradients(const Stream& stream, const SsdChunkGradientsArgs& args) {
  using A = accumulate_t<T>;
  const SsdShape& s = args.shape;
  const std::int64_t n = s.state_size, p = s.head_size, elements = n * p;
  for_groups<T>(stream, s, [&](std::int64_t chunk, const SsdGroup<T>& group) {
    const SsdChunk& at = group.chunk;
    SsdBuffer<A> c(at.count * n), dy(at.count * p);
    SsdSteps<A> steps(at.count);
    read_columns<T>(args.in.xbc, at, group.c_column, n, c.get());
    for (std::int64_t h = group.first_head; h < group.end_head; ++h) {
      steps.read(SsdHead<T>(s, args.in, h), at);
      read_columns<T>(args.dy, at, h * p, p, dy.get());
      for (std::int64_t t = 0; t < at.count; ++t) {
        const A factor = steps.from_before(t, at);
        for (std::int64_t i = 0; i < p; ++i) dy[t * p + i] *= factor;
      }
      A* state = args.states.as<A>() + (chunk * s.heads + h) * elements;
      std::fill_n(state, elements, A(0));
      add_product<A>(n, p, at.count, {c, 1, n}, dy, p, state, p);
    }
  });
}

// Address of a head's state in row `row`; null for a row that is not there.
template <class A>
A* head_state(const StateRows& states, std::int64_t row, std::int64_t head, std::int64_t elements) {
  if (row < 0 || states.rows.empty()) return nullptr;
  return states.rows.as<A>() + row * states.rows.shape.row_numel() + states.first + head * elements;
}

template <class A>
void pass_head(const SsdPassArgs& args, const RecurrentRun& run, std::int64_t head) {
  const std::int64_t elements = args.head_elements;
  SsdBuffer<A> state(elements);
  const A* enter = head_state<A>(args.entering, run.enter, head, elements);
  if (enter != nullptr) std::copy_n(enter, elements, state.get());
  double total = 0;
  for (std::int64_t i = run.row; i < run.row + run.count; ++i) {
    const std::int64_t place = args.order[static_cast<std::size_t>(i)] * args.heads + head;
    A* own = args.states.as<A>() + place * elements;
    const A decay = args.decays.as<A>()[place], factor = exp_of(decay);
    total += static_cast<double>(decay);
    for (std::int64_t e = 0; e < elements; ++e) {
      const A before = state[e], added = own[e];
      if (!args.keep) own[e] = before;
      state[e] = factor * before + added;
    }
  }
  A* leave = head_state<A>(args.leaving, run.leave, head, elements);
  if (leave != nullptr) std::copy_n(state.get(), elements, leave);
  if (args.totals.empty() || run.leave < 0) return;
  args.totals.as<A>()[run.leave * args.heads + head] = static_cast<A>(total);
}

void pass_states(const Stream& stream, const SsdPassArgs& args) {
  visit_float(args.decays.dtype, [&](auto zero) {
    using A = accumulate_t<decltype(zero)>;
    const auto runs = static_cast<std::int64_t>(args.runs.size());
    for_ranges(stream, runs * args.heads, 1, [&](std::int64_t piece, std::int64_t) {
      pass_head<A>(args, args.runs[static_cast<std::size_t>(piece / args.heads)],
                   piece % args.heads);
    });
  });
}

// m [Q, Q] = (C B^T) o L, where L is 0 above the diagonal and between documents.
template <class A>
void masked_products(const SsdSteps<A>& steps, const SsdChunk& chunk, const A* products, A* m) {
  const std::int64_t count = chunk.count;
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = steps.sums[static_cast<std::size_t>(i)];
    const std::int64_t first = chunk.first_of(i);
    for (std::int64_t j = 0; j < first; ++j) m[i * count + j] = 0;
    for (std::int64_t j = first; j <= i; ++j) {
      const A decay = static_cast<A>(at - steps.sums[static_cast<std::size_t>(j)]);
      m[i * count + j] = products[i * count + j] * exp_of(decay);
    }
    for (std::int64_t j = i + 1; j < count; ++j) m[i * count + j] = 0;
  }
}

template <class T>
void run_forward(const Stream& stream, const SsdForwardArgs& args) {
  using A = accumulate_t<T>;
  const SsdShape& s = args.shape;
  const std::int64_t n = s.state_size, p = s.head_size;
  for_groups<T>(stream, s, [&](std::int64_t chunk, const SsdGroup<T>& group) {
    const SsdChunk& at = group.chunk;
    const std::int64_t q = at.count;
    SsdBuffer<A> b(q * n), b_columns(q * n), c(q * n), products(q * q), m(q * q);
    SsdBuffer<A> x(q * p), u(q * p), y(q * p);
    SsdSteps<A> steps(q);
    read_columns<T>(args.in.xbc, at, group.b_column, n, b.get());
    read_columns<T>(args.in.xbc, at, group.c_column, n, c.get());
    transpose(q, n, b.get(), b_columns.get());
    add_product<A>(q, q, n, {c, n}, b_columns, q, products, q);
    for (std::int64_t h = group.first_head; h < group.end_head; ++h) {
      const SsdHead<T> head(s, args.in, h);
      steps.read(head, at);
      read_columns<T>(args.in.xbc, at, h * p, p, x.get());
      masked_products<A>(steps, at, products, m);
      // y = e^c C S0, then + M U + D x
      y.clear();
      const A* state = args.states.as<A>() + (chunk * s.heads + h) * n * p;
      add_product<A>(q, p, n, {c, n}, state, p, y, p);
      for (std::int64_t t = 0; t < q; ++t) {
        const A factor = steps.from_before(t, at), dt = steps.dt[static_cast<std::size_t>(t)];
        for (std::int64_t i = t * p; i < (t + 1) * p; ++i) {
          u[i] = dt * x[i];
          y[i] = factor * y[i] + head.skip * x[i];
        }
      }
      add_product<A>(q, p, q, {m, q}, u, p, y, p);
      write_columns<T>(y.get(), at, h * p, p, args.y);
    }
  });
}

template <class T>
void step_head(const SsdStepArgs& args, const RecurrentRun& run, std::int64_t h) {
  using A = accumulate_t<T>;
  const SsdShape& s = args.shape;
  const std::int64_t n = s.state_size, p = s.head_size, elements = n * p;
  const SsdHead<T> head(s, args.in, h);
  const std::int64_t group = (s.first_head + h) / s.heads_per_group;
  const std::int64_t stride = s.columns(), b_column = s.heads * p + group * n;
  SsdBuffer<A> state(elements), y(p);
  const A* enter = head_state<A>(args.states, run.enter, h, elements);
  if (enter != nullptr) std::copy_n(enter, elements, state.get());
  for (std::int64_t row = run.row; row < run.row + run.count; ++row) {
    const T* in = args.in.xbc.as<T>() + row * stride;
    const T *x = in + h * p, *b = in + b_column, *c = b + s.groups * n;
    const A dt = head.dt(row), decay = exp_of(head.log_decay(dt));
    for (std::int64_t i = 0; i < p; ++i) y[i] = head.skip * widen(x[i]);
    for (std::int64_t k = 0; k < n; ++k) {
      const A in_factor = dt * widen(b[k]), out_factor = widen(c[k]);
      A* at = state + k * p;
      for (std::int64_t i = 0; i < p; ++i) {
        at[i] = decay * at[i] + in_factor * widen(x[i]);
        y[i] += out_factor * at[i];
      }
    }
    T* to = args.y.as<T>() + row * s.heads * p + h * p;
    for (std::int64_t i = 0; i < p; ++i) to[i] = narrow<T>(y[i]);
  }
  A* leave = head_state<A>(args.states, run.leave, h, elements);
  if (leave != nullptr) std::copy_n(state.get(), elements, leave);
}

void check_inputs(const SsdShape& shape, const SsdInputs& in) {
  BEV_CHECK(in.xbc.shape.row_numel() == shape.columns() && in.dt.shape.row_numel() == shape.heads &&
                in.dt_bias.numel() == shape.heads && in.a_log.numel() == shape.heads &&
                in.d.numel() == shape.heads && shape.chunk > 0,
            "ssd: rows ", in.xbc.shape, " and ", in.dt.shape, " for ", shape.heads, " heads of ",
            shape.head_size, ", state ", shape.state_size, ", groups ", shape.groups);
}

template <class Args, class Run>
void checked(const Args& args, const Run& run) {
  check_inputs(args.shape, args.in);
  visit_float(args.in.xbc.dtype, run);
}

void chunk_states(const Stream& stream, const SsdChunkStatesArgs& args) {
  checked(args, [&](auto zero) { run_chunk_states<decltype(zero)>(stream, args); });
}
void chunk_gradients(const Stream& stream, const SsdChunkGradientsArgs& args) {
  checked(args, [&](auto zero) { run_chunk_gradients<decltype(zero)>(stream, args); });
}
void forward(const Stream& stream, const SsdForwardArgs& args) {
  checked(args, [&](auto zero) { run_forward<decltype(zero)>(stream, args); });
}
void step(const Stream& stream, const SsdStepArgs& args) {
  checked(args, [&](auto zero) {
    const std::int64_t heads = args.shape.heads;
    for_ranges(stream, std::ssize(args.shape.runs) * heads, 1, [&](std::int64_t i, std::int64_t) {
      step_head<decltype(zero)>(args, args.shape.runs[static_cast<std::size_t>(i / heads)],
                                i % heads);
    });
  });
}
void backward(const Stream& stream, const SsdBackwardArgs& args) {
  check_inputs(args.shape, args.in);
  ssd_backward(stream, args);
}

}  // namespace

SsdKernels kernel_table(Family<SsdKernels>) {
  return {.chunk_states = chunk_states,
          .chunk_gradients = chunk_gradients,
          .pass_states = pass_states,
          .forward = forward,
          .backward = backward,
          .step = step};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
