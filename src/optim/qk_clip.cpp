#include "optim/qk_clip.h"

#include "base/error.h"
#include "kernels/device.h"
#include "kernels/optim.h"

namespace bev {

namespace {

double power_of(LogitPower power, double alpha) {
  if (power == LogitPower::kWhole) return 1;
  return power == LogitPower::kQuery ? alpha : 1 - alpha;
}

// The group and the power of each row of the whole weight.
struct HostRows {
  std::vector<std::int32_t> groups;
  std::vector<double> powers;
};

HostRows whole_rows(const Param& param, double alpha) {
  const auto rows = static_cast<std::size_t>(param.shape[0]);
  HostRows all{std::vector<std::int32_t>(rows, -1), std::vector<double>(rows)};
  for (const LogitRows& part : param.logits.rows) {
    for (std::int64_t group = 0; group < param.logits.groups; ++group) {
      for (std::int64_t i = 0; i < part.count; ++i) {
        const auto row = static_cast<std::size_t>(part.begin + group * part.stride + i);
        all.groups[row] = static_cast<std::int32_t>(group);
        all.powers[row] = power_of(part.power, alpha);
      }
    }
  }
  return all;
}

HostRows local_rows(const HostRows& all, const Param& param, const ParamPart& part) {
  const std::int64_t columns = param.shape.row_numel();
  HostRows local;
  for (const ElementRun& run : element_runs(param.shape, param.split, part)) {
    for (std::int64_t i = 0; i < run.count / columns; ++i) {
      const auto row = static_cast<std::size_t>(run.global / columns + i);
      local.groups.push_back(all.groups[row]);
      local.powers.push_back(all.powers[row]);
    }
  }
  return local;
}

}  // namespace

QkClip::QkClip(Context& ctx, const QkClipConfig& config, const std::vector<SharedParam>& shared,
               std::vector<RuleRange> ranges)
    : config_(config), ranges_(std::move(ranges)) {
  // Also of weights of which this rank owns nothing: its memory does not depend on its shard.
  for (const SharedParam& trained : shared) {
    const Param& param = *trained.param;
    if (!param.logits.rows.empty()) rows_.emplace(&param, rows_of(ctx, param));
  }
}

QkClip::Rows QkClip::rows_of(Context& ctx, const Param& param) const {
  const HostRows local =
      local_rows(whole_rows(param, config_.alpha), param, part_of(param.split, ctx.mesh));
  auto keep = [&]<class T>(const std::vector<T>& values) {
    Tensor to = ctx.allocate(DtypeOf<T>::value, {std::ssize(values)}, "step");
    ctx.kernels.device.upload(ctx.stream, values.data(), to);
    return to;
  };
  return {keep(local.groups), keep(local.powers)};
}

void QkClip::step(Context& ctx) const {
  BEV_CHECK(!ctx.max_logits.empty(), ErrorKind::kInternal,
            "QK-clip: the step has not kept the largest attention logits");
  for (const RuleRange& range : ranges_) {
    const LogitScaling& logits = range.param().logits;
    const Rows& rows = rows_.at(&range.param());
    ctx.kernels.optim.qk_clip(
        ctx.stream, {.main = range.main,
                     .values = range.range->value,
                     .first = range.range->offset,
                     .columns = range.param().shape.row_numel(),
                     .groups = rows.groups.as<std::int32_t>(),
                     .powers = rows.powers.as<double>(),
                     .max_logits = ctx.max_logits.rows(logits.layer, logits.layer + 1).flat(),
                     .group_heads = logits.group_heads,
                     .threshold = config_.threshold,
                     .state = ctx.step});
  }
}

}  // namespace bev
