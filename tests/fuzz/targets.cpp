#include "tests/fuzz/targets.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "app/run_record.h"
#include "app/yaml_file.h"
#include "base/cache_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "bridge/torch/torch_archive.h"
#include "bridge/weight_files.h"
#include "chat/chat_template.h"
#include "chat/jinja/template.h"
#include "chat/jinja/value_text.h"
#include "checkpoint/megatron/distributed_files.h"
#include "checkpoint/reader.h"
#include "checkpoint/step_folders.h"
#include "data/batch_file.h"
#include "data/indexed/array_file.h"
#include "data/indexed/indexed_dataset.h"
#include "data/preprocess/json_record.h"
#include "data/preprocess/text_source.h"
#include "data/sft/sft_rows.h"
#include "data/token_file.h"
#include "models/config.h"
#include "models/families/family.h"
#include "models/families/hf_config.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/archives.h"
#include "tokenizer/tokenizer.h"
#include "train/metrics_file.h"

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
  const std::string& folder() const { return folder_.native(); }
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

jinja::Value two_messages() {
  return jinja::parse_json(
      R"([{"role":"user","content":"Hi <there>"},{"role":"assistant","content":"Oh"}])",
      "messages");
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

bool weight_index(std::string_view bytes) {
  Scratch scratch;
  scratch.write("model.safetensors.index.json", bytes);
  scratch.write("a.safetensors", small_safetensors());
  return takes([&] {
    WeightFiles files(scratch.folder());
    for (const std::string& name : files.names()) files.tensor(name);
  });
}

bool config_json(std::string_view bytes) {
  return takes([&] { to_hf(from_hf(HfConfig::parse(bytes)), Dtype::kBf16).dump(); });
}

bool yaml(std::string_view bytes) {
  Scratch scratch;
  return read_yaml(scratch.write("run.yaml", bytes), {"model", "train"}).problems.empty();
}

void use_tokenizer(const std::string& path) {
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(path);
  tokenizer->decode(
      tokenizer->encode("Hello  w\xc3\xb6rld, it's 12345 \xe4\xb8\xad\xe6\x96\x87\n\t<s>\xff"));
}
bool tokenizer_file(const char* name, std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write(name, bytes);
  return takes([&] { use_tokenizer(path); });
}
bool tokenizer_json(std::string_view bytes) { return tokenizer_file("tokenizer.json", bytes); }
bool sentencepiece(std::string_view bytes) { return tokenizer_file("tokenizer.model", bytes); }
bool tiktoken(std::string_view bytes) { return tokenizer_file("ranks.tiktoken", bytes); }
bool tekken(std::string_view bytes) { return tokenizer_file("tekken.json", bytes); }
bool bert_vocabulary(std::string_view bytes) { return tokenizer_file("vocab.txt", bytes); }

bool merges(std::string_view bytes) {
  static const std::string vocabulary = golden("tokenizers/gpt2_files/vocab.json");
  Scratch scratch;
  scratch.write("vocab.json", vocabulary);
  scratch.write("merges.txt", bytes);
  return takes([&] { use_tokenizer(scratch.folder()); });
}

bool tokenizer_config(std::string_view bytes) {
  static const std::string tokenizer = golden("tokenizers/llama2_legacy.json");
  Scratch scratch;
  scratch.write("tokenizer.json", tokenizer);
  scratch.write("tokenizer_config.json", bytes);
  return takes([&] {
    use_tokenizer(scratch.folder());
    ChatTemplate::load(scratch.folder(), "", false).render(two_messages(), {});
  });
}

bool chat_template(std::string_view bytes) {
  return takes([&] {
    jinja::Dict special_tokens;
    special_tokens.set("bos_token", "<s>");
    special_tokens.set("eos_token", "</s>");
    ChatOptions options;
    options.add_generation_prompt = true;
    options.tools = jinja::parse_json(
        R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"number","description":"y"}}}}}])",
        "tools");
    ChatTemplate(jinja::Template(bytes, "template"), special_tokens)
        .render(two_messages(), options);
  });
}

bool sft_row(std::string_view bytes) {
  return takes([&] { read_sft_row(bytes, "row 1"); });
}

bool json_record(std::string_view bytes) {
  static const std::vector<std::string> keys = {"text", "title"};
  return takes([&] { read_json_record(bytes, keys); });
}

// Records of a file, read in parts.
bool records(const std::string& path, const TextOptions& options) {
  // A few bytes can claim any number of rows without a value.
  constexpr int kMostRecords = 10'000;
  std::vector<std::string> paths = {path};
  return takes([&] {
    std::vector<InputFile> files = list_inputs(paths, options).files;
    for (const std::vector<FileRange>& part : cut_inputs(files, 3)) {
      TextSource source(files, part, options);
      Record record;
      for (int i = 0; i < kMostRecords && source.next(record); ++i) {
        BEV_CHECK(record.problem.empty(), ErrorKind::kInput, record.problem);
      }
    }
  });
}

// Lines or an array in a file, compressed or not.
bool text_lines(std::string_view bytes) {
  Scratch scratch;
  return records(scratch.write("text.jsonl", bytes), {.max_document_bytes = 1 << 16});
}

bool parquet(std::string_view bytes) {
  Scratch scratch;
  TextOptions options{.max_document_bytes = 1 << 16};
  options.json_keys = {"text", "id", "small", "score", "flag", "tags", "deep", "messages"};
  return records(scratch.write("rows.parquet", bytes), options);
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

bool array_file(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("order.bin", bytes);
  std::optional<ArrayFile> file = ArrayFile::load(path, kArrayKey);
  return file && file->array<std::int32_t>(0)[0] == 7;
}

bool cache_file(std::string_view bytes) { return CacheFile::parse(bytes).has_value(); }

bool token_batches(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("batches.json", bytes);
  bool batches = takes([&] { read_token_batches(path, 100); });
  bool rows = takes([&] { read_token_rows(path, 100); });
  return batches && rows;
}

bool batch_file(std::string_view bytes) {
  const std::vector<FieldId> kFields = {kInputIds, kLabels, kAttentionMask};
  Scratch scratch;
  std::string path = scratch.write("batch.json", bytes);
  bool batch = takes([&] { read_batch(path, {100, kFields}); });
  bool batches = takes([&] { read_batches(path, {100, kFields}); });
  return batch || batches;
}

bool metrics_file(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("metrics.jsonl", bytes);
  return takes([&] {
    MetricsFile file(path);
    for (const std::string& metric : file.metrics()) {
      for (PlotAxis axis : {PlotAxis::kIteration, PlotAxis::kTokens, PlotAxis::kTime}) {
        file.series(metric, axis);
      }
    }
  });
}

bool run_record(std::string_view bytes) {
  Scratch scratch;
  std::string path = scratch.write("run.json", bytes);
  return takes([&] { read_run_record(path); });
}

bool manifest(std::string_view bytes) {
  return takes([&] { manifest_json(parse_manifest(bytes, "manifest.json")); });
}

// With a manifest whose checksums are right, as of someone who means it.
bool shard(std::string_view bytes) {
  Scratch scratch;
  scratch.write(kManifestName, small_manifest(bytes));
  scratch.write("shard_00000.safetensors", bytes);
  return takes([&] {
    CheckpointReader reader(scratch.folder());
    std::vector<float> values(4);
    reader.read("w", whole_box({2, 2}), Dtype::kF32, values.data());
    reader.stored("w", {{1, 0}, {2, 2}});
    for (const std::string& problem : reader.verify()) BEV_FAIL(ErrorKind::kInput, problem);
  });
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

bool pickle(std::string_view bytes) {
  return takes([&] {
    Pickle read(as_bytes(bytes), "file");
    pickle_text(read.root());
    read.root().pairs();
  });
}

bool torch_archive(std::string_view bytes) {
  return takes([&] {
    TorchArchive archive(as_bytes(bytes), "file");
    for (const auto& [key, value] : archive.root().pairs()) {
      if (!TorchArchive::is_tensor(*value)) continue;
      TorchTensor tensor = archive.tensor(*value, pickle_text(*key));
      std::vector<std::byte> copy(tensor.bytes.begin(), tensor.bytes.end());  // all can be read
    }
  });
}

// A folder of torch.distributed.checkpoint, whose `.metadata` the bytes are.
bool distributed_metadata(std::string_view bytes) {
  static const std::string data = golden("megatron/small.distcp");
  Scratch scratch;
  scratch.write(kDistributedMetadata, bytes);
  scratch.write("__0_0.distcp", data);
  return takes([&] {
    DistributedFiles files(scratch.folder());
    for (const auto& [name, tensor] : files.tensors()) {
      for (const ForeignChunk& chunk : tensor.chunks) {
        Piece piece{chunk.box, chunk.box, 0, chunk.file, chunk.key};
        files.open(piece, name, tensor.dtype, chunk.box.numel());
      }
    }
    for (const std::string& problem : files.verify()) BEV_FAIL(ErrorKind::kInput, problem);
  });
}

bool tracker(std::string_view bytes) {
  Scratch scratch;
  scratch.write(kTrackerName, bytes);
  return takes([&] { latest_step(scratch.folder()); });
}

// What the templates of models have little of.
constexpr std::string_view kPlainTemplate =
    "{{ bos_token }}{% for m in messages %}{% if loop.first and m['role'] == 'user' %}[{{ "
    "m.content | trim | tojson }}]{% else %}{{ m['content'][::-1] ~ loop.index0 }}{% endif "
    "%}{% endfor %}{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{{ f(3) }}{% set ns = "
    "namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}";

constexpr std::string_view kLines =
    "{\"text\": \"one\"}\n\n{\"text\": \"two \\u00fc\"}\n{\"text\": \"\"}";

std::vector<std::string> template_seeds() {
  std::vector<std::string> seeds = golden_templates();
  seeds.emplace_back(kPlainTemplate);
  return seeds;
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> all = {
      {"safetensors", safetensors, {small_safetensors()}},
      {"weight_index",
       weight_index,
       {R"({"metadata":{"total_size":22},"weight_map":{"a":"a.safetensors","b":"a.safetensors"}})"}},
      {"config_json", config_json, golden_configs()},
      {"yaml",
       yaml,
       {"model:\n  num-layers: 2\n  list: [1, 2]\ntrain-iters: 5 # five\n\n",
        "model: &x {b: 1, c: 'd'}\ntrain: *x\n? e\n: \"f\\n\"\ng: |\n  h\ni: >-\n  j\n"}},
      {"tokenizer_json",
       tokenizer_json,
       {golden("tokenizers/gpt2.json"), golden("tokenizers/bert.json"),
        golden("tokenizers/unigram_ties.json"), golden("tokenizers/llama3.json"),
        golden("tokenizers/llama2_legacy.json"), golden("tokenizers/t5.json"),
        golden("tokenizers/odd_regex.json"), golden("tokenizers/splits.json")}},
      {"tokenizer_config",
       tokenizer_config,
       {R"({"tokenizer_class":"LlamaTokenizer","legacy":false,"add_bos_token":true,"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","chat_template":[{"name":"default","template":"{{ bos_token }}{{ messages[0].content }}"}],"added_tokens_decoder":{"0":{"content":"<unk>","special":true}}})"}},
      {"tekken", tekken, {golden("tokenizers/tekken.json")}},
      {"merges", merges, {golden("tokenizers/gpt2_files/merges.txt")}},
      {"bert_vocabulary", bert_vocabulary, {golden("tokenizers/bert_vocab/vocab.txt")}},
      {"sentencepiece",
       sentencepiece,
       {golden("tokenizers/sp_unigram.model"), golden("tokenizers/sp_bpe_plain.model")}},
      {"tiktoken", tiktoken, {golden("tokenizers/ranks.tiktoken")}},
      {"chat_template", chat_template, template_seeds()},
      {"sft_row",
       sft_row,
       {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"x":1}]}],"tools":[{"name":"f"}]})",
        R"({"system":"s","conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})",
        R"({"instruction":"a","input":"b","output":"c"})"}},
      {"json_record",
       json_record,
       {R"({"text":"a\u00e4\n\ud83d\ude00","other":[1e400,-0.5,{"x":null}],"title":["b","c"]})"}},
      {"text_lines",
       text_lines,
       {std::string(kLines), gzip(kLines), zstd(kLines),
        "\xef\xbb\xbf[{\"text\": \"a\\\"]\"},\n {\"text\": [\"b\", {}]}]\n"}},
      {"parquet",
       parquet,
       {golden("parquet/texts_snappy_v1.parquet"), golden("parquet/texts_zstd_v2.parquet"),
        golden("parquet/chats_gzip_plain.parquet"), golden("parquet/chats_none_pages.parquet"),
        golden("parquet/chats_plain_v2.parquet")}},
      {"token_index", token_index, {small_index()}},
      {"array_file", array_file, {small_array_file()}},
      {"cache_file", cache_file, {small_cache()}},
      {"manifest", manifest, {small_manifest(small_shard())}},
      {"shard", shard, {small_shard()}},
      {"pickle", pickle, {golden("megatron/small.metadata")}},
      {"torch_archive", torch_archive, {golden("megatron/small.pt")}},
      {"distributed_metadata", distributed_metadata, {golden("megatron/small.metadata")}},
      {"tracker", tracker, {"100\n"}},
      {"token_batches",
       token_batches,
       {R"({"batches":[[[1,2,3],[4]],[[5]]],"input_ids":[[1,2],[3]],"labels":[[1,-100],[3]]})"}},
      {"batch_file",
       batch_file,
       {R"({"input_ids":[[1,2,3],[3]],"labels":[[1,-100,5],[3]],"attention_mask":[[1,0,1],[1]]})",
        R"({"batches":[{"input_ids":[[1,2],[3]]},{"input_ids":[[7]],"attention_mask":[[1]]}]})"}},
      {"metrics_file",
       metrics_file,
       {R"({"iteration":1,"consumed_tokens":64,"loss":5.5,"lr":1e-3,"elapsed_ms":7,"nan":false}
{"iteration":1,"split":"valid","name":"a","loss":5.25,"perplexity":null}
)"}},
      {"run_record",
       run_record,
       {R"({"format":"bevatron-run","version":1,"folder":"/a","flags":{"text":["a","b"]}})"}},
  };
  return all;
}

const FuzzTarget& find_target(std::string_view name) {
  for (const FuzzTarget& target : fuzz_targets()) {
    if (target.name == name) return target;
  }
  BEV_FAIL(ErrorKind::kConfig, "no reader ", name);
}

}  // namespace bev::test
