#include "posttrain/teacher_logits.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"
#include "base/log.h"
#include "base/philox.h"

namespace bev {

namespace {

constexpr const char* kHeaderName = "logits.json";
constexpr std::uint32_t kMagic = 0x314C5442;  // "BTL1"

struct RecordHeader {
  std::uint32_t magic = kMagic, tokens = 0;
  std::uint64_t key[2] = {0, 0};
  std::uint64_t sum = 0;  // of what follows
};

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t hash = mix_bits(seed, bytes.size());
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = mix_bits(hash, word);
  }
  std::uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  return mix_bits(hash, rest);
}

std::pair<std::uint64_t, std::uint64_t> key_of(std::span<const std::int32_t> document) {
  return {hash_bytes(std::as_bytes(document), 1), hash_bytes(std::as_bytes(document), 2)};
}

std::size_t payload_bytes(const LogitFormat& format, std::size_t tokens) {
  auto k = static_cast<std::size_t>(format.top_k);
  return tokens * (k * sizeof(std::int32_t) + (k + 1) * size_of(format.dtype));
}

template <class T>
void put(std::string& text, std::span<const double> values) {
  for (double value : values) {
    T stored(static_cast<float>(value));
    text.append(reinterpret_cast<const char*>(&stored), sizeof stored);
  }
}

template <class T>
std::vector<double> take(std::span<const std::byte> bytes) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(stored);
  }
  return out;
}

std::string header_text(const LogitFormat& format) {
  nlohmann::ordered_json header{{"version", 1},
                                {"top_k", format.top_k},
                                {"vocab_size", format.vocab_size},
                                {"temperature", format.temperature},
                                {"dtype", name_of(format.dtype)}};
  return header.dump(2) + "\n";
}

void check_same(const std::string& folder, const LogitFormat& there, const LogitFormat& wanted) {
  auto same = [&](const char* what, auto found, auto asked) {
    BEV_CHECK(found == asked, ErrorKind::kInput, "--logits-save-dir ", folder,
              ": holds logits whose ", what, " is ", found, ", and this run's is ", asked,
              "; give another folder");
  };
  same("top-k", there.top_k, wanted.top_k);
  same("vocabulary", there.vocab_size, wanted.vocab_size);
  same("temperature", there.temperature, wanted.temperature);
  same("dtype", name_of(there.dtype), name_of(wanted.dtype));
}

// A name that no run before has used.
std::string fresh_name(const std::string& folder, int rank) {
  for (int number = 0;; ++number) {
    std::string path = join_path(folder, fmt::format("rank_{:05}_{:04}.bin", rank, number));
    if (!path_exists(path)) return path;
  }
}

}  // namespace

LogitFormat read_logit_format(const std::string& folder) {
  const std::string path = join_path(folder, kHeaderName);
  BEV_CHECK(path_exists(path), ErrorKind::kInput, folder, ": has no ", kHeaderName,
            "; --logits-save-dir of a run of distillation writes such a folder");
  LogitFormat format;
  try {
    auto value = nlohmann::json::parse(read_file(path));
    format.top_k = value.at("top_k").get<std::int64_t>();
    format.vocab_size = value.at("vocab_size").get<std::int64_t>();
    format.temperature = value.at("temperature").get<double>();
    format.dtype = value.at("dtype").get<std::string>() == "f16" ? Dtype::kF16 : Dtype::kF32;
  } catch (const std::exception& error) {
    BEV_FAIL(ErrorKind::kInput, path, ": is no header of logits: ", quote(error.what(), 160));
  }
  BEV_CHECK(format.top_k > 0 && format.top_k <= format.vocab_size, ErrorKind::kInput, path,
            ": top_k ", format.top_k, " of ", format.vocab_size, " tokens");
  return format;
}

TeacherLogits::TeacherLogits(std::string folder)
    : folder_(std::move(folder)), format_(read_logit_format(folder_)) {
  for (const std::string& name : list_directory(folder_)) {
    if (name.ends_with(".bin")) index_file(name);
  }
}

TeacherLogits::TeacherLogits(std::string folder, const LogitFormat& format, int rank)
    : folder_(std::move(folder)), format_(format) {
  make_directories(folder_);
  const std::string header = join_path(folder_, kHeaderName);
  if (path_exists(header)) check_same(folder_, read_logit_format(folder_), format);
  if (rank == 0 && !path_exists(header)) write_file(header, header_text(format));
  for (const std::string& name : list_directory(folder_)) {
    if (name.ends_with(".bin")) index_file(name);
  }
  added_ = std::make_unique<AppendFile>(fresh_name(folder_, rank), OpenMode::kExclusive);
}

// A run that was killed may have left a part of a record at the end.
void TeacherLogits::index_file(const std::string& name) {
  files_.emplace_back(join_path(folder_, name));
  std::span<const std::byte> bytes = files_.back().bytes();
  std::size_t at = 0;
  while (at + sizeof(RecordHeader) <= bytes.size()) {
    RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    BEV_CHECK(header.magic == kMagic, ErrorKind::kInput, files_.back().path(), ": byte ", at,
              ": is no record of logits");
    const std::size_t end = at + sizeof header + payload_bytes(format_, header.tokens);
    if (end > bytes.size()) break;
    places_.try_emplace({header.key[0], header.key[1]}, Place{files_.size() - 1, at});
    at = end;
  }
  if (at < bytes.size()) log_warning(concat(files_.back().path(), ": ends within a record"));
}

bool TeacherLogits::has(std::span<const std::int32_t> document) const {
  return places_.contains(key_of(document));
}

DocumentLogits TeacherLogits::find(std::span<const std::int32_t> document) const {
  auto found = places_.find(key_of(document));
  BEV_CHECK(found != places_.end(), ErrorKind::kInput, "--logits-load-dir ", folder_,
            ": has nothing of a sample of ", document.size(), " tokens, the first of them ",
            document.empty() ? -1 : document.front(),
            "; it must have been written with this data, --seq-length and --split");
  const MappedFile& file = files_[found->second.file];
  RecordHeader header;
  std::memcpy(&header, file.bytes().data() + found->second.offset, sizeof header);
  std::span<const std::byte> payload = file.bytes().subspan(found->second.offset + sizeof header,
                                                            payload_bytes(format_, header.tokens));
  BEV_CHECK(header.tokens == document.size() && hash_bytes(payload, 0) == header.sum,
            ErrorKind::kInput, file.path(), ": byte ", found->second.offset,
            ": the record is damaged; write the logits again");
  DocumentLogits out;
  out.ids.resize(document.size() * static_cast<std::size_t>(format_.top_k));
  const std::size_t id_bytes = out.ids.size() * sizeof(std::int32_t);
  std::memcpy(out.ids.data(), payload.data(), id_bytes);
  std::span<const std::byte> rest = payload.subspan(id_bytes);
  out.logps = format_.dtype == Dtype::kF16 ? take<F16>(rest) : take<float>(rest);
  return out;
}

void TeacherLogits::add(std::span<const std::int32_t> document, const DocumentLogits& logits) {
  const Key key = key_of(document);
  if (!places_.try_emplace(key).second) return;
  std::string payload(reinterpret_cast<const char*>(logits.ids.data()),
                      logits.ids.size() * sizeof(std::int32_t));
  if (format_.dtype == Dtype::kF16) {
    put<F16>(payload, logits.logps);
  } else {
    put<float>(payload, logits.logps);
  }
  RecordHeader header{.tokens = static_cast<std::uint32_t>(document.size()),
                      .key = {key.first, key.second},
                      .sum = hash_bytes(std::as_bytes(std::span(payload)), 0)};
  std::string record(reinterpret_cast<const char*>(&header), sizeof header);
  added_->write(record + payload);
}

}  // namespace bev
