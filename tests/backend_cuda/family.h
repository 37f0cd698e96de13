// What the tests of kernel families share in addition to the rig.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {

inline const std::vector<Dtype> kModelDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

// Rows [begin, end) on both sides; from row 1 on they are aligned to an element only.
inline Twin part(const Twin& twin, std::int64_t begin, std::int64_t end) {
  return {twin.exact.rows(begin, end), twin.device.rows(begin, end)};
}

template <class Call>
void expect_device_error(const Call& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice) << error.what();
  }
}

}  // namespace bev::cuda_test
