// All kernel tables by value; each backend fills in one. Tables have no default members, so a
// missing kernel does not compile.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/latent.h"
#include "kernels/loss.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "kernels/quantize.h"
#include "kernels/rope.h"
#include "kernels/router.h"

namespace bev {

struct KernelTables {
  decltype(Kernels::fill) fill;
  decltype(Kernels::cast) cast;
  DeviceKernels device;
  ElementwiseKernels elementwise;
  GemmKernels gemm;
  NormKernels norm;
  ActivationKernels activation;
  RopeKernels rope;
  AttentionKernels attention;
  LatentKernels latent;
  EmbeddingKernels embedding;
  LossKernels loss;
  RouterKernels router;
  MoeKernels moe;
  OptimKernels optim;
  QuantizeKernels quantize;

  // The result refers to the tables of this object.
  constexpr Kernels kernels() const& {
    return {.fill = fill,
            .cast = cast,
            .device = device,
            .elementwise = elementwise,
            .gemm = gemm,
            .norm = norm,
            .activation = activation,
            .rope = rope,
            .attention = attention,
            .latent = latent,
            .embedding = embedding,
            .loss = loss,
            .router = router,
            .moe = moe,
            .optim = optim,
            .quantize = quantize};
  }
  Kernels kernels() && = delete;
};

}  // namespace bev
