// Sampling on the CPU: rows of logits are divided among the threads.
#pragma once

#include "kernels/sampling.h"

namespace bev {

SamplingKernels cpu_sampling_kernels();

}  // namespace bev
