// Our attention kernels and cuDNN's, compared with the CPU.
#include <array>
#include <cstring>

#include "tests/backend_cuda/attention_rig.h"

namespace bev::cuda_test {
namespace {

constexpr std::initializer_list<Dtype> kDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

TEST_F(CudaAttentionTest, EveryHeadSize) {
  for (Dtype dtype : kDtypes) {
    for (std::int64_t head_size :
         {1, 7, 8, 16, 33, 40, 64, 72, 96, 104, 128, 130, 136, 192, 200, 256}) {
      check(Path::kOwn, {.dtype = dtype, .head_size = head_size, .runs = sequences({70, 133})});
    }
  }
}

TEST_F(CudaAttentionTest, ValuesOfAnotherSize) {
  for (Dtype dtype : kDtypes) {
    for (auto [head_size, v_head_size] : {std::array<std::int64_t, 2>{192, 128},
                                          {64, 128},
                                          {40, 24},
                                          {72, 7},
                                          {7, 72},
                                          {128, 256}}) {
      for (double softcap : {0.0, 1.5}) {
        check(Path::kOwn, {.dtype = dtype,
                           .q_heads = 6,
                           .head_size = head_size,
                           .runs = sequences({70, 133}),
                           .fused = v_head_size == 24,
                           .softcap = softcap,
                           .v_head_size = v_head_size});
      }
    }
  }
}

// Split-KV with empty splits, masks that end inside of a tile, and query pairs that do.
TEST_F(CudaAttentionTest, FewQueriesOverManyLatents) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (std::int64_t heads : {1, 16, 17, 128}) {
      for (double softcap : {0.0, 1.5}) {
        Case c{.dtype = dtype, .q_heads = heads, .kv_heads = 1, .head_size = 576};
        c.v_head_size = 512;
        c.softcap = softcap;
        if (heads == 17) c.window = 700;
        c.runs = {{0, 1, 0, 4001, 4000, 0}, {1, 3, 4010, 33, 30, 0}, {4, 1, 4050, 1, 0, 0}};
        SCOPED_TRACE(c.text());
        Tensors t = make(c);
        t.v = t.k;
        ASSERT_TRUE(forward(Path::kOwn, c, t));
        cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
        expect_close(t.out, 1e-2, "out");
        expect_close(t.lse, 2e-5, "lse");
      }
    }
  }
}

// MLA: latents serve as keys and, in part, as values of all heads.
TEST_F(CudaAttentionTest, WideHeadsThatShareRows) {
  for (Dtype dtype : kDtypes) {
    for (auto [head_size, v_head_size] :
         {std::array<std::int64_t, 2>{576, 512}, {264, 200}, {1024, 960}}) {
      Case c{.dtype = dtype, .q_heads = 20, .kv_heads = 1, .head_size = head_size};
      c.v_head_size = v_head_size;
      c.runs = {{0, 1, 4, 300, 299, 0}, {1, 2, 310, 40, 38, 0}, {3, 9, 360, 9, 0, 0}};
      SCOPED_TRACE(c.text());
      Tensors t = make(c);
      t.v = t.k;
      ASSERT_TRUE(forward(Path::kOwn, c, t));
      cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
      expect_close(t.out, dtype == Dtype::kF32 ? 1e-5 : 1e-2, "out");
      expect_close(t.lse, 2e-5, "lse");
      EXPECT_THROW(backward(Path::kOwn, c, t), Error);
      // The runs are read from device memory; those of the host are upper bounds.
      const std::vector<AttentionRun> bounds = c.runs;
      c.runs[0].k_count = 120, c.runs[0].offset = 119;
      c.runs[1].k_count = 7, c.runs[1].offset = 5;
      t.out = poisoned(c.dtype, t.out.exact.shape());
      const Tensor now = on_device(c.runs);
      AttentionForwardArgs args = forward_args(c, t, false);
      args.shape.runs = bounds;
      args.device_runs = runs_of(now);
      own_attention_forward(cuda_stream(), args);
      cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
      expect_close(t.out, dtype == Dtype::kF32 ? 1e-5 : 1e-2, "out of fewer keys");
    }
  }
}

TEST_F(CudaAttentionTest, SinksJoinTheSum) {
  for (Dtype dtype : kDtypes) {
    for (Dtype out_dtype : {dtype, Dtype::kF32}) {
      for (bool learned : {true, false}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + (learned ? " learned" : " of 0"));
        constexpr std::int64_t kRows = 70, kHeads = 5, kSize = 40, kStride = 8;
        Twin sinks = random(dtype, {kHeads}, 3), out = random(out_dtype, {kRows, kHeads * kSize});
        Twin lse = random(Dtype::kF32, {kRows, kHeads}, 4);
        Twin dout = random(out_dtype, {kRows, kHeads * kSize});
        Twin terms = poisoned(Dtype::kF32, {kRows, kStride});
        auto logits = [&](bool exact) { return learned ? side(sinks, exact).view() : View{}; };
        cpu().attention.add_sinks(cpu_stream(), {logits(true), out.exact, lse.exact});
        cuda().attention.add_sinks(cuda_stream(), {logits(false), out.device, lse.device});
        expect_close(out, out_dtype == Dtype::kF32 ? 1e-5 : 1e-2, "out");
        expect_close(lse, 1e-5, "lse");
        cpu().attention.sink_terms(
            cpu_stream(), {logits(true), out.exact, dout.exact, lse.exact, terms.exact, 2});
        cuda().attention.sink_terms(
            cuda_stream(), {logits(false), out.device, dout.device, lse.device, terms.device, 2});
        expect_close(terms, out_dtype == Dtype::kF32 ? 1e-4 : 2e-2, "terms");
      }
    }
  }
}

TEST_F(CudaAttentionTest, EveryCombinationOfOptions) {
  Dice dice(1);
  for (Dtype dtype : kDtypes) {
    for (int options = 0; options < 24; ++options) {
      Case c;
      c.dtype = dtype;
      c.causal = options % 2 == 0;
      c.softcap = options / 2 % 2 == 0 ? 0 : 1.5;
      c.dropout = options / 4 % 2 == 0 ? 0 : 0.25;
      c.window = std::initializer_list<std::int64_t>{-1, 0, 50}.begin()[options / 8];
      c.head_size = dice.one_of({64, 80, 128, 160});
      c.runs = random_runs(dice);
      check(Path::kOwn, c);
    }
  }
}

TEST_F(CudaAttentionTest, RandomShapes) {
  for (std::uint64_t seed = 100; seed < 180; ++seed) {
    Dice dice(seed);
    Case c;
    c.dtype = dice.one_of(kDtypes);
    c.kv_heads = dice.one_of({1, 2, 3});
    c.q_heads = c.kv_heads * dice.one_of({1, 2, 5, 8});
    c.head_size = dice.one_of({8, 24, 64, 88, 96, 128, 192, 256});
    c.v_head_size = dice.one_of({0, 0, 16, 64, 128, 200});
    c.causal = dice.below(2) == 0;
    c.window = dice.one_of<std::int64_t>({-1, -1, 0, 3, 64, 100, std::int64_t{1} << 40});
    c.softcap = dice.one_of({0.0, 0.0, 2.0});
    c.dropout = dice.one_of({0.0, 0.0, 0.1, 0.9});
    c.scale = dice.one_of({0.0, 1.0, 0.01});
    c.head_offset = dice.below(40);
    c.runs = random_runs(dice);
    c.fused = false;
    check(Path::kOwn, c);
  }
}

TEST_F(CudaAttentionTest, FusedRows) {
  for (Dtype dtype : kDtypes) {
    check(Path::kOwn, {.dtype = dtype,
                       .q_heads = 6,
                       .head_size = 64,
                       .runs = sequences({129, 1, 64, 200}),
                       .fused = true});
  }
}

// More runs than one launch takes.
TEST_F(CudaAttentionTest, ManyRuns) {
  std::vector<int> lengths;
  for (int i = 0; i < 250; ++i) lengths.push_back(1 + i % 13);
  lengths[100] = 90;
  check(Path::kOwn, {.runs = sequences(lengths)});
  check(Path::kOwn, {.dtype = Dtype::kF32, .head_size = 16, .runs = sequences(lengths)});
}

TEST_F(CudaAttentionTest, EmptyRunsAreLeftAlone) {
  Case c;
  c.runs = {{.q_begin = 0, .q_count = 0, .k_begin = 0, .k_count = 5},
            {.q_begin = 1, .q_count = 70, .k_begin = 7, .k_count = 0},
            {.q_begin = 80, .q_count = 66, .k_begin = 9, .k_count = 40}};
  for (Dtype dtype : kDtypes) {
    c.dtype = dtype;
    check(Path::kOwn, c);
  }
  c.runs.clear();
  check(Path::kOwn, c);
}

// Decoding: one query per run over a KV cache.
TEST_F(CudaAttentionTest, DecodingReadsLongCaches) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (int k_count : {1, 63, 300, 5000}) {
      for (std::int64_t window : {-1, 200}) {
        Case c;
        c.dtype = dtype;
        c.q_heads = 8, c.kv_heads = 2, c.head_size = k_count == 300 ? 128 : 80;
        c.window = window;
        c.runs = {
            {0, 1, 4, k_count, k_count - 1, 0}, {1, 2, 5100, 40, 38, 0}, {3, 1, 5200, 9, -1, 0}};
        SCOPED_TRACE(c.text());
        const Tensors t = make(c);
        ASSERT_TRUE(forward(Path::kOwn, c, t));
        cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
        expect_close(t.out, dtype == Dtype::kBf16 ? 1e-2 : 2e-3, "out");
        expect_close(t.lse, 2e-5, "lse");
      }
    }
  }
}

// Keys in two parts: forward and merge cover them all, the backward of a part gives its
// contribution.
TEST_F(CudaAttentionTest, PartsOfKeysMakeTheWhole) {
  for (Dtype dtype : kDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const double tolerance = dtype == Dtype::kBf16 ? 1e-2 : dtype == Dtype::kF16 ? 2e-3 : 1e-5;
    Case whole{.dtype = dtype, .head_size = 72, .runs = sequences({150})};
    Case early = whole, late = whole;
    early.runs = {{0, 150, 0, 60, 0, 0}};
    late.runs = {{0, 150, 60, 90, -60, 60}};  // masked for the first 60 queries
    Tensors t = make(whole);
    const std::int64_t rows = whole.q_rows(), columns = whole.q_heads * whole.head_size;
    auto start = [&](std::int64_t width, double value) {  // NaN in rows outside of all runs
      std::vector<double> values(static_cast<std::size_t>(rows * width), value);
      std::fill(values.begin() + 150 * width, values.end(), std::nan(""));
      return twin(Dtype::kF32, {rows, width}, values);
    };
    Twin out = start(columns, 0);
    Twin lse = start(whole.q_heads, -std::numeric_limits<double>::infinity());
    for (const Case* part : {&early, &late}) {
      ASSERT_TRUE(forward(Path::kOwn, *part, t));
      cuda().attention.merge(cuda_stream(), {shape(*part, t, false), out.device, lse.device,
                                             t.out.device, t.lse.device});
    }
    cpu().attention.forward(cpu_stream(), forward_args(whole, t, true));
    out.exact = t.out.exact;
    lse.exact = t.lse.exact;
    expect_close(out, tolerance, "merged out");
    expect_close(lse, 2e-5, "merged lse");

    ASSERT_TRUE(forward(Path::kOwn, whole, t));
    ASSERT_TRUE(backward(Path::kOwn, late, t));
    cpu().attention.backward(cpu_stream(), backward_args(late, t, true));
    expect_close(t.dq, tolerance, "dq of a part");
    expect_close(t.dk, tolerance, "dk of a part");
    expect_close(t.dv, tolerance, "dv of a part");
  }
}

// Zero queries weight all keys equally, and one-hot values show which keys were kept.
TEST_F(CudaAttentionTest, DropoutMasksAreTheCpusOnes) {
  for (Dtype dtype : kDtypes) {
    for (int key_position : {0, 1, 2, 7}) {
      Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .head_size = 64};
      c.runs = {{.q_begin = 1, .q_count = 90, .k_count = 64, .key_position = key_position}};
      c.causal = false, c.dropout = 0.4, c.head_offset = 3;
      Tensors t = make(c);
      const Shape q_shape = t.q.exact.shape(), v_shape = t.v.exact.shape();
      t.q = twin(dtype, q_shape, std::vector<double>(static_cast<std::size_t>(q_shape.numel())));
      std::vector<double> values(static_cast<std::size_t>(v_shape.numel()));
      for (std::int64_t key = 0; key < 64; ++key) {
        for (std::int64_t head = 0; head < 2; ++head) {
          values[static_cast<std::size_t>(key * v_shape[1] + head * 64 + key)] = 1;
        }
      }
      t.v = twin(dtype, v_shape, values);
      ASSERT_TRUE(forward(Path::kOwn, c, t));
      cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
      const std::vector<double> got = download(t.out.device);
      std::size_t kept = 0, different = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        kept += got[i] > 0 ? 1 : 0;
        different += (got[i] > 0) != (t.out.exact.as<double>()[i] > 0) ? 1 : 0;
      }
      EXPECT_EQ(different, 0u) << name_of(dtype) << " key position " << key_position;
      EXPECT_NEAR(static_cast<double>(kept) / (90 * 4 * 64), 0.6, 0.02);
    }
  }
}

TEST_F(CudaAttentionTest, OwnKernelsGiveTheSameBitsTwice) {
  for (Dtype dtype : kDtypes) {
    Case c{.dtype = dtype, .q_heads = 8, .kv_heads = 2, .head_size = 128};
    c.runs = sequences({300, 77, 129});
    c.dropout = 0.1;
    std::vector<std::vector<double>> results[2];
    const Tensors t = make(c);
    for (auto& result : results) {
      ASSERT_TRUE(forward(Path::kOwn, c, t) && backward(Path::kOwn, c, t));
      for (const Twin* x : {&t.out, &t.lse, &t.dq, &t.dk, &t.dv}) {
        result.push_back(download(x->device));
      }
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_EQ(std::memcmp(results[0][i].data(), results[1][i].data(),
                            results[0][i].size() * sizeof(double)),
                0)
          << name_of(dtype) << " result " << i;
    }
  }
}

TEST_F(CudaAttentionTest, ShapesThatCannotBeAreRefused) {
  for (auto [q_heads, kv_heads, head_size] :
       {std::array<std::int64_t, 3>{3, 2, 64}, std::array<std::int64_t, 3>{2, 2, 1025}}) {
    Case c{.q_heads = q_heads, .kv_heads = kv_heads, .head_size = head_size};
    const Tensors t = make(c);
    EXPECT_THROW(forward(Path::kOwn, c, t), Error);
    EXPECT_THROW(backward(Path::kOwn, c, t), Error);
  }
  Case c{.dtype = Dtype::kF64, .runs = sequences({5})};
  const Tensors t = make(c);
  EXPECT_THROW(forward(Path::kOwn, c, t), Error);
}

TEST_F(CudaAttentionTest, CudnnServesBatchesOfSequences) {
  if (!has_cudnn(cuda_stream())) GTEST_SKIP() << "no cuDNN";
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (std::int64_t head_size : {64, 80, 128}) {
      for (std::int64_t window : {-1, 100}) {
        Case c{.dtype = dtype, .q_heads = 6, .kv_heads = 2, .head_size = head_size};
        c.runs = sequences({320, 320, 320});
        c.window = window;
        check(Path::kCudnn, c);
        c.fused = true;
        check(Path::kCudnn, c);
      }
      check(Path::kCudnn, {.dtype = dtype,
                           .q_heads = 4,
                           .kv_heads = 4,
                           .head_size = head_size,
                           .runs = sequences({257}),
                           .causal = false});
    }
  }
}

// If cuDNN has a plan for these sizes; otherwise our kernels serve them.
TEST_F(CudaAttentionTest, CudnnAgreesOnValuesOfAnotherSize) {
  if (!has_cudnn(cuda_stream())) GTEST_SKIP() << "no cuDNN";
  Case c{.q_heads = 4, .kv_heads = 4, .head_size = 192, .runs = sequences({320, 320})};
  c.v_head_size = 128;
  const Tensors t = make(c);
  if (!forward(Path::kCudnn, c, t) || !backward(Path::kCudnn, c, t)) {
    GTEST_SKIP() << "cuDNN does not serve heads of 192 and 128";
  }
  check(Path::kCudnn, c);
}

// Queries at the end of longer keys, as in a prefill after a cached prefix.
TEST_F(CudaAttentionTest, CudnnServesQueriesAtTheEndOfTheirKeys) {
  if (!has_cudnn(cuda_stream())) GTEST_SKIP() << "no cuDNN";
  Case c{.q_heads = 8, .kv_heads = 2, .head_size = 128};
  c.runs = {{.q_begin = 0, .q_count = 256, .k_begin = 5, .k_count = 700, .offset = 444},
            {.q_begin = 256, .q_count = 256, .k_begin = 805, .k_count = 700, .offset = 444}};
  check(Path::kCudnn, c);
}

TEST_F(CudaAttentionTest, CudnnLeavesTheRestToOwnKernels) {
  Case base{.q_heads = 6, .kv_heads = 2, .runs = sequences({320, 320})};
  std::vector<Case> cases(6, base);
  cases[0].dtype = Dtype::kF32;
  cases[1].softcap = 30;
  cases[2].dropout = 0.1;
  cases[3].runs = sequences({320, 300});
  cases[4].runs[1].offset = 7;
  cases[5].causal = false, cases[5].window = 50;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    const Tensors t = make(c);
    EXPECT_FALSE(forward(Path::kCudnn, c, t));
    EXPECT_FALSE(backward(Path::kCudnn, c, t));
  }
}

}  // namespace
}  // namespace bev::cuda_test
