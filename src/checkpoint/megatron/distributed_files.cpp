#include "checkpoint/megatron/distributed_files.h"

#include <algorithm>
#include <charconv>
#include <mutex>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

// Files are mapped when they are first read.
struct DistributedFiles::Mappings {
  std::mutex mutex;
  std::vector<std::unique_ptr<MappedFile>> files;
};

namespace {

std::vector<std::int64_t> sizes_of(const PickleValue* value, const std::string& where) {
  std::vector<std::int64_t> sizes;
  BEV_CHECK(value != nullptr, ErrorKind::kInput, where, ": damaged: sizes are missing");
  for (const PickleValue* item : value->elements()) {
    std::optional<std::int64_t> size = item->as_int();
    BEV_CHECK(size && *size >= 0, ErrorKind::kInput, where, ": damaged: a size is no number");
    sizes.push_back(*size);
  }
  return sizes;
}

const PickleValue& member(const PickleValue& value, std::string_view name,
                          const std::string& where) {
  const PickleValue* found = value.find(name);
  BEV_CHECK(found != nullptr, ErrorKind::kInput, where, ": damaged: no ", quote(name));
  return *found;
}

// A global shape; throws if it is impossible.
Shape shape_of(const std::vector<std::int64_t>& sizes, const std::string& where) {
  BEV_CHECK(sizes.size() <= Shape::kMaxDims, ErrorKind::kInput, where, ": has ", sizes.size(),
            " dims; ", Shape::kMaxDims, " are read");
  std::int64_t numel = sizeof(double);
  for (std::int64_t size : sizes) {
    BEV_CHECK(!__builtin_mul_overflow(numel, size, &numel), ErrorKind::kInput, where,
              ": is impossibly large");
  }
  return Shape(sizes);
}

// The dtype of TensorProperties, whose state is (dtype, layout, ..).
std::string dtype_name(const PickleValue& tensor, const std::string& where) {
  const PickleValue& properties = member(tensor, "properties", where);
  const PickleValue* dtype = properties.find("dtype");
  if (dtype == nullptr && properties.state != nullptr && !properties.state->elements().empty()) {
    dtype = properties.state->elements()[0];
  }
  BEV_CHECK(dtype != nullptr && dtype->is(PickleKind::kGlobal), ErrorKind::kInput, where,
            ": damaged: has no dtype");
  return std::string(dtype->text.substr(dtype->text.rfind('.') + 1));
}

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata.";

bool is_tensor(const PickleValue& value) {
  return value.is(PickleKind::kObject) &&
         value.callable->text == concat(kMetadataModule, "TensorStorageMetadata");
}

}  // namespace

namespace {

// The parts of a tensor have no element in common.
bool are_disjoint(const ForeignTensor& tensor) {
  if (tensor.shape.ndim() == 0) return true;
  std::vector<const Box*> boxes;
  for (const ForeignChunk& chunk : tensor.chunks) boxes.push_back(&chunk.box);
  std::ranges::sort(boxes, {}, [](const Box* box) { return box->begin[0]; });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size() && boxes[j]->begin[0] < boxes[i]->end[0]; ++j) {
      if (intersection(*boxes[i], *boxes[j])) return false;
    }
  }
  return true;
}

}  // namespace

void check_chunks(const std::string& name, const ForeignTensor& tensor, const std::string& where) {
  std::int64_t elements = 0;
  for (const ForeignChunk& chunk : tensor.chunks) {
    bool inside =
        chunk.box.ndim() == tensor.shape.ndim() &&
        (chunk.box.numel() == 0 || intersection(chunk.box, whole_box(tensor.shape)) == chunk.box);
    BEV_CHECK(inside, ErrorKind::kInput, where, ": ", quote(name), " has a part ", chunk.box,
              " outside of ", tensor.shape);
    elements += chunk.box.numel();
  }
  BEV_CHECK(elements == tensor.shape.numel(), ErrorKind::kInput, where, ": ", quote(name),
            " is not whole: its parts have ", elements, " elements, ", tensor.shape, " has ",
            tensor.shape.numel());
  BEV_CHECK(are_disjoint(tensor), ErrorKind::kInput, where, ": ", quote(name),
            " has parts that overlap");
}

DistributedFiles::DistributedFiles(const std::string& folder)
    : folder_(folder), mappings_(std::make_shared<Mappings>()) {
  std::string path = join_path(folder, kDistributedMetadata);
  MappedFile file(path);
  Pickle pickle(file.bytes(), path);
  const PickleValue& root = pickle.root();
  for (const auto& [index, info] : member(root, "storage_data", path).pairs()) {
    add_place(*index, *info);
  }
  for (const auto& [key, value] : member(root, "state_dict_metadata", path).pairs()) {
    std::optional<std::string_view> name = key->as_text();
    BEV_CHECK(name, ErrorKind::kInput, path, ": damaged: a name is no text");
    if (is_tensor(*value)) {
      add_tensor(std::string(*name), *value);
      continue;
    }
    auto place = place_of_.find({std::string(*name), {}});
    BEV_CHECK(place != place_of_.end(), ErrorKind::kInput, path, ": ", quote(*name),
              " is stored nowhere");
    objects_[std::string(*name)] = place->second;
  }
  mappings_->files.resize(files_.size());
}

// MetadataIndex(fqn, offset, index) -> _StorageInfo(relative_path, offset, length).
void DistributedFiles::add_place(const PickleValue& index, const PickleValue& info) {
  std::string path = join_path(folder_, kDistributedMetadata);
  const PickleValue &name = member(index, "fqn", path), &file = member(info, "relative_path", path);
  const PickleValue* at = index.find("offset");  // objects have none
  std::int64_t begin = member(info, "offset", path).as_int().value_or(-1),
               bytes = member(info, "length", path).as_int().value_or(-1);
  bool good = name.is(PickleKind::kText) && file.is(PickleKind::kText) && begin >= 0 && bytes >= 0;
  BEV_CHECK(good, ErrorKind::kInput, path, ": damaged: the place of a tensor");
  const PickleValue* transforms = info.find("transform_descriptors");
  BEV_CHECK(transforms == nullptr || transforms->elements().empty(), ErrorKind::kInput, path, ": ",
            quote(name.text), " is stored compressed or encoded, which is not read");
  auto [known, added] = file_of_.try_emplace(std::string(file.text), files_.size());
  if (added) {
    bool plain = file.text.find('/') == std::string_view::npos && !file.text.starts_with('.');
    BEV_CHECK(plain, ErrorKind::kInput, path, ": names ", quote(file.text), ", no file in here");
    std::string data = join_path(folder_, file.text);
    BEV_CHECK(path_exists(data), ErrorKind::kInput, data, ": is missing, with ", quote(name.text),
              " in it: the checkpoint is not whole");
    files_.push_back({std::string(file.text), MappedFile(data).bytes().size()});
  }
  Place place{known->second, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(bytes),
              std::string(name.text)};
  std::uint64_t size = files_[place.file].bytes;
  BEV_CHECK(place.at <= size && place.bytes <= size - place.at, ErrorKind::kInput,
            join_path(folder_, file.text), ": is truncated: has ", size, " bytes, and ",
            quote(name.text), " ends at ", place.at + place.bytes);
  std::vector<std::int64_t> offset;
  if (at != nullptr && !at->is(PickleKind::kNone)) offset = sizes_of(at, path);
  place_of_[{place.name, std::move(offset)}] = places_.size();
  places_.push_back(std::move(place));
}

void DistributedFiles::add_tensor(const std::string& name, const PickleValue& tensor) {
  std::string path = join_path(folder_, kDistributedMetadata), where = concat(path, ": ", name);
  std::string type = dtype_name(tensor, where);
  std::optional<Dtype> dtype = torch_dtype(type);
  std::vector<std::int64_t> sizes = sizes_of(tensor.find("size"), where);
  if (!dtype || sizes.size() > Shape::kMaxDims) {
    unread_[name] = dtype ? concat(sizes.size(), " dims") : type;
    return;
  }
  ForeignTensor out{*dtype, shape_of(sizes, where), {}};
  for (const PickleValue* chunk : member(tensor, "chunks", where).elements()) {
    std::vector<std::int64_t> begin = sizes_of(chunk->find("offsets"), where),
                              count = sizes_of(chunk->find("sizes"), where);
    BEV_CHECK(begin.size() == sizes.size() && count.size() == sizes.size(), ErrorKind::kInput,
              where, ": damaged: a part of other dims");
    Box box{Shape(begin), Shape(begin)};
    for (int i = 0; i < box.ndim(); ++i) {
      std::int64_t end = 0;
      auto at = static_cast<std::size_t>(i);
      bool fits = !__builtin_add_overflow(begin[at], count[at], &end) && end <= sizes[at];
      BEV_CHECK(fits, ErrorKind::kInput, where, ": damaged: a part outside of the tensor");
      box.set(i, {begin[at], end});
    }
    if (box.numel() == 0) continue;
    auto place = place_of_.find({name, begin});
    if (place == place_of_.end() && begin.empty()) place = place_of_.find({name, {}});
    BEV_CHECK(place != place_of_.end(), ErrorKind::kInput, where, box, " is stored nowhere");
    out.chunks.push_back({box, 0, places_[place->second].file, concat(place->second)});
  }
  check_chunks(name, out, path);
  tensors_.emplace(name, std::move(out));
}

std::string DistributedFiles::where(const Place& place) const {
  return concat(join_path(folder_, files_[place.file].name), ": ", place.name);
}

std::span<const std::byte> DistributedFiles::mapped(const Place& place) {
  std::lock_guard lock(mappings_->mutex);
  std::unique_ptr<MappedFile>& file = mappings_->files[place.file];
  std::string path = join_path(folder_, files_[place.file].name);
  if (!file) file = std::make_unique<MappedFile>(path);
  BEV_CHECK(file->bytes().size() == files_[place.file].bytes, ErrorKind::kInput, path,
            ": changed while it was read");
  return file->bytes().subspan(place.at, place.bytes);
}

std::vector<std::string> DistributedFiles::objects() const {
  std::vector<std::string> names;
  for (const auto& entry : objects_) names.push_back(entry.first);
  return names;
}

std::unique_ptr<TorchArchive> DistributedFiles::object(const std::string& name) {
  auto found = objects_.find(name);
  if (found == objects_.end()) return nullptr;
  const Place& place = places_[found->second];
  return std::make_unique<TorchArchive>(mapped(place), where(place));
}

std::span<const std::byte> DistributedFiles::open(const Piece& piece, const std::string&,
                                                  Dtype dtype, std::int64_t elements) {
  std::size_t index = 0;
  std::from_chars(piece.key.data(), piece.key.data() + piece.key.size(), index);
  const Place& place = places_[index];
  TorchArchive archive(mapped(place), where(place));
  TorchTensor tensor = archive.tensor(archive.root(), place.name);
  bool fits = tensor.dtype == dtype &&
              tensor.bytes.size() >= static_cast<std::size_t>(elements) * size_of(dtype);
  BEV_CHECK(fits, ErrorKind::kInput, where(place), ": has ", tensor.bytes.size(), " bytes of ",
            name_of(tensor.dtype), ", the metadata say ", elements, " elements of ",
            name_of(dtype));
  return tensor.bytes;
}

std::vector<std::string> DistributedFiles::verify() {
  std::vector<std::string> problems;
  for (const Place& place : places_) {
    try {
      TorchArchive archive(mapped(place), where(place));
      for (const auto& [name, entry] : archive.zip().entries()) {
        if (intact(entry)) continue;
        problems.push_back(concat(where(place), ": corrupt: does not have its checksum"));
      }
    } catch (const Error& error) {
      problems.push_back(error.what());
    }
  }
  return problems;
}

}  // namespace bev
