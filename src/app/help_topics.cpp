// `help presets`, `help models` and `help layouts`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/help.h"
#include "base/text.h"
#include "models/families/family.h"
#include "models/families/proven.h"

namespace bev {

std::string presets_help() {
  std::string out =
      fmt::format("{:<24}{:<14}{:>10}{:>8}{:>8}{:>7}{:>6}{:>8}{:>9}{:>9}\n", "preset", "family",
                  "parameters", "layers", "hidden", "heads", "kv", "ffn", "experts", "vocab");
  for (const ModelFamily& family : families()) {
    for (const Preset& known : family.presets) {
      ModelConfig model = preset(known.name);
      out += fmt::format("{:<24}{:<14}{:>10}{:>8}{:>8}{:>7}{:>6}{:>8}{:>9}{:>9}\n", known.name,
                         family.name, format_count(static_cast<double>(count_parameters(model))),
                         model.num_layers, model.hidden_size, model.num_attention_heads,
                         model.kv_heads(), model.ffn_size(),
                         model.moe.any() ? concat(model.moe.num_experts) : "-", model.vocab_size);
    }
  }
  return out +
         "\n`train --preset NAME` makes a new model of these sizes, with random weights; flags "
         "change them\n(--num-layers 4). Trained weights are read from a folder: --hf-model DIR.\n";
}

namespace {
std::vector<std::string> preset_names_of(const ModelFamily& family) {
  std::vector<std::string> names;
  for (const Preset& known : family.presets) names.push_back(known.name);
  return names;
}

std::vector<std::string> refused_keys(std::string_view family) {
  std::vector<std::string> keys;
  for (const RefusedSetting& setting : refused_settings()) {
    if (setting.family == family) keys.emplace_back(setting.key);
  }
  return keys;
}
}  // namespace

std::string models_json() {
  auto list = nlohmann::ordered_json::array();
  for (const ProvenFamily& proven : proven_families()) {
    const ModelFamily& family = find_family(proven.name);
    list.push_back({{"name", family.name},
                    {"model_types", model_types(family.name)},
                    {"presets", preset_names_of(family)},
                    {"reads", true},
                    {"writes", true},
                    {"trains", true},
                    {"generates", family_defaults(family.name).causal},
                    {"layouts", proven.layouts},
                    {"refuses", refused_keys(family.name)}});
  }
  return nlohmann::ordered_json{{"families", list}}.dump() + "\n";
}

std::string models_help() {
  std::string out = fmt::format("{:<18}{:<34}{}\n", "model type", "layouts tested", "presets");
  for (const ProvenFamily& proven : proven_families()) {
    const ModelFamily& family = find_family(proven.name);
    out += fmt::format(
        "{:<18}{:<34}{}\n", join(model_types(family.name), ", "),
        join(std::vector<std::string>(proven.layouts.begin(), proven.layouts.end()), " "),
        join(preset_names_of(family), " "));
  }
  return out +
         "\nFor each, tests compare logits, loss, all gradients, ten steps of AdamW and, of "
         "decoders, "
         "generated tokens with\nHugging Face transformers, the gradients also in these layouts, "
         "and write "
         "the folder back bit for bit.\nSettings of a config.json that would change the "
         "computation and are not supported are refused by name;\n`help models --json` names "
         "those that tests try.\n";
}

std::string layouts_help() {
  return R"(A layout says how a model and its data are split over ranks (a GPU or CPU part each). The axes:

  axis  flag       splits                                      each rank then has
  dp    --dp N     the samples of a step                       a whole copy of the model
  tp    --tp N     every matrix, within a layer                1/N of each layer
  pp    --pp N     the layers, in stages one after another     some of the layers
  cp    --cp N     every sequence, along its tokens            1/N of the activations
  ep    --ep N     the experts of MoE layers                   1/N of the experts

Sizes multiply: ranks = tp x cp x pp x dp. ep divides the same ranks a second time, for MoE layers alone.
With --ranks and all but one of the sizes, dp follows. More flags that belong to an axis:

  dp   --use-distributed-optimizer (ZeRO 1), --data-parallel-sharding-strategy optim_grads (ZeRO 2)
       or optim_grads_params (ZeRO 3, FSDP)
  tp   --sequence-parallel: norms and residuals are split too
  pp   --vpp N: several smaller stages a rank; --pipeline-schedule zb-h1, zb-v: shorter idle times;
       --pipeline-model-parallel-layout "Ett|tt|ttL": each stage by letters, E embedding, t layer,
       L loss, | next stage, x*n and (..)*n repeat
  cp   --cp-comm-type p2p, a2a, allgather
  ep   --etp N: tensor parallelism within experts

Start with dp alone, then split what does not fit: ZeRO for the optimizer, tp within a machine for the model,
pp across machines, cp for long sequences. `train ... --dry-run` says the memory of every rank.

  bevatron train --preset llama3.2-1b --text book.txt --train-iters 100 --dp 2
  bevatron train --preset llama3-8b --tp 8 --sequence-parallel --dp 4 --bf16 --dry-run
  mpirun -n 2 bevatron train --preset llama3-8b --tp 2 --pp 2 --bf16 --mock-data --train-iters 10

Short notation, of `verify --layouts` and its reports: words joined directly or by commas, a blank between
layouts. `bevatron verify --layouts "tp2sp,pp2 dp4zero3"` compares two layouts with one rank: tp 2 with sequence
parallelism and pp 2 (4 ranks), and dp 4 with ZeRO 3. Words: tpN sp tpoverlap, ppN vppN groupN zbh1 zbv
[STAGES], dpN zero1 zero2 zero3 instancesN, cpN p2p a2a allgather a2aNp2pN, epN etpN, dpouter.

docs/parallelism.md has what each axis sends, and tables of memory and idle time.
)";
}

}  // namespace bev
