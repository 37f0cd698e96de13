#include "tests/fuzz/seeds.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/cache_file.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checksum.h"
#include "checkpoint/manifest.h"
#include "data/indexed/array_file.h"
#include "data/indexed/indexed_dataset.h"
#include "tests/support/temp_folder.h"

namespace bev::test {

namespace {

constexpr std::string_view kGolden = BEV_SOURCE_DIR "/tests/golden";

template <class T>
void append(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

// A safetensors file of these parts.
std::string with_length(std::string_view header, std::string_view data) {
  std::string file;
  append(file, static_cast<std::uint64_t>(header.size()));
  return file.append(header).append(data);
}

}  // namespace

std::string golden(std::string_view name) { return read_file(concat(kGolden, "/", name)); }

std::vector<std::string> golden_configs() {
  std::vector<std::string> files;
  for (const std::string& model : list_directory(concat(kGolden, "/models"))) {
    files.push_back(golden(concat("models/", model, "/config.json")));
  }
  return files;
}

std::vector<std::string> golden_templates() {
  std::vector<std::string> files;
  for (const std::string& name : list_directory(concat(kGolden, "/chat/templates"))) {
    files.push_back(golden(concat("chat/templates/", name)));
  }
  return files;
}

std::string small_safetensors() {
  return with_length(
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"__metadata__":{"format":"pt"}})",
      std::string(22, '\2'));
}

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

std::string small_array_file() {
  TempFolder folder;
  const ArrayFile::Shape shape{1, sizeof(std::int32_t)};
  ArrayFile arrays({&shape, 1});
  arrays.fill<std::int32_t>(0)[0] = 7;
  arrays.save(folder.path("order.bin"), kArrayKey);
  return read_file(folder.path("order.bin"));
}

std::string small_cache() {
  return CacheFile::format({{"gemm 4 5 6", "algorithm 3"}, {"gemm 7 8 9", "algorithm 1"}});
}

std::string small_shard() {
  return with_length(
      R"({"w[0:1,0:2]":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"w[1:2,0:2]":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})",
      std::string(16, '\1'));
}

std::string small_manifest(std::string_view shard) {
  Manifest manifest;
  manifest.program_version = "1";
  manifest.config = {{"model", "num-layers", "2"}};
  manifest.tensors["w"] = {Dtype::kF32, {2, 2}};
  ShardEntry entry{"shard_00000.safetensors", shard.size(), {}, {"w[0:1,0:2]", "w[1:2,0:2]"}};
  for (std::size_t at = 0; at < shard.size(); at += kBlockBytes) {
    entry.checksums.push_back(checksum(std::as_bytes(std::span(shard.substr(at, kBlockBytes)))));
  }
  manifest.shards.push_back(entry);
  return manifest_json(manifest);
}

}  // namespace bev::test
