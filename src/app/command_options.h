// The flags that only one command has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/text_source.h"

namespace bev {

class FieldList;

struct ScoreOptions {
  std::string hf_model;
  std::string tokens;
  std::string batch;
  std::string logits_out;
  std::string grads_out;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct GenerateOptions {
  std::string hf_model;
  std::string prompt;
  std::string prompt_tokens;
  std::int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;
  bool ignore_eos = false;
  bool json = false;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct ConvertOptions {
  std::string hf_model;
  std::string load;
  std::int64_t ckpt_step = -1;  // -1: the latest
  std::string export_hf;
  std::string save;   // folder for a checkpoint, of upcycled weights
  std::string dtype;  // "": as it is; else a name that parse_dtype knows
  bool moe_use_upcycling = false;
  std::int64_t moe_upcycling_granularity = 1;
  std::int64_t seed = 1234;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

// checkpoint verify, inspect and diff.
struct CheckpointOptions {
  std::vector<std::string> folders;
  std::int64_t ckpt_step = -1;  // -1: as the folder says
  bool json = false;

  void fields(FieldList& list);
  // `count`: folders that the command needs.
  std::vector<std::string> problems(std::size_t count) const;
};

struct VerifyOptions {
  std::string layouts = "tp2sp pp2 dp2zero1 dp2zero3";
  std::int64_t all = 0;  // every layout of so many ranks instead
  std::int64_t steps = 3;
  bool full_size = false;  // the configuration as it is, not scaled down
  bool f64 = false;        // instead of the configuration's
  bool fp32 = false;       // instead of f64
  double tolerance = 0.0;  // of gradients; 0: by precision

  void fields(FieldList& list);
};

struct ScheduleOptions {
  bool plot = false;

  void fields(FieldList& list);
};

struct PlanScheduleOptions {
  std::int64_t micro_batches = 8;
  std::int64_t num_layers = 0;  // 0: one for each stage, or those of the layout's text
  // Of a micro-batch on a stage.
  double forward_time = 1, backward_input_time = 1, backward_weight_time = 1;
  std::string svg;

  void fields(FieldList& list);
};

// What `data samples` has beside the flags of data.
struct DataSamplesOptions {
  std::vector<std::string> sizes;  // of training, validation and test; a number or "none"
  std::int64_t dump = 50;
  std::string output;
  std::int64_t vocab_size = 0;
  bool add_extra_token_to_sequence = true;
  bool drop_last_partial_validation_sequence = true;
  bool fim_one_stream = false;

  void fields(FieldList& list);
};

struct DataInfoOptions {
  std::vector<std::string> data_path;
  bool json = false;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct DataShowOptions {
  std::string data_path;
  std::int64_t document = 0;
  std::int64_t count = 1;
  std::string tokenizer;
  bool json = false;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct DataMergeOptions {
  std::vector<std::string> input;
  std::string output_prefix;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct TokenizerTrainOptions {
  std::vector<std::string> input;
  TextOptions text;
  std::vector<std::string> json_keys = {"text"};
  std::string output;
  std::int64_t vocab_size = 32000;
  std::string pattern = "llama3";
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first ends documents
  std::int64_t min_frequency = 1;
  std::int64_t workers = 0;  // 0: all cores
  double max_memory = 4.0;   // GiB

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct TokenizeOptions {
  std::string tokenizer;
  std::string text;
  std::string input;
  std::string output;
  std::string chat;  // a JSON file with conversations
  std::string chat_template;
  std::string tools;
  std::string documents;
  std::string template_kwargs;
  bool add_generation_prompt = false;
  bool decode = false;
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
  std::int64_t threads = 0;  // 0: all cores

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

}  // namespace bev
