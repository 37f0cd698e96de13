// convert: weights and training states between Hugging Face folders, our checkpoints and Megatron's
// without an engine; upcycles a dense model to an MoE model, as a folder or as a checkpoint.
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/choose_model.h"
#include "app/commands/commands.h"
#include "app/export_files.h"
#include "app/merge_adapter.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "app/run_config.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/plural.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "bridge/weight_files.h"
#include "chat/chat_template.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/convert/conversion.h"
#include "checkpoint/saver.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "comm/world.h"
#include "models/model.h"
#include "posttrain/upcycling.h"
#include "tensor/dtype.h"
#include "train/text_data.h"

namespace bev {

namespace {

std::string read_dtype(std::string_view text, std::string& problem) {
  std::optional<Dtype> dtype = parse_dtype(text);
  if (dtype && is_float(*dtype)) return std::string(name_of(*dtype));
  problem = concat("'", text, "' is not one of f32, bf16, f16, f64");
  return "";
}

std::string read_quantization(std::string_view text, std::string& problem) {
  if (text.empty() || text == "nf4") return std::string(text);
  problem = concat("'", text, "' is not nf4");
  return "";
}

enum class CheckpointFormat : std::uint8_t { kOwn, kTorchDist };
enum class TransformerImpl : std::uint8_t { kTransformerEngine, kLocal };

struct ConvertOptions {
  std::string hf_model;
  std::string load;
  std::int64_t ckpt_step = -1;  // -1: the latest
  std::string export_hf;
  std::string save;  // folder for a checkpoint
  CheckpointFormat ckpt_format = CheckpointFormat::kOwn;
  TransformerImpl transformer_impl = TransformerImpl::kTransformerEngine;
  // Layout of Megatron's run; 0: that of the run that is read.
  std::int64_t tp = 0, pp = 0, ep = 0, etp = 0;
  std::string dtype;     // "": unchanged; else a name that parse_dtype knows
  std::string quantize;  // "" or nf4
  bool double_quant = false;
  std::int64_t quantize_block_size = 64;
  std::string chat_template;
  std::string adapter;
  bool merge_lora = false;
  bool moe_use_upcycling = false;
  std::int64_t moe_upcycling_granularity = 1;
  std::int64_t seed = 1234;
  RunConfig run;  // flags of the MoE model to upcycle to

  void fields(FieldList& list);
  void megatron_fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void ConvertOptions::fields(FieldList& list) {
  list.section("convert");
  list.add("hf-model", hf_model,
           "Hugging Face folder to read; with --load the one whose config.json and tokenizer go "
           "along")
      .defaults_to("none; with --load that of the run");
  list.add("load", load, "checkpoint to read: the folder of a run or of a step");
  list.add("ckpt-step", ckpt_step, "the step of a run's folder; -1: the latest").min(-1);
  list.add("export-hf", export_hf, "Hugging Face folder to write");
  list.add("dtype", dtype, "f32, bf16, f16 or f64 for the floating-point weights")
      .reads(read_dtype)
      .defaults_to("as they are");
  list.add("quantize", quantize,
           "nf4: write the matrices of linear layers in bitsandbytes' NF4, 4 bits a number; "
           "embeddings, head, norms and routers stay as they are")
      .reads(read_quantization);
  list.add("double-quant", double_quant,
           "with --quantize nf4: the scales of blocks in 8 bits, 4.13 bits a number in all and not "
           "4.5");
  list.add("quantize-block-size", quantize_block_size,
           "with --quantize nf4: numbers that share a scale, a power of two from 32 to 4096");
  list.add("chat-template", chat_template,
           "file with the chat template to export, or the name of one of several, which becomes "
           "the default; the end of its turns becomes an end token")
      .defaults_to("the run's, else the tokenizer's");
  list.add("adapter", adapter, "folder of a LoRA adapter in peft's format, to merge");
  list.add(
      "merge-lora", merge_lora,
      "write the model of --hf-model with --adapter merged into its weights, after a proof that "
      "it gives the adapted model's logits");
  list.add(
      "moe-use-upcycling", moe_use_upcycling,
      "write a model whose experts are copies of the MLPs of the dense one that is read; flags "
      "of the model say what it becomes");
  list.add("moe-upcycling-granularity", moe_upcycling_granularity,
           "how many times narrower an expert is than the dense MLP, whose parts it is a copy of")
      .min(1)
      .limit(1 << 16);
  list.add("save", save, "folder of a run to write a checkpoint to, with all that is read");
  list.add("ckpt-format", ckpt_format,
           {{"bevatron", CheckpointFormat::kOwn}, {"torch_dist", CheckpointFormat::kTorchDist}},
           "of --save: our own, or Megatron Core's");
  megatron_fields(list);
  list.add("seed", seed, "of the weights that a dense model does not have").min(0);
  run.model.fields(list);
}

void ConvertOptions::megatron_fields(FieldList& list) {
  list.add("transformer-impl", transformer_impl,
           {{"transformer_engine", TransformerImpl::kTransformerEngine},
            {"local", TransformerImpl::kLocal}},
           "--ckpt-format torch_dist: the modules of Megatron that will load it");
  struct Size {
    const char *name, *alias;
    std::int64_t& ranks;
  };
  for (const Size& size : {Size{"tensor-model-parallel-size", "tp", tp},
                           Size{"pipeline-model-parallel-size", "pp", pp},
                           Size{"expert-model-parallel-size", "ep", ep},
                           Size{"expert-tensor-parallel-size", "etp", etp}}) {
    list.add(size.name, size.ranks,
             "--ckpt-format torch_dist: recorded for Megatron's run, which may have others")
        .alias(size.alias)
        .min(0)
        .limit(1 << 16)
        .defaults_to("that of the run that is read, else 1");
  }
}

std::vector<std::string> ConvertOptions::problems() const {
  std::vector<std::string> out;
  if (load.empty()) need(hf_model, "--hf-model", "the folder to read, or --load", out);
  if (load.empty() && ckpt_step >= 0) out.push_back("--ckpt-step: needs --load");
  if (save.empty()) need(export_hf, "--export-hf", "the folder to write, or --save", out);
  bool megatron = ckpt_format == CheckpointFormat::kTorchDist;
  if (megatron && (save.empty() || moe_use_upcycling)) {
    out.push_back(moe_use_upcycling
                      ? "--ckpt-format torch_dist: convert what --moe-use-upcycling wrote, in a "
                        "second step"
                      : "--ckpt-format: needs --save");
  }
  bool local = transformer_impl == TransformerImpl::kLocal;
  if (!megatron && (tp > 0 || pp > 0 || ep > 0 || etp > 0 || local)) {
    out.push_back("--transformer-impl and sizes of a layout: are for --ckpt-format torch_dist");
  }
  if (!save.empty() && !quantize.empty()) {
    out.push_back("--save: a checkpoint is not quantised; leave out --quantize");
  }
  if (!moe_use_upcycling && moe_upcycling_granularity > 1) {
    out.push_back("--moe-upcycling-granularity: needs --moe-use-upcycling");
  }
  if (quantize.empty() && (double_quant || quantize_block_size != Nf4Format().block)) {
    out.push_back(concat(double_quant ? "--double-quant" : "--quantize-block-size",
                         ": needs --quantize nf4"));
  }
  if (!is_nf4_block(quantize_block_size)) {
    out.push_back(concat("--quantize-block-size: ", quantize_block_size,
                         " is not a power of two from 32 to 4096"));
  }
  if (!quantize.empty() && export_hf.empty()) out.push_back("--quantize: needs --export-hf");
  if (!quantize.empty() && dtype == "f64") {
    out.push_back("--quantize nf4: bitsandbytes does not know --dtype f64; use f32, bf16 or f16");
  }
  if (merge_lora != !adapter.empty()) {
    out.push_back(merge_lora ? "--merge-lora: needs --adapter DIR"
                             : "--adapter: is for --merge-lora; give that too");
  }
  if (merge_lora &&
      (!load.empty() || moe_use_upcycling || !chat_template.empty() || !quantize.empty())) {
    out.push_back(
        "--merge-lora: takes --hf-model, --adapter, --export-hf and --dtype; leave out the others");
  }
  if (!hf_model.empty() && hf_model == export_hf) {
    out.push_back(concat("--export-hf: ", export_hf, " is the folder that is read; give another"));
  }
  return out;
}

// The template of --chat-template, else the run's.
void choose_template(DataConfig& data, const std::string& chosen) {
  if (!chosen.empty()) {
    BEV_CHECK(!data.tokenizer.empty(), ErrorKind::kConfig,
              "--chat-template: the run has no tokenizer for it; give a folder that has one by "
              "--hf-model");
    data.chat_template = chosen;
    return;
  }
  if (data.sft_data.empty() || data.tokenizer.empty() || data.chat_template.empty()) return;
  try {
    chat_templates(data.tokenizer, data.chat_template);
  } catch (const Error& error) {
    log_warning(concat("the run's ", error.what(),
                       ": the chat template is not exported; --chat-template names another place"));
    data.sft_data.clear();
    data.chat_template.clear();
  }
}

// The configuration of the run that wrote the checkpoint, without flags that no longer exist.
RunConfig run_of(const CheckpointReader& reader, const ConvertOptions& convert) {
  RunConfig run;
  FieldList list;
  run.fields(list);
  apply_config(reader.manifest().config, list, reader.folder());
  std::string &model = run.train.hf_model, &tokenizer = run.data.tokenizer;
  if (convert.hf_model.empty()) tokenizer = recorded_tokenizer(reader);
  if (!convert.hf_model.empty()) {
    if (tokenizer == model) tokenizer = convert.hf_model;
    model = convert.hf_model;
  } else if (!model.empty() && !path_exists(model)) {
    log_warning(concat("the run's --hf-model ", model,
                       " is not here: config.json is made anew; --hf-model names another place"));
    model.clear();
  }
  bool has_files = !tokenizer.empty() && !tokenizer.starts_with("null:");
  if (has_files && tokenizer_export_files(tokenizer, run.data.tiktoken).empty()) {
    log_warning(concat("the run's tokenizer ", tokenizer, " is not here: it is not exported"));
  }
  choose_template(run.data, convert.chat_template);
  return run;
}

// The layout that common.pt records.
MegatronRun megatron_run(const ConvertOptions& convert, const ParallelConfig& layout) {
  auto size = [](std::int64_t given, std::int64_t of_run) {
    return given > 0 ? given : std::max<std::int64_t>(of_run, 1);
  };
  MegatronRun run;
  run.tp = size(convert.tp, layout.tensor_model_parallel_size);
  run.pp = size(convert.pp, layout.pipeline_model_parallel_size);
  run.ep = size(convert.ep, layout.expert_model_parallel_size);
  bool own = layout.expert_tensor_parallel_size > 0 && convert.tp == 0;
  run.etp = size(convert.etp, own ? layout.expert_tensor_parallel_size : run.tp);
  run.transformer_engine = convert.transformer_impl == TransformerImpl::kTransformerEngine;
  return run;
}

// Writes a checkpoint of the run.
void save_state(const ConvertOptions& convert, StateSource& source, RunConfig& run,
                Manifest about) {
  std::optional<Dtype> dtype;
  if (!convert.dtype.empty()) dtype = parse_dtype(convert.dtype);
  const GlobalTensor& first = source.tensors().at(declare_params(run.model).front().name);
  Dtype weights = dtype.value_or(first.dtype);
  run.precision.bf16 = weights == Dtype::kBf16;
  run.precision.fp16 = weights == Dtype::kF16;
  FieldList list;
  run.fields(list);
  about.config = config_entries(list);
  std::unique_ptr<Storage> disk = make_disk_storage();
  Conversion job{.source = source,
                 .model = run.model,
                 .about = about,
                 .dtype = dtype,
                 .storage = *disk,
                 .out = convert.save,
                 .threads = static_cast<std::size_t>(machine_threads())};
  std::string step;
  if (convert.ckpt_format == CheckpointFormat::kOwn) {
    step = write_own(job);
  } else {
    std::vector<std::string> left_out;
    step = write_torch_dist(job, megatron_run(convert, run.parallel), left_out);
    if (!left_out.empty()) {
      log_warning(concat("--ckpt-format torch_dist: Megatron has no place for ",
                         count_of(std::ssize(left_out), "tensor"), ", the first being ",
                         left_out.front()));
    }
  }
  log_info(concat("wrote ", step));
}

void convert_checkpoint(const ConvertOptions& convert, const ExportTarget& target) {
  CheckpointReader reader(find_step_folder(convert.load, convert.ckpt_step));
  recorded_model(reader);  // throws where there is none
  RunConfig run = run_of(reader, convert);
  if (!convert.save.empty()) {
    if (reader.foreign() != nullptr) {
      for (const std::string& what : reader.foreign()->ignored) log_info("not taken: " + what);
    }
    CheckpointState source(reader);
    save_state(convert, source, run, reader.manifest());
  }
  if (convert.export_hf.empty()) return;
  WeightMap map(run.model);
  CheckpointWeights weights(reader);
  weights.check(map.params());
  Dtype dtype = target.dtype.value_or(weights.dtype(map.params().front(), 0));
  export_hf(map, weights, target, export_files(run, dtype));
}

// The weights of a Hugging Face folder as iteration 0 of a run.
void save_hf(const ConvertOptions& convert) {
  RunConfig run;
  run.model = read_hf_config(convert.hf_model);
  if (!tokenizer_export_files(convert.hf_model, run.data.tiktoken).empty()) {
    run.data.tokenizer = convert.hf_model;
  }
  WeightFiles files(convert.hf_model);
  WeightMap map(run.model);
  map.check(files);
  HfState source(map, files);
  Manifest about;
  about.state.seed = convert.seed;
  save_state(convert, source, run, about);
}

// Model flags describe the model to upcycle to; without upcycling they are refused.
void check_model_flags(const FieldList& fields, Options& options) {
  std::vector<std::string> problems;
  for (const Setting& setting : options.settings()) {
    if (fields.find_entry(setting.field)->section == "convert") continue;
    problems.push_back(
        concat(setting.origin, ": is for --moe-use-upcycling; without it leave it out"));
  }
  options.add_problems(problems);
}

// The MoE model: the model of the source, overridden by the flags.
void choose_upcycled_model(ConvertOptions& convert, const FieldList& fields, Options& options) {
  RunConfig& run = convert.run;
  if (convert.load.empty()) {
    run.train.hf_model = run.data.tokenizer = convert.hf_model;
    run.data.chat_template = convert.chat_template;
    choose_model(run, fields, options);
  } else {
    run = run_of(CheckpointReader(find_step_folder(convert.load, convert.ckpt_step)), convert);
    options.apply(fields);
  }
  options.add_problems(run.model.problems());
  options.add_problems(upcycling_problems(run.model, convert.moe_upcycling_granularity));
  options.throw_problems();
}

// Saves the weights as iteration 0 of a run, without optimizer state.
void save_upcycled(ConvertOptions& convert, const DenseSource& from, Dtype dtype) {
  RunConfig& run = convert.run;
  run.precision.bf16 = dtype == Dtype::kBf16;
  run.precision.fp16 = dtype == Dtype::kF16;
  EngineOptions options;
  options.model = run.model;
  options.dtype = dtype;
  options.seed = static_cast<std::uint64_t>(convert.seed);
  options.gradients = false;
  options.threads = machine_threads();
  FieldList list;
  run.fields(list);
  StagingPool pool(std::size_t{64} << 20);
  std::unique_ptr<Storage> disk = make_disk_storage();
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options);
    upcycle(engine, convert.moe_upcycling_granularity, from);
    Saver saver(engine, *disk, pool,
                {.folder = convert.save, .config = config_entries(list), .with_optimizer = false});
    TrainingState state;
    state.seed = convert.seed;
    saver.begin(state);
    SaveOutcome outcome = saver.finish();
    BEV_CHECK(outcome.problem.empty(), ErrorKind::kInput, convert.save, ": ", outcome.problem);
  });
  log_info(concat("wrote ", convert.save));
}

void convert_upcycled(ConvertOptions& convert, const CommandInput& input,
                      const ExportTarget& target) {
  RunConfig& run = convert.run;
  choose_upcycled_model(convert, input.fields, input.options);
  const DenseSource from{convert.load, convert.ckpt_step, convert.hf_model};
  ThreadPool pool(1);
  Arena arena(make_host_memory());
  Upcycling upcycling(
      run.model, convert.moe_upcycling_granularity, from,
      {cpu_kernels(), Stream{&pool, nullptr}, arena, static_cast<std::uint64_t>(convert.seed)});
  ParamMapping first;
  first.param = "embedding.word_embeddings.weight";
  Dtype dtype = target.dtype.value_or(upcycling.weights().dtype(first, 0));
  if (!convert.export_hf.empty()) {
    WeightMap map(run.model);
    export_hf(map, upcycling.weights(), target, export_files(run, dtype));
  }
  if (!convert.save.empty()) save_upcycled(convert, from, dtype);
}

// Prints modules and difference.
int convert_merged(const ConvertOptions& convert, const ExportTarget& target) {
  MergeOutcome outcome = merge_adapter(convert.hf_model, convert.adapter, target);
  nlohmann::ordered_json line{{"modules", outcome.modules}, {"max_abs_logit_diff", nullptr}};
  if (std::isfinite(outcome.max_abs_logit_diff)) {
    line["max_abs_logit_diff"] = outcome.max_abs_logit_diff;
  }
  if (outcome.same()) {
    log_info(concat("wrote ", convert.export_hf));
  } else {
    log_warning(concat("--merge-lora: the merged weights give other logits; ", convert.export_hf,
                       " is not written"));
  }
  write_stdout(line.dump() + "\n");
  return outcome.same() ? kExitOk : kExitMismatch;
}

int run_convert(ConvertOptions& convert, const CommandInput& input) {
  Options& options = input.options;
  options.add_problems(convert.problems());
  if (!convert.moe_use_upcycling) check_model_flags(input.fields, options);
  options.throw_problems();
  if (input.launch.process != 0) return kExitOk;  // one process does the work
  if (!convert.export_hf.empty()) check_export_folder(convert.export_hf);
  BEV_CHECK(convert.save.empty() || convert.save != convert.load, ErrorKind::kConfig,
            "--save: ", convert.save, " is the folder that is read; give another");
  BEV_CHECK(convert.save.empty() || complete_steps(convert.save).empty(), ErrorKind::kConfig,
            "--save: ", convert.save, " holds a run already; give another folder");
  ExportTarget target{convert.export_hf};
  target.threads = static_cast<std::size_t>(machine_threads());
  if (!convert.quantize.empty()) {
    target.nf4 = Nf4Format{convert.quantize_block_size, convert.double_quant};
  }
  if (!convert.dtype.empty()) target.dtype = parse_dtype(convert.dtype);
  if (convert.merge_lora) return convert_merged(convert, target);
  if (convert.moe_use_upcycling) {
    convert_upcycled(convert, input, target);
  } else if (convert.load.empty()) {
    if (!convert.save.empty()) save_hf(convert);
    if (convert.export_hf.empty()) return kExitOk;
    convert_hf(convert.hf_model, target, [&](std::vector<ExportFile>& files) {
      if (convert.chat_template.empty()) return;
      set_chat_template(files, convert.hf_model, convert.chat_template, -1);
    });
  } else {
    convert_checkpoint(convert, target);
  }
  if (!convert.export_hf.empty()) log_info(concat("wrote ", convert.export_hf));
  return kExitOk;
}

}  // namespace

const Command kConvertCommand = {
    .name = "convert",
    .summary = "weights and training states between Hugging Face, our format and Megatron's",
    .examples =
        "bevatron convert --load RUN --export-hf OUT\n"
        "bevatron convert --hf-model DIR --export-hf OUT --dtype bf16\n"
        "bevatron convert --load MEGATRON_RUN --save RUN\n"
        "bevatron convert --load RUN --save MEGATRON_RUN --ckpt-format torch_dist\n"
        "bevatron convert --hf-model DIR --quantize nf4 --double-quant --export-hf OUT\n"
        "bevatron convert --hf-model LLAMA --moe-use-upcycling --model-family mixtral "
        "--num-experts 8 --export-hf OUT",
    .call = call_of<ConvertOptions, run_convert>};

}  // namespace bev
