// Runs the tests named Cuda and prints one line of counts at the end, which distinguishes a run on
// a GPU from one that skipped everything. The op tests are linked in for their rows on the GPU
// (tests/support/op_checks.h); ops_test runs the others. BEV_LIMIT_ARCH=80 runs them with the
// kernels of such a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, "Cuda*");
  testing::InitGoogleMock(&argc, argv);
  int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  std::printf("%d skipped, %d passed, %d failed\n", tests.skipped_test_count(),
              tests.successful_test_count(), tests.failed_test_count());
  return status;
}
