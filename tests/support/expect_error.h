// Expects an Error of a kind whose message contains given parts.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace bev {

template <class F>
void expect_error(ErrorKind kind, const std::vector<std::string>& parts, F&& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with: " << (parts.empty() ? "" : parts[0]);
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.kind()), std::string_view(name_of(kind))) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
          << "no '" << part << "' in: " << error.what();
    }
  }
}

}  // namespace bev
