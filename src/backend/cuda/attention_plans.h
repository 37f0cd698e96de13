// cuDNN's plans of attention, one for each shape that was met.
#pragma once

namespace bev {

class CudaAttention {};

}  // namespace bev
