// Storage whose n-th operation fails, like a full or a dying disk.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "checkpoint/storage.h"

namespace bev::test {

class FaultyStorage final : public Storage {
 public:
  // Fails at operation `first` and the `count` - 1 operations after it, counted over all ranks.
  FaultyStorage(int first, int count, std::string reason = "No space left on device")
      : first_(first), count_(count), reason_(std::move(reason)) {}

  // Operations so far.
  int operations() const { return operations_; }
  bool failed() const { return operations_ > first_; }

  std::unique_ptr<OutputFile> create(const std::string& path) override {
    operate(path);
    return std::make_unique<File>(*this, disk_->create(path), path);
  }
  void make_folder(const std::string& path) override {
    operate(path);
    disk_->make_folder(path);
  }
  void sync_folder(const std::string& path) override {
    operate(path);
    disk_->sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    operate(to);
    disk_->rename(from, to);
  }
  void exchange(const std::string& one, const std::string& other) override {
    operate(other);
    disk_->exchange(one, other);
  }
  void remove_tree(const std::string& path) override {
    operate(path);
    disk_->remove_tree(path);
  }

 private:
  class File final : public OutputFile {
   public:
    File(FaultyStorage& storage, std::unique_ptr<OutputFile> file, std::string path)
        : storage_(storage), file_(std::move(file)), path_(std::move(path)) {}
    // A failing write has written half of its bytes.
    void write(std::span<const std::byte> bytes) override {
      try {
        storage_.operate(path_);
      } catch (const Error&) {
        file_->write(bytes.first(bytes.size() / 2));
        throw;
      }
      file_->write(bytes);
    }
    void sync() override {
      storage_.operate(path_);
      file_->sync();
    }

   private:
    FaultyStorage& storage_;
    std::unique_ptr<OutputFile> file_;
    std::string path_;
  };

  void operate(const std::string& path) {
    int now = operations_++;
    if (now < first_ || now >= first_ + count_) return;
    throw Error(ErrorKind::kIo, concat("cannot write ", path, ": ", reason_));
  }

  std::unique_ptr<Storage> disk_ = make_disk_storage();
  int first_, count_;
  std::string reason_;
  std::atomic<int> operations_ = 0;
};

}  // namespace bev::test
