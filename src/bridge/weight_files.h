// Weights of a Hugging Face folder: model.safetensors, or shards with model.safetensors.index.json.
// Reading maps the files; writing streams them to a temporary folder that is renamed when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/safetensors.h"

namespace bev {

// All shards of a folder, memory-mapped and checked; throws Error(kInput) naming every missing
// shard and tensor.
class WeightFiles {
 public:
  explicit WeightFiles(const std::string& folder);
  // A single file of the folder.
  WeightFiles(const std::string& folder, const std::string& file);

  const std::string& folder() const { return folder_; }
  // Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Header entry, also for unsupported dtypes; nullptr if there is none.
  const StoredTensor* find(std::string_view name) const;
  // Throws Error(kInput) if there is none (suggesting the nearest name), or it is not readable.
  TensorBytes tensor(std::string_view name) const;

 private:
  std::size_t position(std::string_view name) const;
  void open_single(const std::string& path);

  std::string folder_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::string> names_;
  std::vector<std::uint32_t> shard_of_;  // index-aligned with names_
};

// Throws Error(kInput) with both shapes unless the tensor has this one, which config.json implies.
void check_stored_shape(const StoredTensor& stored, const Shape& shape);

// Hugging Face's default of 5 GB (decimal).
inline constexpr std::size_t kDefaultShardBytes = 5'000'000'000;

// Files that may accompany the weights: tokenizer, generation settings, chat template.
std::span<const std::string_view> companion_names();
// Folder of the chat templates other than the default, NAME.jinja each.
inline constexpr const char* kMoreTemplates = "additional_chat_templates";

// Throws Error(kConfig) unless an export to `folder` is possible: it is absent, empty, or contains
// only an earlier export. Call it before a long run; WeightFilesWriter calls it too.
void check_export_folder(const std::string& folder);

// Writes a model folder. Everything goes to `<folder>.tmp-<pid>`; commit() renames it to `folder`,
// and without commit() it is removed. Holds no tensor data.
class WeightFilesWriter {
 public:
  WeightFilesWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                    std::size_t max_shard_bytes = kDefaultShardBytes);
  ~WeightFilesWriter();
  WeightFilesWriter(const WeightFilesWriter&) = delete;
  WeightFilesWriter& operator=(const WeightFilesWriter&) = delete;

  // In writing order: as given, except that larger element types come first.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Writes all or the next part of the current tensor.
  void write(std::string_view name, std::span<const std::byte> data);
  // Writes a further file (config.json, tokenizer.json, ...).
  void write_text(std::string_view name, std::string_view content);
  void commit();

 private:
  std::string shard_name(std::size_t shard) const;
  void open_next_shard();
  void finish_complete_shards();
  void write_index();
  void replace_target();

  std::string folder_;     // resolved, without a trailing slash
  std::string temporary_;  // "" after commit()
  std::vector<TensorSpec> tensors_;
  std::vector<std::size_t> shard_ends_;  // shard i holds tensors [ends[i - 1], ends[i])
  std::size_t next_shard_ = 0;
  std::unique_ptr<SafetensorsWriter> shard_;
};

}  // namespace bev
