#include "autograd/deferred_wgrad.h"

#include "autograd/op_scope.h"
#include "base/scoped_value.h"

namespace bev {

void DeferredWgrad::run(Context& ctx) {
  for (Item& item : items_) {
    ScopedValue layer(ctx.layer, item.layer);
    OpScope scope(ctx, item.op, TraceKind::kBackward);
    item.work->run(ctx);
    item.work.reset();
  }
  items_.clear();
}

}  // namespace bev
