#include "train/memory_report.h"

#include <gtest/gtest.h>

#include "tensor/tensor.h"

namespace bev {
namespace {

TEST(MemoryReport, HasMegatronsLineAndThePeakByTag) {
  Arena arena(make_host_memory());
  Tensor weights(arena, Dtype::kU8, {2 << 20}, "weights");
  { Tensor activations(arena, Dtype::kU8, {3 << 20}, "activations"); }
  Arena host(make_host_memory()), more(make_host_memory());
  const Arena* hosts[] = {&host, nullptr, &more};
  std::string text = memory_text(arena, hosts, 3, 20);
  EXPECT_TRUE(
      text.starts_with("[Rank 3] (after 20 iterations) memory (MB) | allocated: 2.00 | "
                       "max allocated: 5.00 | reserved: 32.00 | max reserved: 32.00\n"))
      << text;
  EXPECT_LT(text.find("activations"), text.find("weights")) << "largest first";
  EXPECT_EQ(text.find("host"), text.npos);
  Tensor state(host, Dtype::kU8, {1 << 20}, "optimizer");
  Tensor moved(more, Dtype::kU8, {1 << 20}, "offloaded activations");
  text = memory_text(arena, hosts, 3, 20);
  EXPECT_LT(text.find("weights"), text.find("in host memory")) << text;
  EXPECT_LT(text.find("in host memory"), text.find("optimizer")) << text;
  EXPECT_LT(text.find("optimizer"), text.find("offloaded activations")) << text;
  EXPECT_EQ(text.find("in host memory"), text.rfind("in host memory")) << text;
}

}  // namespace
}  // namespace bev
