#include "base/file.h"
#include "kernels/gemm.h"
#include "tests/backend_cuda/rig.h"
#include "tests/support/temp_folder.h"

namespace bev::cuda_test {
namespace {

using CudaTrace = CudaRig;

TEST_F(CudaTrace, WorkBelongsToTheSpanThatAskedForIt) {
  std::unique_ptr<DeviceTrace> device = cuda().device.trace();
  if (!device) GTEST_SKIP() << "no CUPTI";
  Twin a = random(Dtype::kBf16, {256, 256}), b = random(Dtype::kBf16, {256, 256});
  Twin c = poisoned(Dtype::kBf16, {256, 256});
  auto product = [&] {
    cuda().gemm.gemm(cuda_stream(), {a.device, b.device, c.device, false, true, 1, 0, {}});
  };
  product();  // autotunes before the trace
  Trace trace(2, 1, 1, device.get());
  {
    StepScope step(&trace, 1);
    {
      TraceScope op(&trace, {TraceKind::kForward, "linear", 5});
      product();
    }
    cuda().device.copy(cuda_stream(), a.device, c.device);
  }
  product();  // after the trace
  std::vector<DeviceSpan> spans = device->take();
  int products = 0, copies = 0;
  for (const DeviceSpan& span : spans) {
    EXPECT_LT(span.begin_ns, span.end_ns);
    EXPECT_GE(span.begin_ns, trace.spans().front().begin_ns) << "the clocks agree";
    ASSERT_EQ(TraceId::rank_of(span.asked_by), 2) << span.name;
    const TraceLabel& label = trace.label(TraceId::label_of(span.asked_by));
    bool linear = std::string_view(label.name) == "linear";
    products += linear && label.number == 5;
    copies += !linear;
  }
  EXPECT_GE(products, 1);
  EXPECT_EQ(copies, 1);
}

using CudaGemmCache = CudaRig;

TEST_F(CudaGemmCache, KeepsWhatWasMeasuredForTheNextRun) {
  TempFolder folder;
  std::string file = folder.path("gemm_algorithms");
  Twin a = random(Dtype::kBf16, {384, 512}), b = random(Dtype::kBf16, {640, 512});
  auto product = [&](const DeviceOptions& options) {
    std::unique_ptr<Device> device = cuda().device.open(options);
    Twin c = poisoned(Dtype::kBf16, {384, 640});
    cuda().gemm.gemm(device->stream(), {a.device, b.device, c.device, false, true, 1, 0, {}});
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(c.device.numel()));
    cuda().device.fetch(device->stream(), c.device, bits.data()).wait();
    return bits;
  };
  product({.deterministic = true, .cache_folder = folder.path()});
  EXPECT_FALSE(path_exists(file)) << "deterministic runs keep nothing";
  std::vector<std::uint16_t> first = product({.cache_folder = folder.path()});
  std::string kept = read_file(file);
  EXPECT_NE(kept.find("384 x 640 x 512"), kept.npos) << kept;
  EXPECT_EQ(product({.cache_folder = folder.path()}), first);
  EXPECT_EQ(read_file(file), kept) << "nothing was measured again";
}

}  // namespace
}  // namespace bev::cuda_test
