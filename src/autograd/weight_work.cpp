#include "autograd/weight_work.h"

#include "autograd/op_scope.h"
#include "base/scoped_value.h"

namespace bev {

void WeightWork::run(Context& ctx) {
  for (Item& item : items_) {
    ScopedValue layer(ctx.layer, item.layer);
    OpScope scope(ctx, item.op, TraceKind::kBackward);
    item.work->run(ctx);
    item.work.reset();
  }
  items_.clear();
}

}  // namespace bev
