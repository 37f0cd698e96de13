// All kernel tables, for backends, which fill them in. Tables have no default members, so a missing
// kernel does not compile.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/delta_rule.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/latent.h"
#include "kernels/loss.h"
#include "kernels/low_rank.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "kernels/quantize.h"
#include "kernels/recurrent.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/sampling.h"
#include "kernels/ssd.h"
