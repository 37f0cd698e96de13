#include "bridge/weight_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// Explains why a folder has no readable weights.
[[noreturn]] void fail_no_weights(const std::string& folder) {
  std::vector<std::string> loose;
  for (const std::string& name : list_directory(folder)) {
    if (name.starts_with("pytorch_model") || name.ends_with(".bin") || name.ends_with(".pt") ||
        name.ends_with(".pth") || name.ends_with(".h5") || name.ends_with(".msgpack")) {
      BEV_FAIL(ErrorKind::kInput, folder, ": the weights are in ", name,
               ", which is not read: convert to safetensors first");
    }
    if (name.ends_with(".safetensors")) loose.push_back(name);
  }
  if (!loose.empty()) {
    BEV_FAIL(ErrorKind::kInput, folder, ": has ", loose.front(), " but neither ", kSingleFile,
             " nor the index ", kIndexFile);
  }
  BEV_FAIL(ErrorKind::kInput, folder, ": no weights: neither ", kSingleFile, " nor ", kIndexFile);
}

// Tensor name to file name, sorted by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::string text = read_file(path);
  check_json(text, path, 8);
  const Json index = Json::parse(text);
  BEV_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
            ErrorKind::kInput, path, ": no object 'weight_map'");
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    BEV_CHECK(file.is_string(), ErrorKind::kInput, path, ": tensor ", quote(tensor),
              ": its file is not text");
    auto name = file.get<std::string>();
    BEV_CHECK(!name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos &&
                  name != "." && name != "..",
              ErrorKind::kInput, path, ": tensor ", quote(tensor), ": ", quote(name),
              " is not the name of a file in the folder");
    shard_of.emplace(tensor, std::move(name));
  }
  BEV_CHECK(!shard_of.empty(), ErrorKind::kInput, path, ": 'weight_map' is empty");
  return shard_of;
}

// "a, b, c and 4 more"
std::string list_text(std::span<const std::string> names) {
  constexpr std::size_t kShown = 5;
  std::string text = join(names.first(std::min(kShown, names.size())), ", ");
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
  return text;
}

[[noreturn]] void fail_io(std::string_view what, const std::string& path, int error) {
  BEV_FAIL(ErrorKind::kIo, what, " ", path, ": ", std::strerror(error));
}

// Absolute path without a trailing slash, with links resolved as far as it exists, so that the
// temporary folder has the same parent as the target.
std::string resolve(const std::string& folder) {
  BEV_CHECK(!folder.empty(), ErrorKind::kConfig, "export folder: the path is empty");
  std::error_code error;
  fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) fail_io("cannot resolve", folder, error.value());
  if (!path.has_filename()) path = path.parent_path();
  BEV_CHECK(path.has_filename(), ErrorKind::kConfig, "export folder: ", folder,
            " cannot be replaced");
  return path.string();
}

void remove_quietly(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}
}  // namespace

WeightFiles::WeightFiles(const std::string& folder, const std::string& file) : folder_(folder) {
  open_single(join_path(folder, file));
}

void WeightFiles::open_single(const std::string& path) {
  shards_.emplace_back(path);
  for (const StoredTensor& tensor : shards_[0].tensors()) names_.push_back(tensor.name);
  shard_of_.assign(names_.size(), 0);
}

WeightFiles::WeightFiles(const std::string& folder) : folder_(folder) {
  BEV_CHECK(path_exists(folder), ErrorKind::kInput, folder, ": no such folder");
  BEV_CHECK(is_directory(folder), ErrorKind::kInput, folder,
            ": not a folder; give the folder that holds ", "config.json and the weights");
  if (std::string single = join_path(folder, kSingleFile); path_exists(single)) {
    open_single(single);
    return;
  }
  std::string index_path = join_path(folder, kIndexFile);
  if (!path_exists(index_path)) fail_no_weights(folder);
  std::map<std::string, std::string> index = read_index(index_path);

  std::map<std::string, std::uint32_t> number_of;  // file name to shard index
  for (const auto& [tensor, file] : index) number_of.emplace(file, 0);
  std::vector<std::string> missing;
  for (const auto& [file, number] : number_of) {
    if (!path_exists(join_path(folder, file))) missing.push_back(file);
  }
  BEV_CHECK(missing.empty(), ErrorKind::kInput, folder, ": ", missing.size(), " of ",
            number_of.size(), " shards missing: ", list_text(missing));
  for (auto& [file, number] : number_of) {
    number = static_cast<std::uint32_t>(shards_.size());
    shards_.emplace_back(join_path(folder, file));
  }
  for (const auto& [tensor, file] : index) {
    std::uint32_t shard = number_of[file];
    if (shards_[shard].find(tensor) == nullptr) {
      missing.push_back(concat(quote(tensor), " (", file, ")"));
    }
    names_.push_back(tensor);
    shard_of_.push_back(shard);
  }
  BEV_CHECK(missing.empty(), ErrorKind::kInput, index_path, ": ", missing.size(),
            " tensors are not in their shard: ", list_text(missing));
}

void check_stored_shape(const StoredTensor& stored, const Shape& shape) {
  std::string found;
  for (std::int64_t dim : stored.shape) found += concat(found.empty() ? "" : ", ", dim);
  BEV_CHECK(std::ranges::equal(stored.shape, shape.dims()), ErrorKind::kInput, stored.name,
            " has shape [", found, "], config.json asks for ", shape);
}

std::size_t WeightFiles::position(std::string_view name) const {
  auto found = std::lower_bound(names_.begin(), names_.end(), name);
  bool here = found != names_.end() && *found == name;
  return here ? static_cast<std::size_t>(found - names_.begin()) : names_.size();
}

const StoredTensor* WeightFiles::find(std::string_view name) const {
  std::size_t at = position(name);
  return at == names_.size() ? nullptr : shards_[shard_of_[at]].find(name);
}

TensorBytes WeightFiles::tensor(std::string_view name) const {
  std::size_t at = position(name);
  if (at == names_.size()) {
    std::string near = nearest_name(name, names_);
    BEV_FAIL(ErrorKind::kInput, folder_, ": no tensor ", quote(name), " among ", names_.size(),
             near.empty() ? "" : concat("; the nearest is ", quote(near)));
  }
  return shards_[shard_of_[at]].tensor(name);
}

std::span<const std::string_view> companion_names() {
  static constexpr std::array<std::string_view, 11> kNames = {"tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "special_tokens_map.json",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "vocab.txt",
                                                              "tokenizer.model",
                                                              "added_tokens.json",
                                                              "generation_config.json",
                                                              "chat_template.jinja",
                                                              "chat_template.json"};
  return kNames;
}

namespace {
// Files that our exports and Hugging Face's consist of.
bool is_export_file(std::string_view name) {
  bool weights = name.starts_with("model") &&
                 (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
  std::span<const std::string_view> known = companion_names();
  return weights || name == "config.json" ||
         std::find(known.begin(), known.end(), name) != known.end();
}

bool is_template_folder(const std::string& path) {
  if (!is_directory(path) || !path.ends_with(kMoreTemplates)) return false;
  std::vector<std::string> names = list_directory(path);
  return std::ranges::all_of(names,
                             [](const std::string& name) { return name.ends_with(".jinja"); });
}
}  // namespace

void check_export_folder(const std::string& folder) {
  std::string path = resolve(folder);
  // Tests by creation whether the parent folder is writable.
  make_directories(parent_path(path));
  std::string trial = concat(path, ".try-", ::getpid());
  make_directories(trial);
  remove_quietly(trial);
  if (!path_exists(path)) return;
  BEV_CHECK(is_directory(path), ErrorKind::kConfig, "export folder: ", folder,
            " exists and is not a folder");
  std::vector<std::string> names = list_directory(path);
  if (names.empty()) return;
  BEV_CHECK(std::binary_search(names.begin(), names.end(), "config.json"), ErrorKind::kConfig,
            "export folder: ", folder, " holds other files (", list_text(names),
            ") and no config.json; give a new or empty folder");
  for (const std::string& name : names) {
    std::string inside = join_path(path, name);
    bool exported = is_directory(inside) ? is_template_folder(inside) : is_export_file(name);
    BEV_CHECK(exported, ErrorKind::kConfig, "export folder: ", folder, " holds ", name,
              ", which an export would remove; move it or give a new folder");
  }
}

WeightFilesWriter::WeightFilesWriter(const std::string& folder, std::vector<TensorSpec> tensors,
                                     std::size_t max_shard_bytes)
    : folder_(resolve(folder)), tensors_(std::move(tensors)) {
  check_export_folder(folder);
  BEV_CHECK(!tensors_.empty(), ErrorKind::kInternal, folder, ": no tensors to write");
  BEV_CHECK(max_shard_bytes > 0, ErrorKind::kConfig, "shard size: must be above 0 bytes");
  sort_for_alignment(tensors_);
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors_) {
    BEV_CHECK(names.insert(tensor.name).second, ErrorKind::kInternal, folder, ": tensor ",
              quote(tensor.name), " declared twice");
  }
  std::size_t shard_bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    std::size_t bytes = tensors_[i].bytes();
    bool first = shard_ends_.empty() ? i == 0 : shard_ends_.back() == i;
    if (!first && bytes > max_shard_bytes - std::min(max_shard_bytes, shard_bytes)) {
      shard_ends_.push_back(i);
      shard_bytes = 0;
    }
    shard_bytes += bytes;
  }
  shard_ends_.push_back(tensors_.size());

  make_directories(parent_path(folder_));
  std::string temporary = concat(folder_, ".tmp-", ::getpid());
  remove_quietly(temporary);  // left by a dead process with the same pid
  make_directories(temporary);
  temporary_ = temporary;
  try {
    open_next_shard();
    finish_complete_shards();
  } catch (...) {
    remove_quietly(temporary_);
    throw;
  }
}

WeightFilesWriter::~WeightFilesWriter() {
  shard_.reset();
  if (!temporary_.empty()) remove_quietly(temporary_);
}

std::string WeightFilesWriter::shard_name(std::size_t shard) const {
  if (shard_ends_.size() == 1) return kSingleFile;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1,
                shard_ends_.size());
  return name;
}

void WeightFilesWriter::open_next_shard() {
  auto begin = tensors_.begin() +
               static_cast<std::ptrdiff_t>(next_shard_ == 0 ? 0 : shard_ends_[next_shard_ - 1]);
  auto end = tensors_.begin() + static_cast<std::ptrdiff_t>(shard_ends_[next_shard_]);
  shard_ = std::make_unique<SafetensorsWriter>(join_path(temporary_, shard_name(next_shard_)),
                                               std::vector<TensorSpec>(begin, end));
  ++next_shard_;
}

void WeightFilesWriter::finish_complete_shards() {
  while (shard_ != nullptr && shard_->complete()) {
    shard_->commit();
    shard_.reset();
    if (next_shard_ < shard_ends_.size()) open_next_shard();
  }
}

void WeightFilesWriter::write(std::string_view name, std::span<const std::byte> data) {
  if (data.empty()) return;
  BEV_CHECK(shard_ != nullptr, ErrorKind::kInternal, folder_, ": tensor ", quote(name),
            " written when all data was complete");
  shard_->write(name, data);
  finish_complete_shards();
}

void WeightFilesWriter::write_text(std::string_view name, std::string_view content) {
  BEV_CHECK(!temporary_.empty(), ErrorKind::kInternal, folder_, ": committed before ", name);
  std::string path = join_path(temporary_, name);
  make_directories(parent_path(path));
  write_file(path, content);
}

void WeightFilesWriter::write_index() {
  if (shard_ends_.size() == 1) return;
  Json index;
  std::size_t total_bytes = 0;
  for (std::size_t i = 0, shard = 0; i < tensors_.size(); ++i) {
    while (i >= shard_ends_[shard]) ++shard;
    index["weight_map"][tensors_[i].name] = shard_name(shard);
    total_bytes += tensors_[i].bytes();
  }
  index["metadata"]["total_size"] = total_bytes;
  write_text(kIndexFile, index.dump(2) + "\n");
}

void WeightFilesWriter::commit() {
  BEV_CHECK(!temporary_.empty(), ErrorKind::kInternal, folder_, ": committed twice");
  BEV_CHECK(shard_ == nullptr, ErrorKind::kInternal, folder_, ": committed before all tensors were",
            " written");
  write_index();
  sync_folder(temporary_);
  replace_target();
  sync_folder(parent_path(folder_));
}

// A reader sees the old folder or the new one. If the file system does not support RENAME_EXCHANGE,
// there is a moment with neither, and the old one is restored if the second rename fails.
void WeightFilesWriter::replace_target() {
  check_export_folder(folder_);                              // files may have been added meanwhile
  if (::rename(temporary_.c_str(), folder_.c_str()) == 0) {  // absent or empty
    temporary_.clear();
    return;
  }
  if (errno != EEXIST && errno != ENOTEMPTY) fail_io("cannot create", folder_, errno);
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) != 0) {
    std::string old = concat(folder_, ".old-", ::getpid());
    if (::rename(folder_.c_str(), old.c_str()) != 0) fail_io("cannot replace", folder_, errno);
    if (::rename(temporary_.c_str(), folder_.c_str()) != 0) {
      int error = errno;
      ::rename(old.c_str(), folder_.c_str());
      fail_io("cannot create", folder_, error);
    }
    temporary_ = old;
  }
  remove_quietly(temporary_);  // the old export
  temporary_.clear();
}

}  // namespace bev
