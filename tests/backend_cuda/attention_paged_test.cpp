// Attention of an inference engine: paged keys, runs in device memory, decode and prefill in one
// call; and the bits of the exact kernels.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/divide.h"
#include "tests/backend_cuda/attention_rig.h"

namespace bev::cuda_test {
namespace {

constexpr std::initializer_list<Dtype> kDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

double tolerance_of(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 1e-2 : dtype == Dtype::kF16 ? 2e-3 : 1e-5;
}

// The last q_count of k_count tokens.
struct Queries {
  int q_count = 0, k_count = 0;
};

// Runs with contiguous keys that lie one after the other.
std::vector<AttentionRun> runs_of_queries(const std::vector<Queries>& queries) {
  std::vector<AttentionRun> runs;
  std::int32_t q = 0;
  std::int64_t k = 0;
  for (const Queries& x : queries) {
    runs.push_back({q, x.q_count, k, x.k_count, x.k_count - x.q_count, 0});
    q += x.q_count;
    k += x.k_count;
  }
  return runs;
}

class CudaPagedAttention : public CudaAttentionTest {
 protected:
  struct Pages {
    Tensor keys, values, table;
    std::int64_t stride = 0, block_tokens = 0;

    KeyPages pages() const { return {table.as<std::int32_t>(), stride, block_tokens}; }
  };

  // Copies the keys of the case into shuffled blocks. All that no query may read is NaN: blocks
  // before every window, and the rest of the last block. MLA: the values are those of the keys.
  Pages paged(const Case& c, const Tensors& t, std::int64_t block_tokens, bool latent = false) {
    Pages out;
    out.block_tokens = block_tokens;
    std::int64_t blocks = 1;  // the first is NaN
    for (const AttentionRun& run : c.runs) {
      blocks += ceil_div<std::int64_t>(run.k_count, block_tokens);
      out.stride = std::max(out.stride, ceil_div<std::int64_t>(run.k_count, block_tokens) + 1);
    }
    std::vector<std::int32_t> table(c.runs.size() * static_cast<std::size_t>(out.stride));
    std::vector<std::int64_t> from(static_cast<std::size_t>(blocks * block_tokens), -1);
    const std::int64_t step = step_of(blocks - 1);
    std::int64_t next = 0;
    for (std::size_t i = 0; i < c.runs.size(); ++i) {
      const AttentionRun& run = c.runs[i];
      for (std::int64_t at = 0; at < run.k_count; at += block_tokens) {
        const std::int64_t block = 1 + next++ * step % (blocks - 1);
        const bool gone = c.window >= 0 && at + block_tokens <= run.offset - c.window;
        if (gone) continue;
        table[i * static_cast<std::size_t>(out.stride) +
              static_cast<std::size_t>(at / block_tokens)] = static_cast<std::int32_t>(block);
        for (std::int64_t j = at; j < std::min<std::int64_t>(at + block_tokens, run.k_count); ++j) {
          from[static_cast<std::size_t>(block * block_tokens + j - at)] = run.k_begin + j;
        }
      }
    }
    out.table = words(table).device;
    tables_[block_tokens] = table;
    out.keys = rows(t.k, c.dtype, from);
    out.values = latent ? out.keys : rows(t.v, c.dtype, from);
    return out;
  }

  // Tables for parts of the runs of a case, which have its k_begin.
  Pages for_parts(const Pages& pages, const std::vector<AttentionRun>& runs,
                  const std::vector<AttentionRun>& parts) {
    const std::vector<std::int32_t> whole = tables_[pages.block_tokens];
    std::vector<std::int32_t> table;
    for (const AttentionRun& part : parts) {
      const auto run = std::ranges::find(runs, part.k_begin, &AttentionRun::k_begin);
      const auto row = whole.begin() + (run - runs.begin()) * pages.stride;
      table.insert(table.end(), row, row + pages.stride);
    }
    Pages out = pages;
    out.table = words(table).device;
    return out;
  }

  AttentionForwardArgs args_of(const Case& c, const Tensors& t, const Pages& pages) {
    AttentionForwardArgs args = forward_args(c, t, false);
    args.k = pages.keys.view().data;
    args.v = pages.values.view().data;
    args.pages = pages.pages();
    return args;
  }
  // The same call with runs in device memory, and `times` as many keys as upper bound.
  AttentionForwardArgs with_bounds(AttentionForwardArgs args, int times, Tensor& device) {
    bounds_.assign(args.shape.runs.begin(), args.shape.runs.end());
    device = on_device(bounds_);
    for (AttentionRun& run : bounds_) {
      run.k_count *= times;
      run.offset = run.k_count - run.q_count;
    }
    args.shape.runs = bounds_;
    args.device_runs = runs_of(device);
    return args;
  }

  void expect_right(const Case& c, Tensors& t, const AttentionForwardArgs& args) {
    cuda().attention.forward(cuda_stream(), args);
    cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
    expect_close(t.out, tolerance_of(c.dtype), "out");
    expect_close(t.lse, 2e-5, "lse", 0.1 * std::sqrt(static_cast<double>(t.lse.exact.numel())));
  }

  // out and lse of each query, by run.
  struct Bits {
    std::vector<double> out, lse;
    std::int64_t out_columns = 0, lse_columns = 0;

    bool same(std::int64_t row, const Bits& other, std::int64_t other_row) const {
      return same_row(out, row, other.out, other_row, out_columns) &&
             same_row(lse, row, other.lse, other_row, lse_columns);
    }

   private:
    static bool same_row(const std::vector<double>& a, std::int64_t i, const std::vector<double>& b,
                         std::int64_t j, std::int64_t columns) {
      return std::memcmp(a.data() + i * columns, b.data() + j * columns,
                         static_cast<std::size_t>(columns) * sizeof(double)) == 0;
    }
  };
  Bits exact_bits(const Case& c, const Tensors& t, const AttentionForwardArgs& args) {
    cuda_exact_attention().forward(cuda_stream(), args);
    return {download(t.out.device), download(t.lse.device), c.q_heads * c.v_size(), c.q_heads};
  }

  // The first `count` rows of source, in place of rows of twin from `row` on.
  Twin with_rows(const Twin& twin, Dtype dtype, std::int64_t row, const Twin& source,
                 std::int64_t count) {
    const std::int64_t columns = twin.exact.shape()[1];
    const double* values = twin.exact.as<double>();
    std::vector<double> out(values, values + twin.exact.numel());
    std::copy_n(source.exact.as<double>(), count * columns,
                out.begin() + static_cast<std::ptrdiff_t>(row * columns));
    return this->twin(dtype, twin.exact.shape(), out);
  }

 private:
  // A number that is prime to n, to shuffle with.
  static std::int64_t step_of(std::int64_t n) {
    for (std::int64_t step : {7, 11, 13}) {
      if (n % step != 0) return step;
    }
    return 1;
  }
  // Row i is row from[i], or NaN.
  Tensor rows(const Twin& twin, Dtype dtype, const std::vector<std::int64_t>& from) {
    const std::int64_t columns = twin.exact.shape()[1];
    std::vector<double> values(from.size() * static_cast<std::size_t>(columns), std::nan(""));
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i] < 0) continue;
      std::copy_n(twin.exact.as<double>() + from[i] * columns, columns,
                  values.begin() + static_cast<std::ptrdiff_t>(i) * columns);
    }
    return this->twin(dtype, {static_cast<std::int64_t>(from.size()), columns}, values).device;
  }

  std::vector<AttentionRun> bounds_;
  std::map<std::int64_t, std::vector<std::int32_t>> tables_;  // the last one by block_tokens
};

// Decode, short and long chunks of prefill in one call, and an empty run.
const std::vector<Queries> kMixed = {{1, 300}, {70, 200}, {0, 5},     {1, 1},
                                     {3, 66},  {1, 500},  {130, 130}, {17, 81}};

TEST_F(CudaPagedAttention, BlocksOfAnySize) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t block_tokens : {1, 4, 16, 64, 256}) {
      for (std::int64_t window : {-1, 40}) {
        Case c{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = 64};
        c.runs = runs_of_queries(kMixed);
        c.window = window;
        SCOPED_TRACE(c.text() + " blocks of " + std::to_string(block_tokens));
        Tensors t = make(c);
        const Pages pages = paged(c, t, block_tokens);
        expect_right(c, t, args_of(c, t, pages));
      }
    }
  }
}

TEST_F(CudaPagedAttention, HeadsOfAnySize) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t head_size : {7, 64, 80, 96, 128, 192, 256}) {
      for (double softcap : {0.0, 1.5}) {
        for (std::int64_t group : {1, 4, 12}) {
          Case c{.dtype = dtype, .q_heads = 2 * group, .kv_heads = 2, .head_size = head_size};
          c.runs = runs_of_queries(kMixed);
          c.softcap = softcap;
          if (head_size == 192) c.v_head_size = 128;
          SCOPED_TRACE(c.text());
          Tensors t = make(c);
          const Pages pages = paged(c, t, 16);
          expect_right(c, t, args_of(c, t, pages));
          Tensor device;
          t.out = poisoned(c.dtype, t.out.exact.shape());
          t.lse = poisoned(Dtype::kF32, t.lse.exact.shape());
          expect_right(c, t, with_bounds(args_of(c, t, pages), 5, device));
        }
      }
    }
  }
}

// More runs than are passed by value, as one range and in turns, with bounds far above.
TEST_F(CudaPagedAttention, ManyRunsInDeviceMemory) {
  for (bool mixed : {false, true}) {
    std::vector<Queries> queries;
    for (int i = 0; i < 260; ++i) {
      const int keys = 1 + i * 37 % 90;
      queries.push_back({mixed && i % 3 == 0 ? std::min(keys, 40) : 1, keys});
    }
    for (int times : {1, 64}) {
      for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
        Case c{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = 64};
        c.runs = runs_of_queries(queries);
        SCOPED_TRACE(std::string(mixed ? "mixed, " : "decode, ") + std::to_string(times));
        Tensors t = make(c);
        const Pages pages = paged(c, t, 64);
        Tensor device;
        expect_right(c, t, with_bounds(args_of(c, t, pages), times, device));
      }
    }
  }
}

// Split-KV: one long run, a few, and one that is much longer than the others.
TEST_F(CudaPagedAttention, LongRunsAreSplit) {
  for (const std::vector<Queries>& queries :
       {std::vector<Queries>{{1, 5000}}, {{1, 900}, {2, 1000}, {1, 64}}, {{1, 9000}, {1, 10}}}) {
    for (std::int64_t window : {-1, 700}) {
      for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
        Case c{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = 128};
        c.runs = runs_of_queries(queries);
        c.window = window;
        SCOPED_TRACE(c.text());
        Tensors t = make(c);
        const Pages pages = paged(c, t, 64);
        Tensor device;
        expect_right(c, t, with_bounds(args_of(c, t, pages), 3, device));
      }
    }
  }
}

TEST_F(CudaPagedAttention, LatentsArePaged) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t heads : {1, 16, 17}) {
      for (std::int64_t block_tokens : {4, 64}) {
        Case c{.dtype = dtype, .q_heads = heads, .kv_heads = 1, .head_size = 576};
        c.v_head_size = 512;
        c.runs = runs_of_queries({{1, 2001}, {3, 33}, {1, 1}, {70, 130}});
        SCOPED_TRACE(c.text());
        Tensors t = make(c);
        t.v = t.k;
        const Pages pages = paged(c, t, block_tokens, true);
        Tensor device;
        AttentionForwardArgs args = args_of(c, t, pages);
        for (int times : {0, 1, 4}) {
          t.out = poisoned(c.dtype, t.out.exact.shape());
          t.lse = poisoned(Dtype::kF32, t.lse.exact.shape());
          args.out = t.out.device, args.lse = t.lse.device;
          expect_right(c, t, times == 0 ? args : with_bounds(args, times, device));
        }
      }
    }
  }
}

// Parts of all runs with at most `most` queries each, over the keys up to them.
std::vector<AttentionRun> chunks_of(const std::vector<AttentionRun>& runs, int most) {
  std::vector<AttentionRun> out;
  for (const AttentionRun& run : runs) {
    for (int begin = 0; begin < run.q_count; begin += most) {
      const int end = std::min(run.q_count, begin + most);
      out.push_back({run.q_begin + begin, end - begin, run.k_begin, end, begin, 0});
    }
  }
  return out;
}

// Whole sequences as in training, chunks of any size, and single tokens; contiguous and paged;
// runs on the host and on the device.
TEST_F(CudaPagedAttention, ExactBitsDoNotDependOnChunks) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t head_size : {7, 64, 96, 128, 192, 256}) {
      for (std::int64_t window : {-1, 40}) {
        Case whole{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = head_size};
        whole.runs = sequences({201, 64, 130});
        whole.window = window;
        whole.softcap = head_size == 128 && window > 0 ? 1.5 : 0;
        SCOPED_TRACE(whole.text());
        const Tensors t = make(whole);
        const Bits want = exact_bits(whole, t, forward_args(whole, t, false));
        const Pages small = paged(whole, t, 16), large = paged(whole, t, 64);
        for (int most : {1, 16, 33, 64, 100, 1000}) {
          Case c = whole;
          c.runs = chunks_of(whole.runs, most);
          const Pages small_parts = for_parts(small, whole.runs, c.runs);
          const Pages large_parts = for_parts(large, whole.runs, c.runs);
          Tensor device;
          const std::vector<AttentionForwardArgs> ways = {
              forward_args(c, t, false), args_of(c, t, large_parts),
              with_bounds(args_of(c, t, small_parts), 7, device)};
          for (std::size_t way = 0; way < ways.size(); ++way) {
            const Bits got = exact_bits(c, t, ways[way]);
            std::int64_t different = 0;
            for (std::int64_t i = 0; i < 395; ++i) different += want.same(i, got, i) ? 0 : 1;
            EXPECT_EQ(different, 0) << "chunks of " << most << ", way " << way;
          }
        }
      }
    }
  }
}

// One sequence alone and among others, at any place of the batch.
TEST_F(CudaPagedAttention, ExactBitsDoNotDependOnTheBatch) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t group : {1, 4, 20}) {
      Case one{.dtype = dtype, .q_heads = 2 * group, .kv_heads = 2, .head_size = 128};
      one.runs = runs_of_queries({{1, 333}});
      const Tensors alone = make(one);
      const Bits want = exact_bits(one, alone, forward_args(one, alone, false));
      for (int batch : {1, 15, 16, 17, 64, 129, 256}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", group " + std::to_string(group) + ", batch " +
                     std::to_string(batch));
        const int place = batch / 2;
        std::vector<Queries> queries;
        for (int i = 0; i < batch; ++i) queries.push_back({1, i == place ? 333 : 1 + i * 53 % 70});
        Case c = one;
        c.runs = runs_of_queries(queries);
        const AttentionRun& run = c.runs[static_cast<std::size_t>(place)];
        Tensors t = make(c);
        t.q = with_rows(t.q, dtype, run.q_begin, alone.q, 1);
        t.k = with_rows(t.k, dtype, run.k_begin, alone.k, 333);
        t.v = with_rows(t.v, dtype, run.k_begin, alone.v, 333);
        const Pages pages = paged(c, t, 64);
        Tensor device;
        const Bits got = exact_bits(c, t, with_bounds(args_of(c, t, pages), 2, device));
        EXPECT_TRUE(want.same(0, got, place));
      }
    }
  }
}

// The backward of the table, cuDNN's where it serves the shape, given the exact forward.
TEST_F(CudaPagedAttention, ExactForwardServesTheBackward) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t head_size : {64, 128}) {
      Case c{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = head_size};
      c.runs = sequences({320, 320});
      SCOPED_TRACE(c.text());
      const Tensors t = make(c);
      const AttentionKernels exact = cuda_exact_attention();
      exact.forward(cuda_stream(), forward_args(c, t, false));
      exact.backward(cuda_stream(), backward_args(c, t, false));
      cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
      cpu().attention.backward(cpu_stream(), backward_args(c, t, true));
      expect_close(t.dq, tolerance_of(dtype), "dq");
      expect_close(t.dk, tolerance_of(dtype), "dk");
      expect_close(t.dv, tolerance_of(dtype), "dv");
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
