#include "parallel/store/param_store.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/device.h"
#include "kernels/optim.h"
#include "kernels/quantize.h"
#include "parallel/store/nf4_weights.h"

namespace bev {

ParamStore::ParamStore(std::vector<Param*> params, const Mesh& mesh, Arena& arena,
                       const Kernels& kernels, Stream stream, const StoreOptions& options)
    : tools_{mesh, arena, kernels, stream, options},
      plan_(std::move(params), mesh, options),
      values_(plan_, tools_,
              {options.dtype, !plan_.splits(ShardingStrategy::kOptimGradsParams),
               BucketChoice::kAll, "weights"}),
      gradients_(options.gradients ? make_gradient_sums(plan_, tools_) : nullptr),
      squares_(options.gradients ? std::make_unique<GradientSquares>(plan_, tools_, optim_ranges())
                                 : nullptr),
      units_(plan_, tools_, values_),
      packed_(plan_, tools_),
      amaxes_(plan_.params(), tools_),
      quantized_(plan_, tools_, values_, amaxes_),
      gathers_(static_cast<std::size_t>(plan_.bucket_count())) {}

namespace {
// The value of a rule for a uniform number u in (0, 1).
double init_value(const InitRule& rule, double u) {
  if (rule.kind == InitKind::kLogUniform) return std::log(rule.low + u * (rule.value - rule.low));
  const double step = std::exp(std::log(rule.low) + u * std::log(rule.value / rule.low));
  const double least = std::max(step, 1e-4);
  return least + std::log(-std::expm1(-least));  // the inverse of softplus
}
}  // namespace

void ParamStore::initialise(std::uint64_t seed) {
  for (const Param* param : params()) {
    if (param->format == ParamFormat::kNf4) {
      initialise_nf4(*param, mix_bits(seed, hash_name(param->name)));
      continue;
    }
    ParamPart cut = part_of(param->split, tools_.mesh);
    Tensor value(tools_.arena, param->dtype(options().dtype), param->local, "initial values");
    if (param->init.kind == InitKind::kConstant) {
      tools_.kernels.fill(tools_.stream, value, param->init.value);
    } else if (param->init.kind == InitKind::kLogUniform ||
               param->init.kind == InitKind::kSoftplusUnder) {
      draw_on_host(*param, mix_bits(seed, hash_name(param->name)), value);
    } else {
      std::uint64_t key = mix_bits(seed, hash_name(param->name));
      View flat = value.view().flat();
      for (const ElementRun& run : element_runs(param->shape, param->split, cut)) {
        tools_.kernels.optim.normal(tools_.stream,
                                    {.x = flat.rows(run.local, run.local + run.count),
                                     .key = key,
                                     .first = run.global,
                                     .mean = 0.0,
                                     .std = param->init.value,
                                     .uniform = param->init.kind == InitKind::kUniform});
      }
    }
    set_local_value(*param, value);
  }
}

// Few numbers, which are functions of uniform ones.
void ParamStore::draw_on_host(const Param& param, std::uint64_t key, const Tensor& to) {
  const InitRule& rule = param.init;
  std::vector<double> host(static_cast<std::size_t>(to.numel()));
  for (const ElementRun& run :
       element_runs(param.shape, param.split, part_of(param.split, tools_.mesh))) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const auto index = static_cast<std::uint64_t>(run.global + i);
      const PhiloxCounter words = philox(
          {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}, key);
      host[static_cast<std::size_t>(run.local + i)] = init_value(rule, uniform_of(words[0]));
    }
  }
  Tensor wide(tools_.arena, Dtype::kF64, to.shape(), "initial values");
  tools_.kernels.device.upload(tools_.stream, host.data(), wide);
  tools_.kernels.cast(tools_.stream, wide, to);
}

// Draws the whole parameter in f32, as its blocks do not depend on the layout.
void ParamStore::initialise_nf4(const Param& param, std::uint64_t key) {
  std::int64_t count = param.shape.numel();
  std::vector<float> host(static_cast<std::size_t>(count), static_cast<float>(param.init.value));
  if (param.init.kind == InitKind::kNormal) {
    Tensor value(tools_.arena, Dtype::kF32, {count}, "initial values");
    tools_.kernels.optim.normal(
        tools_.stream, {.x = value, .key = key, .first = 0, .mean = 0.0, .std = param.init.value});
    tools_.kernels.device.fetch(tools_.stream, value, host.data()).wait();
  }
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(nf4_code_bytes(count)));
  std::vector<float> absmax(static_cast<std::size_t>(ceil_div(count, param.nf4.block)));
  quantize_nf4(host, param.nf4.block, codes, absmax);
  Nf4Scales scales = make_nf4_scales(std::move(absmax), param.nf4);
  Nf4Part part(param, part_of(param.split, tools_.mesh));
  part.add({.codes = codes, .scales = &scales, .count = count});
  set_nf4(param, part.bytes());
}

void ParamStore::set_nf4(const Param& param, std::span<const std::byte> part) {
  ValueRange kept = kept_value(param);
  if (kept.range.size() == 0) return;
  tools_.kernels.device.upload(tools_.stream, part.data() + kept.range.begin, kept.value);
}

Nf4Lease ParamStore::nf4(const Param& param) {
  WeightLease stored = stored_value(param);
  return {{stored.view.data, param.nf4_layout, param.nf4.dtype}, stored.hold};
}

WeightLease ParamStore::use(const Param& param) {
  if (param.format != ParamFormat::kNf4) return stored_value(param);
  Nf4Lease stored = nf4(param);
  Tensor value(tools_.arena, options().dtype, param.local, "dequantised weights");
  tools_.kernels.quantize.dequantize_nf4(tools_.stream, stored.view, value.view().flat());
  return {value, value};
}

WeightLease ParamStore::stored_value(const Param& param) {
  if (!values_.whole()) return units_.use(param);
  if (gather_due_) gather_values();
  auto bucket = static_cast<std::size_t>(plan_.place(param).bucket);
  for (Work& work : gathers_[bucket]) work.wait();
  return {values_.param(param), {}};
}

Quantized ParamStore::quantized(const Param& param) {
  if (plan_.gathers_payload(param)) return quantized_.use(param, {});
  WeightLease value = use(param);
  return quantized_.use(param, value.view);
}

GradSink ParamStore::sink(const Param& param, const Placement& placement) {
  GradSink sink = gradients_->sink(param, placement);
  sink.squares = squares_->early_sum(param, placement);
  return sink;
}

void ParamStore::done(const Param& param, GradSink sink) {
  if (sink.squared) squares_->added_early(param);
  sink.hold = Tensor();  // the sums decide how long its memory lives
  gradients_->done(param);
}

void ParamStore::begin_step(std::int64_t micro_batches, double* squares) {
  gradients_->begin_step(micro_batches);
  squares_->begin_step(micro_batches, squares);
  units_.begin_step();
  packed_.begin_step(micro_batches);
  quantized_.expire();
  amaxes_.begin_step();
}

void ParamStore::pause() {
  gradients_->pause();
  if (values_.whole()) return;
  units_.clear();
  quantized_.expire();
}

void ParamStore::values_changed() {
  forget_gathers();
  gather_due_ = gathers_first();
}

void ParamStore::finish_gradients() {
  units_.end_step();
  gradients_->finish();
  forget_gathers();  // of unused buckets, because the update overwrites the values
}

// Every rank contributes its shard of the parameter; the shards in rank order are the parameter.
WeightLease ParamStore::gather(const FlatBuffer& buffer, const Param& param,
                               const char* tag) const {
  int bucket = plan_.place(param).bucket;
  Tensor whole(tools_.arena, buffer.dtype(bucket), param.local, tag);
  Group& shards = plan_.shards(bucket);
  shards.all_gather(buffer.owned(param), whole.view().flat(), param.name).wait();
  return {whole, whole};
}

WeightLease ParamStore::local_value(const Param& param) {
  bool here = values_.whole() && !plan_.gathers_payload(param);
  return here || param.format == ParamFormat::kNf4 ? use(param)
                                                   : gather(values_, param, "gathered weights");
}

WeightLease ParamStore::local_gradient(const Param& param) {
  BEV_CHECK(param.trains, ErrorKind::kInternal, "gradient of ", param.name, ": it is frozen");
  const FlatBuffer& sums = gradients_->buffer();
  // With sharded optimizer state only this rank's shard of a whole buffer holds the sum.
  if (plan_.splits(ShardingStrategy::kOptim)) return gather(sums, param, "gathered gradients");
  return {sums.param(param), {}};
}

void ParamStore::set_local_value(const Param& param, const View& value) {
  BEV_CHECK(value.shape == param.local, "weight ", param.name, ": ", value.shape, " given for ",
            param.local);
  ValueRange kept = kept_value(param);
  tools_.kernels.cast(tools_.stream, value.flat().rows(kept.range.begin, kept.range.end),
                      kept.value);
}

ValueRange ParamStore::owned_value(const Param& param) const {
  return {plan_.owned(param), values_.owned(param)};
}

ValueRange ParamStore::kept_value(const Param& param) {
  forget_gathers();
  if (!values_.whole()) return owned_value(param);
  return {{0, param.stored_elements()}, values_.param(param).flat()};
}

std::vector<OptimRange> ParamStore::optim_ranges() const {
  std::vector<OptimRange> ranges;
  for (const Param* param : params()) {
    Range mine = plan_.owned(*param);
    if (!param->trains || mine.size() == 0) continue;
    ranges.push_back({param, mine.begin, values_.owned(*param), gradients_->buffer().owned(*param),
                      counts(*param)});
  }
  return ranges;
}

std::vector<SharedParam> ParamStore::shared_params() const {
  std::vector<SharedParam> shared;
  for (const Param* param : params()) {
    if (!param->trains) continue;
    Group& shards = plan_.shards(plan_.place(*param).bucket);
    SharedParam& next = shared.emplace_back(param, &shards, &plan_.tensor_parallel(*param));
    for (int rank = 0; rank < shards.size(); ++rank)
      next.owned.push_back(plan_.owned(*param, rank));
  }
  return shared;
}

bool ParamStore::counts(const Param& param) const {
  bool cut_or_first = param.split.dim >= 0 || plan_.tensor_parallel(param).rank() == 0;
  return plan_.replicas(param).rank() == 0 && !param.copy && param.counted && cut_or_first;
}

void ParamStore::add_gradient_squares(double* sum) { squares_->add_others(sum); }

void ParamStore::count_zero_gradients(double* count) {
  tools_.kernels.optim.count_zeros(tools_.stream, squares_->counted(), count);
}

void ParamStore::add_frozen_squares(double* sum) {
  std::vector<View> frozen;
  for (const Param* param : params()) {
    if (param->format == ParamFormat::kNf4) {
      WeightLease value = use(*param);  // collective if values are sharded
      bool first = plan_.shards(plan_.place(*param).bucket).rank() == 0;
      if (!first || !counts(*param)) continue;
      tools_.kernels.optim.sum_squares(tools_.stream, std::vector<View>{value.view.flat()}, sum);
      continue;
    }
    bool mine = !param->trains && counts(*param) && plan_.owned(*param).size() > 0;
    if (mine) frozen.push_back(values_.owned(*param));
  }
  tools_.kernels.optim.sum_squares(tools_.stream, frozen, sum);
}

// One all-gather for the bucket, except for parameters whose FP8 payloads are gathered on use.
void ParamStore::gather_bucket(int bucket) {
  std::vector<Work>& works = gathers_[static_cast<std::size_t>(bucket)];
  const std::vector<int>& members = plan_.bucket(bucket).params;
  if (!plan_.gathers_payloads(bucket)) {
    works.push_back(plan_.shards(bucket).all_gather(values_.owned(bucket), values_.bucket(bucket),
                                                    plan_.param(members.front()).name));
    return;
  }
  for (int index : members) {
    const Param& param = plan_.param(index);
    if (plan_.gathers_payload(param)) continue;
    works.push_back(plan_.shards(bucket).all_gather(values_.owned(param),
                                                    values_.param(param).flat(), param.name));
  }
}

void ParamStore::gather_values() {
  forget_gathers();
  gather_due_ = false;
  if (!values_.whole()) return;
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    if (plan_.trains(i) && plan_.shards(i).size() > 1) gather_bucket(i);
  }
  if (!options().overlap_gather) forget_gathers();
}

// Waits for the all-gathers after an update, and invalidates everything derived from the values.
void ParamStore::forget_gathers() {
  for (std::vector<Work>& works : gathers_) {
    for (Work& work : works) work.wait();
    works.clear();
  }
  units_.clear();
  packed_.expire();
  quantized_.expire();
}

}  // namespace bev
