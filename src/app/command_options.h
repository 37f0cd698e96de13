// The flags that only one command has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;

struct ScoreOptions {
  std::string hf_model;
  std::string tokens;
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
  std::string export_hf;
  std::string dtype;  // "": as it is; else a name that parse_dtype knows

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct ScheduleOptions {
  bool plot = false;

  void fields(FieldList& list);
};

}  // namespace bev
