#include "backend/cuda/runtime/shared_library.h"

#include <gtest/gtest.h>

namespace bev {
namespace {

TEST(CudaSharedLibrary, OneThatIsMissingSaysWhatToDo) {
  SharedLibrary library("libnobody_has_this.so.7");
  EXPECT_FALSE(library.loaded());
  EXPECT_NE(library.problem().find("libnobody_has_this.so.7"), std::string::npos);
  EXPECT_NE(library.problem().find("LD_LIBRARY_PATH"), std::string::npos);
  double (*cosine)(double) = nullptr;
  EXPECT_FALSE(library.find(cosine, "cos"));
}

TEST(CudaSharedLibrary, FindsFunctions) {
  SharedLibrary library("libm.so.6");
  ASSERT_TRUE(library.loaded());
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(library.find(cosine, "cos"));
  EXPECT_EQ(cosine(0), 1);
  EXPECT_FALSE(library.find(cosine, "no_such_function"));
}

}  // namespace
}  // namespace bev
