#include "parallel/store/gradient_wire.h"

#include <utility>

#include "kernels/elementwise.h"

namespace bev {

bool PostedSum::advance() {
  work_.wait();
  sent_ = Tensor();
  if (!parts_.empty()) {
    Tensor parts = std::exchange(parts_, Tensor());
    std::int64_t part = out_.numel(), count = part > 0 ? parts.numel() / part : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      tools_->kernels.elementwise.axpby(tools_->stream, 1.0,
                                        parts.view().rows(i * part, (i + 1) * part),
                                        i == 0 ? beta_ : 1.0, out_);
    }
  }
  if (whole_.empty()) return false;
  work_ = group_->all_gather(out_, std::exchange(whole_, View()), label_);
  return true;
}

PostedSum GradientWire::start(const SumAmong& among, const View& out, double beta) const {
  PostedSum sum;
  sum.tools_ = &tools_;
  sum.group_ = &among.group;
  sum.label_ = among.label;
  sum.out_ = out;
  sum.beta_ = beta;
  return sum;
}

void GradientWire::exchange_parts(PostedSum& sum, const View& in) const {
  Group& group = *sum.group_;
  std::int64_t members = group.size();
  std::vector<std::int64_t> send, receive;
  for (std::int64_t i = 0; i < members; ++i) {
    send.push_back(shard_range(in.numel(), members, i).size());
    receive.push_back(sum.out_.numel());
  }
  sum.sent_ = Tensor(tools_.arena, Dtype::kBf16, {in.numel()}, "gradients on the wire");
  sum.parts_ =
      Tensor(tools_.arena, Dtype::kBf16, {sum.out_.numel() * members}, "gradients on the wire");
  tools_.kernels.cast(tools_.stream, in, sum.sent_);
  sum.work_ = group.all_to_all(sum.sent_, send, sum.parts_, receive, sum.label_);
}

PostedSum GradientWire::scatter(const SumAmong& among, const View& in, Tensor hold, const View& out,
                                double beta) const {
  PostedSum sum = start(among, out, beta);
  if (rounds(among)) {
    exchange_parts(sum, in);
    return sum;
  }
  sum.sent_ = std::move(hold);
  View to = out;
  if (beta != 0) {
    sum.parts_ = Tensor(tools_.arena, out.dtype, out.shape, "unreduced gradients");
    to = sum.parts_;
  }
  sum.work_ = among.group.reduce_scatter(in, to, among.label);
  return sum;
}

PostedSum GradientWire::sum(const SumAmong& among, const View& data) const {
  Group& group = among.group;
  if (group.size() == 1) return {};
  if (!rounds(among)) {
    PostedSum sum = start(among, data, 0);
    sum.work_ = group.all_reduce(data, Reduction::kSum, among.label);
    return sum;
  }
  Range mine = shard_range(data.numel(), group.size(), group.rank());
  PostedSum sum = start(among, data.rows(mine.begin, mine.end), 0);
  sum.whole_ = data;
  exchange_parts(sum, data);
  return sum;
}

}  // namespace bev
