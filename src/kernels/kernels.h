// All kernel tables of a backend. Tables have no defaults: a gap does not compile.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/latent.h"
#include "kernels/loss.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "kernels/quantize.h"

namespace bev {

struct Kernels {
  DeviceKernels device;
  ElementwiseKernels elementwise;
  GemmKernels gemm;
  NormKernels norm;
  ActivationKernels activation;
  AttentionKernels attention;
  LatentKernels latent;
  EmbeddingKernels embedding;
  LossKernels loss;
  MoeKernels moe;
  OptimKernels optim;
  QuantizeKernels quantize;
};

}  // namespace bev
