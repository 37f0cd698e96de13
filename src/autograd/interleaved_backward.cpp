#include "autograd/interleaved_backward.h"

#include "autograd/tape.h"

namespace bev {

void yield_to_partner(Context& ctx) {
  if (ctx.tape != nullptr) {
    ctx.tape->record("give_way", ctx.layer, [](Backward& back) { back.pause(); });
  }
  if (ctx.partner != nullptr) ctx.partner->run_until_yield();
}

}  // namespace bev
