#include "checkpoint/reader.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "checkpoint/megatron/megatron_folder.h"
#include "checkpoint/own_shards.h"

namespace bev {

CheckpointReader::CheckpointReader(const std::string& folder) : folder_(folder) {
  std::string path = join_path(folder, kManifestName);
  if (path_exists(path)) {
    manifest_ = parse_manifest(read_file(path), path);
    open_own();
    return;
  }
  BEV_CHECK(is_megatron_folder(folder), ErrorKind::kInput, folder, ": no ", kManifestName,
            ": not a checkpoint, or one whose save was not completed");
  MegatronFolder other = open_megatron(folder);
  manifest_ = std::move(other.manifest);
  pieces_ = std::move(other.pieces);
  files_ = std::move(other.files);
  foreign_ = std::make_unique<ForeignNotes>(std::move(other.notes));
}

CheckpointReader::CheckpointReader(const std::string& folder, Manifest manifest)
    : folder_(folder), manifest_(std::move(manifest)) {
  open_own();
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::open_own() {
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
    for (const std::string& key : manifest_.shards[i].pieces) {
      auto [name, box] = *parse_piece_name(key);
      pieces_[name].push_back({box, box, 0, i, key});
    }
  }
  files_ = std::make_unique<OwnShards>(folder_, manifest_);
}

void CheckpointReader::add_shards(const std::string& name, const Box& box,
                                  std::vector<bool>& out) const {
  for (const Piece& piece : pieces_.find(name)->second) {
    if (intersection(box, piece.box)) out[piece.file] = true;
  }
}

const GlobalTensor* CheckpointReader::find(std::string_view name) const {
  auto found = manifest_.tensors.find(std::string(name));
  return found == manifest_.tensors.end() ? nullptr : &found->second;
}

std::span<const std::byte> CheckpointReader::stored(const std::string& name, const Box& box) {
  for (const Piece& piece : pieces_.find(name)->second) {
    if (intersection(box, piece.box) != box) continue;
    std::vector<BoxRun> runs = common_runs(piece.memory, box, box);
    if (runs.size() != 1) break;
    std::size_t item = size_of(find(name)->dtype);
    std::span<const std::byte> bytes = open_piece(*files_, piece, name, find(name)->dtype)
                                           .subspan(static_cast<std::size_t>(runs[0].a) * item,
                                                    static_cast<std::size_t>(runs[0].count) * item);
    files_->check(piece, bytes);
    return bytes;
  }
  return {};
}

void CheckpointReader::read(const std::string& name, const Box& box, Dtype dtype, void* out) {
  const GlobalTensor* tensor = find(name);
  BEV_CHECK(tensor != nullptr, ErrorKind::kInput, folder_, ": no tensor ", quote(name));
  BEV_CHECK(
      box.ndim() == tensor->shape.ndim() && intersection(box, whole_box(tensor->shape)) == box,
      ErrorKind::kInternal, "checkpoint: ", box, " of ", name, " ", tensor->shape);
  read_pieces(*files_, pieces_.find(name)->second, {name, tensor->dtype, box}, dtype, out);
}

void CheckpointReader::forget(const std::string& name, const Box& box) {
  Dtype dtype = find(name)->dtype;
  for (const Piece& piece : pieces_.find(name)->second) {
    if (intersection(box, piece.box)) forget_pages(open_piece(*files_, piece, name, dtype));
  }
}

std::vector<std::string> CheckpointReader::verify() { return files_->verify(); }

}  // namespace bev
