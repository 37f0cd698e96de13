// RAII scope of an op: hang reports and traces show its name and layer.
#pragma once

#include "autograd/context.h"
#include "base/trace.h"

namespace bev {

class OpScope {
 public:
  OpScope(const Context& ctx, const char* op, TraceKind pass = TraceKind::kForward)
      : span_(ctx.trace, {pass, op, ctx.layer}) {
    ctx.mesh.activity().set_op(op, ctx.layer);
  }

 private:
  TraceScope span_;
};

}  // namespace bev
