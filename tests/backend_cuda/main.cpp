// Runs the tests and ends in one line of counts, which tells a run on a GPU from one that skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  std::printf("%d skipped, %d passed, %d failed\n", tests.skipped_test_count(),
              tests.successful_test_count(), tests.failed_test_count());
  return status;
}
