#include "checkpoint/convert/resumable_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/append_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "checkpoint/checksum.h"
#include "checkpoint/step_folders.h"

namespace bev {

namespace {

constexpr char kJournalName[] = "written.jsonl", kLockName[] = "convert.lock";
constexpr char kRunLockName[] = "run.lock";  // of a run in training
constexpr std::string_view kSaving = ".saving-";

std::string line_of(const WrittenFile& file) {
  return nlohmann::ordered_json{{"file", file.name},
                                {"bytes", file.bytes},
                                {"checksums", file.checksums},
                                {"lengths", file.lengths}}
             .dump() +
         "\n";
}

// Lines that a kill cut off are none.
std::optional<WrittenFile> parse_line(const std::string& line) {
  nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  WrittenFile out;
  try {
    out.name = json.at("file").get<std::string>();
    out.bytes = json.at("bytes").get<std::uint64_t>();
    out.checksums = json.at("checksums").get<std::vector<std::uint64_t>>();
    out.lengths = json.at("lengths").get<std::vector<std::uint64_t>>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return out;
}

bool has_size(const std::string& path, std::uint64_t bytes) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) == bytes;
}

}  // namespace

struct ResumableFolder::Journal {
  explicit Journal(std::string lock_path) : lock(std::move(lock_path)) {}
  FileLock lock;
  std::map<std::string, WrittenFile> written = {};
  std::unique_ptr<AppendFile> file = {};
  std::mutex mutex = {};
};

ResumableFolder::ResumableFolder(Storage& storage, const std::string& out, const std::string& name,
                                 const std::string& identity)
    : storage_(storage), out_(out), name_(name) {
  std::string key = checksum_text(checksum(std::as_bytes(std::span(identity))));
  path_ = join_path(out, concat(name, kSaving, key));
  storage.make_folder(out);
  journal_ = std::make_unique<Journal>(join_path(out, kLockName));
  BEV_CHECK(journal_->lock.try_lock() != LockResult::kBusy, ErrorKind::kConfig, "--save: ", out,
            " is being written by another conversion");
  take_back(key);
  clear(out);
  storage.make_folder(path_);
  std::string journal = join_path(path_, kJournalName);
  if (path_exists(journal)) {
    for (const std::string& line : split(read_file(journal), '\n')) {
      std::optional<WrittenFile> file = parse_line(line);
      if (!file || !has_size(join_path(path_, file->name), file->bytes)) continue;
      std::string file_name = file->name;
      journal_->written[file_name] = std::move(*file);
    }
  }
  journal_->file = std::make_unique<AppendFile>(journal, OpenMode::kTruncate);
  for (const auto& entry : journal_->written) journal_->file->write(line_of(entry.second));
}

// A kill while this conversion was published: all is there, perhaps without the tracker.
void ResumableFolder::take_back(const std::string& key) {
  std::string published = join_path(out_, name_);
  if (journal_->lock.text() == key && path_exists(published) && !path_exists(path_)) {
    storage_.remove_tree(join_path(out_, kTrackerName));
    storage_.rename(published, path_);
  }
  journal_->lock.write(key);
}

// Removes what other conversions left. Throws if there is a run.
void ResumableFolder::clear(const std::string& out) {
  std::vector<std::string> names = list_directory(out);
  auto of_run = [&](const std::string& name) {
    return name == kTrackerName || name == kRunLockName || name == name_ ||
           parse_step(name).has_value();
  };
  auto held = std::ranges::find_if(names, of_run);
  if (held != names.end()) journal_->lock.remove();
  BEV_CHECK(held == names.end(), ErrorKind::kConfig, "--save: ", out, " holds ", *held,
            " already; give another folder");
  for (const std::string& name : names) {
    std::string path = join_path(out, name);
    if (path != path_ && name.find(kSaving) != std::string::npos) storage_.remove_tree(path);
  }
}

ResumableFolder::~ResumableFolder() {
  if (published_) journal_->lock.remove();
}

std::optional<WrittenFile> ResumableFolder::find(const std::string& name) const {
  auto found = journal_->written.find(name);
  return found == journal_->written.end() ? std::nullopt : std::optional(found->second);
}

void ResumableFolder::add(const WrittenFile& file) {
  std::lock_guard lock(journal_->mutex);
  journal_->file->write(line_of(file));
}

std::string ResumableFolder::publish(const std::string& tracker) {
  std::string final_path = join_path(out_, name_);
  storage_.sync_folder(path_);
  storage_.rename(path_, final_path);
  storage_.sync_folder(out_);
  replace_file(storage_, join_path(out_, kTrackerName), tracker + "\n");
  storage_.remove_tree(join_path(final_path, kJournalName));
  published_ = true;
  return final_path;
}

}  // namespace bev
