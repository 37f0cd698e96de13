#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/divide.h"
#include "base/error.h"

namespace bev {

namespace {
[[noreturn]] void fail_io(std::string_view what, const std::string& path, int error) {
  throw Error(ErrorKind::kIo, concat(what, " ", path, ": ", std::strerror(error)));
}
[[noreturn]] void fail_input(std::string_view what, const std::string& path, int error) {
  throw Error(ErrorKind::kInput, concat(what, " ", path, ": ", std::strerror(error)));
}

class Descriptor {
 public:
  // O_NONBLOCK: opening a FIFO that has no writer must not hang the program.
  explicit Descriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail_input("cannot open", path, errno);
    struct stat info {};
    if (::fstat(fd_, &info) != 0) fail(path);
    if (!S_ISREG(info.st_mode)) {
      ::close(fd_);
      if (S_ISDIR(info.st_mode)) fail_input("cannot read", path, EISDIR);
      BEV_FAIL(ErrorKind::kInput, "cannot read ", path, ": it is not a regular file");
    }
    size_ = static_cast<std::size_t>(info.st_size);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  std::size_t size() const { return size_; }

 private:
  [[noreturn]] void fail(const std::string& path) {
    int error = errno;
    ::close(fd_);
    fail_input("cannot read", path, error);
  }
  int fd_;
  std::size_t size_ = 0;
};
}  // namespace

bool path_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  return concat(folder, folder.back() == '/' ? "" : "/", name);
}

std::string parent_path(const std::string& path) {
  std::size_t end = path.find_last_not_of('/');
  std::size_t slash = path.find_last_of('/', end);
  if (slash == std::string::npos || end == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void make_directories(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  if (std::string parent = parent_path(path); parent != path) make_directories(parent);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    fail_io("cannot create folder", path, errno);
  }
  if (!is_directory(path)) fail_io("cannot create folder", path, ENOTDIR);
}

std::vector<std::string> list_directory(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) fail_input("cannot list", path, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path) {
  Descriptor file(path);
  std::string content;
  content.reserve(file.size());
  char buffer[65536];
  while (true) {
    ssize_t got = ::read(file.fd(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_input("cannot read", path, errno);
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
  }
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  Descriptor file(path);
  if (file.size() == 0) return;
  void* address = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (address == MAP_FAILED) fail_input("cannot map", path, errno);
  bytes_ = {static_cast<const std::byte*>(address), file.size()};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void forget_pages(std::span<const std::byte> bytes) {
  auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  std::uintptr_t first = round_up(begin, page), last = (begin + bytes.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void sync_folder(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // best effort: not every file system supports it
  ::close(descriptor);
}

DiskFile::DiskFile(const std::string& path) : path_(path), descriptor_(open(O_DIRECT)) {
  direct_ = descriptor_ >= 0;
  if (!direct_ && errno == EINVAL) descriptor_ = open(0);
  if (descriptor_ < 0) fail_io("cannot write", path, errno);
}

DiskFile::~DiskFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int DiskFile::open(int more_flags) const {
  return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | more_flags, 0666);
}

void DiskFile::leave_direct() {
  direct_ = false;
  if (::fcntl(descriptor_, F_SETFL, 0) != 0) fail_io("cannot write", path_, errno);
}

void DiskFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    bool aligned =
        (reinterpret_cast<std::uintptr_t>(bytes.data()) | bytes.size()) % kAlignment == 0;
    if (direct_ && !aligned) leave_direct();
    ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && direct_) {  // the file system refuses O_DIRECT for this block
      leave_direct();
      continue;
    }
    if (put < 0) fail_io("cannot write", path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void DiskFile::sync() {
  if (::fsync(descriptor_) != 0) fail_io("cannot sync", path_, errno);
}

void DiskFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_io("cannot write", path_, errno);
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temporary_(path + ".tmp"), file_(std::make_unique<DiskFile>(temporary_)) {}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kBlockBytes = std::size_t{8} << 20, kAlignment = DiskFile::kAlignment;
  if (block_.empty()) {
    std::size_t room = kBlockBytes + kAlignment;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(room);
    void* aligned = memory_.get();
    std::align(kAlignment, kBlockBytes, aligned, room);
    block_ = {static_cast<std::byte*>(aligned), kBlockBytes};
  }
  std::span<const std::byte> rest(static_cast<const std::byte*>(data), bytes);
  while (!rest.empty()) {
    std::size_t count = std::min(rest.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, rest.data(), count);
    rest = rest.subspan(count);
    filled_ += count;
    if (filled_ < block_.size()) return;
    file_->write(block_);
    filled_ = 0;
  }
}

void AtomicFile::commit() {
  file_->write(block_.first(filled_));
  file_->sync();
  file_->close();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("cannot write", path_, errno);
  file_.reset();
}

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace bev
