#include "base/cache_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"

namespace bev {

namespace {

constexpr std::string_view kFirstLine = "bevatron cache 1\n";
constexpr std::string_view kLastWord = "end ";
constexpr std::size_t kHashDigits = 16;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;

// Advisory file lock (flock) for the lifetime of the object, tried for about 1 s. Without the lock
// the entry is not written now; the next put() writes it too.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path) {
    constexpr int kTries = 100;
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    BEV_CHECK(descriptor_ >= 0, ErrorKind::kIo, "cannot write ", path, ": ", std::strerror(errno));
    for (int i = 0; i < kTries && !held_; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      held_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    }
  }
  ~CacheLock() { ::close(descriptor_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

bool is_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::string hash_text(std::string_view text) { return fmt::format("{:016x}", hash_name(text)); }

}  // namespace

// Format: header line, one line "key TAB value" per entry, FNV-1a hash of everything before it.
std::string CacheFile::format(const Entries& entries) {
  std::string text(kFirstLine);
  for (const auto& [key, value] : entries) text += concat(key, '\t', value, '\n');
  return concat(text, kLastWord, hash_text(text), '\n');
}

std::optional<CacheFile::Entries> CacheFile::parse(std::string_view text) {
  std::size_t ending = kLastWord.size() + kHashDigits + 1;
  if (!text.starts_with(kFirstLine) || text.size() < kFirstLine.size() + ending) return {};
  std::string_view body = text.substr(0, text.size() - ending);
  if (text.substr(body.size()) != concat(kLastWord, hash_text(body), '\n')) return {};
  Entries entries;
  body.remove_prefix(kFirstLine.size());
  while (!body.empty()) {
    std::size_t end = body.find('\n');
    if (end == body.npos) return {};
    std::string_view line = body.substr(0, end);
    std::size_t tab = line.find('\t');
    if (tab == line.npos) return {};
    std::string_view key = line.substr(0, tab), value = line.substr(tab + 1);
    if (!is_text(key) || !is_text(value)) return {};
    if (!entries.emplace(key, value).second) return {};
    body.remove_prefix(end + 1);
  }
  return entries;
}

CacheFile::CacheFile(std::string path) : path_(std::move(path)), entries_(read(Tell::kYes)) {}

CacheFile::Entries CacheFile::read(Tell tell) const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return {};
  try {
    bool sane = S_ISREG(status.st_mode) && static_cast<std::size_t>(status.st_size) <= kMostBytes;
    std::optional<Entries> entries;
    if (sane) entries = parse(read_file(path_));
    if (entries) return *std::move(entries);
    if (tell == Tell::kNo) return {};
    log_warning(concat(path_, ": is damaged or no cache of ours; it is not used and made anew"));
  } catch (const Error& error) {
    if (tell == Tell::kYes) log_warning(concat("the cache is not used: ", error.what()));
  }
  return {};
}

std::optional<std::string> CacheFile::find(const std::string& key) const {
  auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  return found->second;
}

void CacheFile::put(const std::string& key, const std::string& value) {
  BEV_CHECK(is_text(key) && is_text(value), ErrorKind::kInternal, "cache: a key of ", key.size(),
            " or a value of ", value.size(), " bytes is no plain text");
  entries_[key] = value;
  if (!writable_) return;
  try {
    write();
  } catch (const Error& error) {
    writable_ = false;
    log_warning(concat("the cache is not kept: ", error.what()));
  }
}

void CacheFile::write() {
  make_directories(parent_path(path_));
  CacheLock lock(path_ + ".lock");
  if (!lock.held()) return;
  Entries others = read(Tell::kNo);  // the constructor has already warned about a bad file
  entries_.insert(others.begin(), others.end());
  std::string text = format(entries_);
  if (text.size() <= kMostBytes) write_file(path_, text);
}

}  // namespace bev
