#include "base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace bev {
namespace {

int call(FunctionRef<int(int)> function) { return function(20); }

TEST(FunctionRef, CallsTheCallableItself) {
  int calls = 0;
  auto count = [&](int n) { return n + ++calls; };
  EXPECT_EQ(call(count), 21);
  EXPECT_EQ(call(count), 22);
  EXPECT_EQ(call([](int n) { return 2 * n; }), 40);
  FunctionRef<int(int)> reference = count, copy = reference;
  EXPECT_EQ(copy(0), 3);
}

TEST(FunctionRef, PassesReferencesAndMovesValues) {
  std::string text;
  auto append = [&](std::string& to, std::unique_ptr<int> value) {
    to += std::to_string(*value);
    return &to;
  };
  FunctionRef<std::string*(std::string&, std::unique_ptr<int>)> reference = append;
  EXPECT_EQ(reference(text, std::make_unique<int>(7)), &text);
  EXPECT_EQ(text, "7");
}

}  // namespace
}  // namespace bev
