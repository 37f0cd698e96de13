#include "checkpoint/storage.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

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

// Writes of whole aligned blocks go to the disk past the page cache, which costs the processor
// nearly nothing; from the first other one on, and where the file system cannot, through it.
class DiskFile final : public OutputFile {
 public:
  explicit DiskFile(const std::string& path) : path_(path), descriptor_(open(O_DIRECT)) {
    direct_ = descriptor_ >= 0;
    if (!direct_ && errno == EINVAL) descriptor_ = open(0);
    if (descriptor_ < 0) fail("create", path, errno);
  }
  ~DiskFile() override { ::close(descriptor_); }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::byte> bytes) override {
    if (direct_ && !aligned(bytes)) leave_direct();
    while (!bytes.empty()) {
      ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && errno == EINVAL && direct_) {
        leave_direct();
        continue;
      }
      if (put < 0) fail("write", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      if (direct_ && !aligned(bytes)) leave_direct();
    }
  }
  void sync() override {
    if (::fsync(descriptor_) != 0) fail("sync", path_, errno);
  }

 private:
  int open(int more) const {
    return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0666);
  }
  static bool aligned(std::span<const std::byte> bytes) {
    constexpr std::size_t kUnit = 4096;
    return (reinterpret_cast<std::uintptr_t>(bytes.data()) | bytes.size()) % kUnit == 0;
  }
  void leave_direct() {
    direct_ = false;
    if (::fcntl(descriptor_, F_SETFL, 0) != 0) fail("write", path_, errno);
  }

  std::string path_;
  int descriptor_;
  bool direct_ = false;
};

class DiskStorage final : public Storage {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<DiskFile>(path);
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
