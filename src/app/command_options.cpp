#include "app/command_options.h"

#include <algorithm>
#include <optional>

#include "base/fields.h"
#include "base/text.h"
#include "tensor/dtype.h"

namespace bev {

namespace {

void need(const std::string& value, const char* flag, const char* what,
          std::vector<std::string>& out) {
  if (value.empty()) out.push_back(concat(flag, ": is missing; give ", what));
}

std::string read_dtype(std::string_view text, std::string& problem) {
  std::optional<Dtype> dtype = parse_dtype(text);
  if (dtype && is_float(*dtype)) return std::string(name_of(*dtype));
  problem = concat("'", text, "' is not one of f32, bf16, f16, f64");
  return "";
}

}  // namespace

void ScoreOptions::fields(FieldList& list) {
  list.section("score");
  list.add("hf-model", hf_model, "Hugging Face folder of the model");
  list.add("tokens", tokens, "JSON file with input_ids [[...]] and perhaps labels (-100: ignored)");
  list.add("batch", batch,
           "JSON file {\"input_ids\": [[ids], ...], \"labels\": ..., \"attention_mask\": ...}; a "
           "field that the model does not use is an error");
  list.add("logits-out", logits_out,
           "safetensors file for the logits, [B,S,V] in fp32; 0 where there is no token");
  list.add("grads-out", grads_out, "safetensors file for the gradients of the mean loss");
}

std::vector<std::string> ScoreOptions::problems() const {
  std::vector<std::string> out;
  need(hf_model, "--hf-model", "the folder of the model", out);
  if (batch.empty()) need(tokens, "--tokens", "a JSON file with input_ids, or --batch", out);
  if (!tokens.empty() && !batch.empty()) {
    out.push_back("--batch: excludes --tokens; keep one");
  }
  if (!logits_out.empty() && logits_out == grads_out) {
    out.push_back(concat("--grads-out: ", grads_out, " is also --logits-out; give two files"));
  }
  return out;
}

void GenerateOptions::fields(FieldList& list) {
  list.section("generate");
  list.add("hf-model", hf_model, "Hugging Face folder of the model");
  list.add("prompt", prompt, "text to continue");
  list.add("prompt-tokens", prompt_tokens, "JSON file with input_ids [[...]] to continue");
  list.add("max-new-tokens", max_new_tokens, "tokens to add").min(0).limit(1 << 24);
  list.add("temperature", temperature, "divides the logits; 0: always the likeliest token").min(0);
  list.add("top-k", top_k, "choose among so many likeliest tokens; 0: all").min(0).limit(1 << 28);
  list.add("top-p", top_p, "choose among the likeliest tokens that make up this probability")
      .above(0)
      .max(1);
  list.add("ignore-eos", ignore_eos, "go on after the end-of-sequence token");
  list.add("json", json, "one JSON line with token ids, log-probabilities and text");
}

std::vector<std::string> GenerateOptions::problems() const {
  std::vector<std::string> out;
  need(hf_model, "--hf-model", "the folder of the model", out);
  if (prompt.empty() && prompt_tokens.empty()) {
    out.push_back("--prompt: is missing; give it or --prompt-tokens");
  }
  if (!prompt.empty() && !prompt_tokens.empty()) {
    out.push_back("--prompt: excludes --prompt-tokens; keep one");
  }
  return out;
}

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
  list.add(
      "moe-use-upcycling", moe_use_upcycling,
      "write a model whose experts are copies of the MLPs of the dense one that is read; flags "
      "of the model say what it becomes");
  list.add("moe-upcycling-granularity", moe_upcycling_granularity,
           "how many times narrower an expert is than the dense MLP, whose parts it is a copy of")
      .min(1)
      .limit(1 << 16);
  list.add("save", save, "with --moe-use-upcycling: folder of a run to write a checkpoint to");
  list.add("seed", seed, "of the weights that a dense model does not have").min(0);
}

std::vector<std::string> ConvertOptions::problems() const {
  std::vector<std::string> out;
  if (load.empty()) need(hf_model, "--hf-model", "the folder to read, or --load", out);
  if (load.empty() && ckpt_step >= 0) out.push_back("--ckpt-step: needs --load");
  if (save.empty()) need(export_hf, "--export-hf", "the folder to write", out);
  if (!moe_use_upcycling && !save.empty()) {
    out.push_back("--save: is for --moe-use-upcycling; use --export-hf");
  }
  if (!moe_use_upcycling && moe_upcycling_granularity > 1) {
    out.push_back("--moe-upcycling-granularity: needs --moe-use-upcycling");
  }
  if (!hf_model.empty() && hf_model == export_hf) {
    out.push_back(concat("--export-hf: ", export_hf, " is the folder that is read; give another"));
  }
  return out;
}

void CheckpointOptions::fields(FieldList& list) {
  list.section("checkpoint");
  list.add("folders", folders,
           "folders of runs, which mean their latest step, or of steps; may be given without the "
           "flag");
  list.add("ckpt-step", ckpt_step, "the step of a run's folder; -1: the latest").min(-1);
  list.add("json", json, "print JSON");
}

std::vector<std::string> CheckpointOptions::problems(std::size_t count) const {
  if (folders.size() == count) return {};
  return {concat("--folders: ", folders.size(), " given; give ",
                 count == 1 ? "the folder of a checkpoint" : "two folders of checkpoints")};
}

void VerifyOptions::fields(FieldList& list) {
  list.section("verify");
  list.add(
      "layouts", layouts,
      "layouts to compare with one rank, separated by spaces; each of tokens, joined by commas "
      "or directly: tpN sp tpoverlap, ppN vppN groupN zbh1 zbv [STAGES], dpN zero1..zero3 "
      "instancesN gradoverlap paramoverlap, cpN p2p a2a allgather a2aNp2pN, epN etpN, dpouter; "
      "STAGES are those of --pipeline-model-parallel-layout: pp3[Ett|ttm|L]");
  list.add("all", all, "every layout of so many ranks that the model allows; 0: those of --layouts")
      .min(0)
      .limit(64);
  list.add("steps", steps, "training steps to compare").min(1).limit(1000);
  list.add("full-size", full_size,
           "the configuration as it is; otherwise a small model of its kind");
  list.add("f64", f64, "compare in f64, also where the configuration says --bf16 or --fp16");
  list.add("fp32", fp32,
           "compare in f32; the default is f64, with --bf16 or --fp16 that, with FP8 alone f32");
  list.add("tolerance", tolerance,
           "allowed difference of a gradient, relative to the tensor's largest; 0: by precision")
      .min(0);
}

void ScheduleOptions::fields(FieldList& list) {
  list.section("schedule");
  list.add("plot", plot, "draw the schedule in the terminal instead of printing CSV");
}

void PlanScheduleOptions::fields(FieldList& list) {
  list.section("plan schedule");
  list.add("micro-batches", micro_batches, "micro-batches of an iteration").min(1).limit(1 << 16);
  list.add("num-layers", num_layers, "layers of the model")
      .min(0)
      .limit(1 << 20)
      .defaults_to("one for each stage, or those of the layout");
  const char* time = "time of a micro-batch on a stage";
  list.add("forward-time", forward_time, time).above(0).limit(1e6);
  list.add("backward-input-time", backward_input_time, time).above(0).limit(1e6);
  list.add("backward-weight-time", backward_weight_time, time).above(0).limit(1e6);
  list.add("svg", svg, "also draw it into this SVG file");
}

void DataSamplesOptions::fields(FieldList& list) {
  list.section("data samples");
  list.add("sizes", sizes,
           "samples of training, validation and test; none: one epoch, or all of a blend");
  list.add("dump", dump, "samples to print of each split").min(0);
  list.add("output", output, "JSON file to write").defaults_to("standard output");
  list.add("vocab-size", vocab_size, "tokens at or above are refused; 0: any")
      .min(0)
      .limit(2147483648.0);
  list.add("add-extra-token-to-sequence", add_extra_token_to_sequence,
           "a sample reads one token more, the label of its last");
  list.add("drop-last-partial-validation-sequence", drop_last_partial_validation_sequence,
           "leave out a last validation sample that is too short; else it is padded");
  list.add("fim-one-stream", fim_one_stream,
           "--fim-data draws on from sample to sample, as Megatron read in order; training gives "
           "each sample its own draws");
}

void DataInfoOptions::fields(FieldList& list) {
  list.section("data info");
  list.add("data-path", data_path, "prefixes of .bin and .idx files");
  list.add("json", json, "print JSON");
}

std::vector<std::string> DataInfoOptions::problems() const {
  std::vector<std::string> out;
  if (data_path.empty()) out.push_back("--data-path: is missing; give prefixes of token files");
  return out;
}

void DataShowOptions::fields(FieldList& list) {
  list.section("data show");
  list.add("data-path", data_path, "prefix of the .bin and .idx files");
  list.add("document", document, "first document to show, counted from 0").min(0);
  list.add("count", count, "documents to show").min(1);
  list.add("tokenizer", tokenizer, "folder of the tokenizer, to show the text");
  list.add("json", json, "print one JSON line for each document");
}

std::vector<std::string> DataShowOptions::problems() const {
  std::vector<std::string> out;
  need(data_path, "--data-path", "the prefix of token files", out);
  return out;
}

void DataMergeOptions::fields(FieldList& list) {
  list.section("data merge");
  list.add("input", input, "prefixes of .bin and .idx files; a folder: all in it, by name");
  list.add("output-prefix", output_prefix, "prefix of the files to write");
}

std::vector<std::string> DataMergeOptions::problems() const {
  std::vector<std::string> out;
  if (input.empty()) out.push_back("--input: is missing; give prefixes of token files");
  need(output_prefix, "--output-prefix", "the prefix of the files to write", out);
  if (std::ranges::find(input, output_prefix) != input.end()) {
    out.push_back(concat("--output-prefix: ", output_prefix, " is read too; give another"));
  }
  return out;
}

void TokenizerTrainOptions::fields(FieldList& list) {
  list.section("tokenizer train");
  list.add("input", input,
           "files, patterns in quotes ('*.jsonl.gz') or folders: JSON lines (.jsonl, .json, "
           ".ndjson), all others are text; also compressed (.gz, .zst)");
  list.add("json-keys", json_keys, "keys of the texts in a JSON line, each a document");
  text.fields(list);
  list.add("output", output, "folder for tokenizer.json and tokenizer_config.json");
  list.add("vocab-size", vocab_size, "tokens: special ones, 256 bytes, and merges for the rest")
      .min(256)
      .limit(1 << 24);
  list.add("pattern", pattern,
           "how text is cut into words before merging: llama3, gpt2, cl100k, o200k, qwen2 or a "
           "regular expression");
  list.add("special-tokens", special_tokens,
           "tokens that are never cut nor merged, ids 0 and up; the first ends documents");
  list.add("min-frequency", min_frequency, "a pair that comes less often is not merged").min(1);
  list.add("workers", workers, "threads that count words; 0: all cores").min(0).limit(1024);
  list.add("max-memory", max_memory,
           "GiB for words, about; beyond it the rarest are dropped, with a warning")
      .above(0)
      .limit(1 << 20);
}

std::vector<std::string> TokenizerTrainOptions::problems() const {
  std::vector<std::string> out;
  if (input.empty()) out.push_back("--input: is missing; give text files or folders");
  need(output, "--output", "the folder to write", out);
  if (json_keys.empty()) out.push_back("--json-keys: is empty; give the name of a member");
  if (special_tokens.empty()) {
    out.push_back("--special-tokens: is empty; give at least the token that ends documents");
  }
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    const std::string& token = special_tokens[i];
    auto first = std::ranges::find(special_tokens, token);
    if (token.empty()) out.push_back("--special-tokens: one of them is empty");
    if (first - special_tokens.begin() != static_cast<std::ptrdiff_t>(i)) {
      out.push_back(concat("--special-tokens: ", token, " is given twice"));
    }
  }
  const auto least = static_cast<std::int64_t>(256 + special_tokens.size());
  if (vocab_size < least) {
    out.push_back(concat("--vocab-size: ", vocab_size, " is too small; 256 bytes and ",
                         special_tokens.size(), " special tokens need ", least));
  }
  return out;
}

void TokenizeOptions::fields(FieldList& list) {
  list.section("tokenize");
  list.add("tokenizer", tokenizer,
           "tokenizer.json, tokenizer.model, vocab.txt, a rank file (FILE:cl100k_base) or a folder "
           "with one of them; byte; null:SIZE");
  list.add("text", text, "text to encode; its ids go to stdout");
  list.add("input", input, "JSON array of texts; with --decode of arrays of ids");
  list.add("output", output, "JSON file for the ids, or for the texts").defaults_to("stdout");
  list.add("chat", chat,
           "JSON file with messages, a list of conversations or {\"messages\": [...]}: their text, "
           "ids and, where the template marks it, the assistant's tokens");
  list.add("chat-template", chat_template,
           "file with a chat template, or the name of one of several")
      .defaults_to("the tokenizer's");
  list.add("add-generation-prompt", add_generation_prompt, "end where the assistant is to speak");
  list.add("tools", tools, "JSON file with the list of tools for the template");
  list.add("documents", documents, "JSON file with the list of documents for the template");
  list.add("template-kwargs", template_kwargs,
           "JSON object with more variables of the template, as in {\"enable_thinking\": false}");
  list.add("decode", decode, "from ids to text");
  list.add("add-special-tokens", add_special_tokens,
           "add what the model expects around a text, such as <s> or [CLS]");
  list.add("skip-special-tokens", skip_special_tokens, "leave special tokens out of decoded text");
  list.add("threads", threads, "threads; 0: all cores").min(0).limit(1024);
}

std::vector<std::string> TokenizeOptions::problems() const {
  std::vector<std::string> out;
  need(tokenizer, "--tokenizer", "a file, a folder or a name", out);
  int given = !text.empty() + !input.empty() + !chat.empty();
  if (given == 0) out.push_back("--text: is missing; give it, --input or --chat");
  if (given > 1) out.push_back("--text: only one of --text, --input and --chat can be given");
  bool for_chat = !chat_template.empty() || add_generation_prompt || !tools.empty() ||
                  !documents.empty() || !template_kwargs.empty();
  if (for_chat && chat.empty()) {
    out.push_back(
        "--chat: is missing; the template's flags (--chat-template, --add-generation-prompt, "
        "--tools, --documents, --template-kwargs) are for it");
  }
  if (decode && !chat.empty()) out.push_back("--decode: excludes --chat");
  if (add_special_tokens && !chat.empty()) {
    out.push_back("--add-special-tokens: excludes --chat, whose template writes them");
  }
  if (decode && !text.empty()) out.push_back("--decode: needs --input with ids");
  if (decode && add_special_tokens) out.push_back("--add-special-tokens: excludes --decode");
  return out;
}

}  // namespace bev
