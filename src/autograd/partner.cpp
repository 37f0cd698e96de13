#include "autograd/partner.h"

#include "autograd/tape.h"

namespace bev {

void give_way(Context& ctx) {
  if (ctx.tape != nullptr) {
    ctx.tape->record("give_way", ctx.layer, [](Backward& back) { back.pause(); });
  }
  if (ctx.partner != nullptr) ctx.partner->go_on();
}

}  // namespace bev
