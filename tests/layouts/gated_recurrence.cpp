// A custom mixer: a gated linear recurrence over the tokens of a document,
//
//   h_t = a_t h_(t-1) + (1 - a_t) b_t,   a = sigmoid(x Wa),  b = x Wb,   y = h Wo
//
// between attention layers of a decoder, trained under every kind of layout and decoded with a
// state of constant size. f64 only.
#include <algorithm>
#include <cmath>

#include "ops/sequence_gather.h"
#include "tests/layouts/slices.h"

namespace bev::test {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// rows [a | b] of n tokens with C channels each: computes h, starting from `state`, which is
// updated.
void scan_rows(const double* rows, std::int64_t channels, std::int64_t n, double* state,
               double* h) {
  for (std::int64_t t = 0; t < n; ++t, rows += 2 * channels, h += channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      double a = sigmoid(rows[c]);
      h[c] = state[c] = a * state[c] + (1 - a) * rows[channels + c];
    }
  }
}

// Gradient of the rows, given that of h.
void scan_rows_backward(const double* rows, const double* h, const double* dh,
                        std::int64_t channels, std::int64_t n, double* drows) {
  std::vector<double> carried(static_cast<std::size_t>(channels), 0.0);
  for (std::int64_t t = n - 1; t >= 0; --t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      std::int64_t at = t * channels + c, in = 2 * t * channels + c;
      double a = sigmoid(rows[in]), before = t > 0 ? h[at - channels] : 0;
      double d = dh[at] + carried[static_cast<std::size_t>(c)];
      drows[in] = d * (before - rows[in + channels]) * a * (1 - a);
      drows[in + channels] = d * (1 - a);
      carried[static_cast<std::size_t>(c)] = d * a;
    }
  }
}

// rows [T, 2C] of whole documents -> h [T, C].
Var scan(Context& ctx, const Var& rows, const TokenSet& tokens) {
  std::int64_t channels = rows.shape()[1] / 2;
  Tensor h = ctx.allocate(rows.dtype(), {rows.shape()[0], channels}, "activations");
  for (const DocumentPiece& piece : tokens.pieces()) {
    std::vector<double> state(static_cast<std::size_t>(channels), 0.0);
    scan_rows(rows.tensor.as<double>() + 2 * channels * piece.row, channels, piece.count,
              state.data(), h.as<double>() + channels * piece.row);
  }
  Var out = make_output(ctx, "scan", h, rows.placement, rows.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("scan", ctx.layer,
                   [h, channels, tokens = &tokens, saved = Saved(rows), in = GradSlot(rows),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dh = back.take(result), kept = saved.get(back.ctx);
                     Tensor d = back.ctx.allocate(kept.dtype(), kept.shape(), "gradients");
                     for (const DocumentPiece& piece : tokens->pieces()) {
                       std::int64_t at = channels * piece.row;
                       scan_rows_backward(kept.as<double>() + 2 * at, h.as<double>() + at,
                                          dh.as<double>() + at, channels, piece.count,
                                          d.as<double>() + 2 * at);
                     }
                     back.add(in, std::move(d));
                   });
  return out;
}

class GatedRecurrence final : public Mixer {
 public:
  GatedRecurrence(const std::string& name, const ModelConfig& config, const BuildOptions& build)
      : in_(column_linear({name + ".in", 2 * config.hidden_size, config.hidden_size, false, 0.3},
                          {config.hidden_size, config.hidden_size})),
        out_(row_linear({name + ".out", config.hidden_size, config.hidden_size, false, 0.3})),
        tp_(build.tensor_parallel) {}
  void params(std::vector<Param*>& list) override { in_.params(list), out_.params(list); }
  void linears(std::vector<Linear*>& list) override { list.insert(list.end(), {&in_, &out_}); }
  StateSpec state(const Context& ctx) const override {
    return {0, 0, out_.weight.shape[1] / ctx.mesh.tp().size()};
  }

  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override {
    const SequenceLayout& layout = *input.layout;
    Var rows = in_.enter(ctx, x, layout.tokens, tp_);
    if (input.decode != nullptr) return out_.leave(ctx, step(ctx, rows, input), tp_);
    Var whole = gather_sequence(ctx, rows, layout);
    Var h = own_sequence(ctx, scan(ctx, whole, whole_sequence(layout)), layout);
    return out_.leave(ctx, h, tp_);
  }

 private:
  static Var step(Context& ctx, const Var& rows, const LayerInput& input) {
    std::int64_t channels = rows.shape()[1] / 2;
    Tensor h = ctx.allocate(rows.dtype(), {rows.shape()[0], channels}, "activations");
    for (std::size_t i = 0; i < input.decode->runs.size(); ++i) {
      const AttentionRun& run = input.decode->runs[i];
      double* state = input.state->sequences.as<double>() + channels * input.decode->slots[i];
      if (run.offset == 0) std::fill_n(state, channels, 0.0);
      scan_rows(rows.tensor.as<double>() + 2 * channels * run.q_begin, channels, run.q_count, state,
                h.as<double>() + channels * run.q_begin);
    }
    return {h, rows.placement, -1, nullptr};
  }

  Linear in_, out_;
  TensorParallel tp_;
};

const MixerType kRecurrence = {
    .name = "gated recurrence",
    .module = "recurrence",
    .make = [](const std::string& name, const ModelConfig& config, const LayerSpec&, std::int64_t,
               const BuildOptions& build) -> std::unique_ptr<Mixer> {
      return std::make_unique<GatedRecurrence>(name, config, build);
    },
    .flops = [](const ModelConfig& config, const LayerSpec&) -> MixerFlops {
      return {6.0 * static_cast<double>(config.hidden_size * config.hidden_size), 0};
    }};

const Architecture kHybrid = [] {
  Architecture hybrid = kDecoderArchitecture;
  hybrid.name = "hybrid";
  hybrid.layers = [](const ModelConfig& config) {
    std::vector<LayerSpec> layers = decoder_layers(config);
    for (std::size_t i = 1; i < layers.size(); i += 2) layers[i].mixer = &kRecurrence;
    return layers;
  };
  return hybrid;
}();

}  // namespace

const Architecture* hybrid_architecture() { return &kHybrid; }

}  // namespace bev::test
