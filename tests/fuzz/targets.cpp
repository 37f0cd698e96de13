#include "tests/fuzz/targets.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "app/yaml_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "bridge/token_file.h"
#include "chat/template.h"
#include "chat/value_text.h"
#include "data/indexed_dataset.h"
#include "models/config.h"
#include "models/family.h"
#include "models/hf_config.h"
#include "tokenizer/tokenizer.h"

namespace bev::test {

namespace {

// A folder of this process, in memory where there is such a place.
class Scratch {
 public:
  Scratch()
      : folder_((std::filesystem::exists("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                     : std::filesystem::temp_directory_path()) /
                concat("bevatron_fuzz_", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string write(const char* name, std::string_view bytes) const {
    std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::filesystem::path folder_;
};

template <class Body>
bool takes(const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInput && error.kind() != ErrorKind::kConfig) throw;
    return false;
  }
}

bool safetensors(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("model.safetensors", bytes);
  return takes([&] {
    SafetensorsFile file(path);
    for (const StoredTensor& stored : file.tensors()) {
      TensorBytes tensor = file.tensor(stored.name);
      std::vector<std::byte> copy(tensor.bytes.begin(), tensor.bytes.end());  // all can be read
    }
  });
}

bool config_json(std::string_view bytes) {
  return takes([&] { to_hf(from_hf(HfConfig::parse(bytes)), Dtype::kBf16).dump(); });
}

bool yaml(std::string_view bytes) {
  Scratch scratch;
  return read_yaml(scratch.write("run.yaml", bytes), {"model", "train"}).problems.empty();
}

bool tokenizer_file(const char* name, std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write(name, bytes);
  return takes([&] {
    std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(path);
    tokenizer->decode(
        tokenizer->encode("Hello  w\xc3\xb6rld, it's 12345 \xe4\xb8\xad\xe6\x96\x87\n\t<s>\xff"));
  });
}
bool tokenizer_json(std::string_view bytes) { return tokenizer_file("tokenizer.json", bytes); }
bool sentencepiece(std::string_view bytes) { return tokenizer_file("tokenizer.model", bytes); }
bool tiktoken(std::string_view bytes) { return tokenizer_file("ranks.tiktoken", bytes); }

bool chat_template(std::string_view bytes) {
  return takes([&] {
    jinja::Value given = jinja::parse_json(
        R"({"messages":[{"role":"user","content":"Hi <there>"},{"role":"assistant","content":"Oh"}],
            "add_generation_prompt":true,"bos_token":"<s>"})",
        "context");
    jinja::Template(bytes, "template").render(*given.dict());
  });
}

bool token_index(std::string_view bytes) {
  Scratch scratch;
  std::string prefix = scratch.write("tokens", "");
  scratch.write("tokens.idx", bytes);
  scratch.write("tokens.bin", std::string(32, '\1'));
  return takes([&] {
    IndexedDataset data(prefix);
    for (std::int64_t i = 0; i < data.num_sequences(); ++i) {
      auto length = static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]);
      std::vector<std::int32_t> tokens(length);
      data.read(i, 0, tokens);
    }
  });
}

bool token_batches(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("batches.json", bytes);
  bool batches = takes([&] { read_token_batches(path, 100); });
  bool rows = takes([&] { read_token_rows(path, 100); });
  return batches && rows;
}

template <class T>
void append(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

std::string golden(const char* name) {
  return read_file(concat(BEV_SOURCE_DIR "/tests/golden/", name));
}

std::string small_safetensors() {
  std::string header =
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"__metadata__":{"format":"pt"}})";
  std::string file;
  append(file, static_cast<std::uint64_t>(header.size()));
  return file + header + std::string(22, '\2');
}

// Two documents of sequences of 3, 5 and 8 tokens of 16 bits.
std::string small_index() {
  std::string file(kIndexMagic);
  append(file, kIndexVersion);
  append(file, std::uint8_t{8});
  append(file, std::uint64_t{3});
  append(file, std::uint64_t{3});
  for (std::int32_t length : {3, 5, 8}) append(file, length);
  for (std::int64_t offset : {0, 6, 16}) append(file, offset);
  for (std::int64_t first : {0, 2, 3}) append(file, first);
  return file;
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::array<FuzzTarget, 9> all = {{
      {"safetensors", safetensors, {small_safetensors()}},
      {"config_json",
       config_json,
       {R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"rope_theta":10000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32}})",
        R"({"model_type":"gpt2","n_embd":64,"n_layer":2,"n_head":4,"n_positions":64,"vocab_size":100,"activation_function":"gelu_new","layer_norm_epsilon":1e-5})"}},
      {"yaml", yaml, {"model:\n  num-layers: 2\n  list: [1, 2]\ntrain-iters: 5 # five\n\n"}},
      {"tokenizer_json",
       tokenizer_json,
       {golden("tokenizers/gpt2.json"), golden("tokenizers/bert.json"),
        golden("tokenizers/unigram_ties.json"), golden("tokenizers/llama3.json")}},
      {"sentencepiece",
       sentencepiece,
       {golden("tokenizers/sp_unigram.model"), golden("tokenizers/sp_bpe_plain.model")}},
      {"tiktoken", tiktoken, {golden("tokenizers/ranks.tiktoken")}},
      {"chat_template",
       chat_template,
       {"{{ bos_token }}{% for m in messages %}{% if loop.first and m['role'] == 'user' %}[{{ "
        "m.content | trim | tojson }}]{% else %}{{ m['content'][::-1] ~ loop.index0 }}{% endif "
        "%}{% endfor %}{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{{ f(3) }}{% set ns = "
        "namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}"}},
      {"token_index", token_index, {small_index()}},
      {"token_batches",
       token_batches,
       {R"({"batches":[[[1,2,3],[4]],[[5]]],"input_ids":[[1,2],[3]],"labels":[[1,-100],[3]]})"}},
  }};
  return all;
}

}  // namespace bev::test
