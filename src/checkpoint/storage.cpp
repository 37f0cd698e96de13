#include "checkpoint/storage.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {

[[noreturn]] void fail(std::string_view what, const std::string& path, int error) {
  throw Error(ErrorKind::kIo, concat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

class StoredFile final : public OutputFile {
 public:
  explicit StoredFile(const std::string& path) : file_(path) {}
  void write(std::span<const std::byte> bytes) override { file_.write(bytes); }
  void sync() override { file_.sync(); }

 private:
  DiskFile file_;
};

class DiskStorage final : public Storage {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<StoredFile>(path);
  }
  void make_folder(const std::string& path) override { make_directories(path); }
  void sync_folder(const std::string& path) override { bev::sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename to", to, errno);
  }
  void exchange(const std::string& one, const std::string& other) override {
    int done = ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
    if (done == 0) return;
    if (errno != EINVAL && errno != ENOSYS) fail("exchange", other, errno);
    std::string aside = other + ".aside";
    rename(other, aside);
    rename(one, other);
    rename(aside, one);
  }
  void remove_tree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }
};

}  // namespace

std::unique_ptr<Storage> make_disk_storage() { return std::make_unique<DiskStorage>(); }

void replace_file(Storage& storage, const std::string& path, std::string_view content) {
  std::string temporary = path + ".tmp";
  {
    std::unique_ptr<OutputFile> file = storage.create(temporary);
    file->write(std::as_bytes(std::span(content)));
    file->sync();
  }
  storage.rename(temporary, path);
  storage.sync_folder(parent_path(path));
}

}  // namespace bev
